"""Makes a PEP 751 lock from a plan: uv chooses the wheels, with the access that an index needs.

Imports `catalog`, `host`, `model` and `output`.
"""
