"""Makes untrusted text safe to print, and suggests names for a mistyped one.

In: strings and paths. Out: strings. Imports nothing from this project.
"""
