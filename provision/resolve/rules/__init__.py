"""The rules, one per function: its docstring is the sentence that it enforces.

All are pure. Versions and names come from the catalog's rows, never from here.
"""
