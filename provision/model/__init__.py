"""The values passed between packages: host facts and request, plan, and their JSON. Imports
`errors`.
"""
