"""The suite's values: what is expected, what a check is and found, what it measured.

In: the expectations' JSON. Out: frozen values. Imports `verify.device` alone.
"""
