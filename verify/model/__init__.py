"""The suite's values: expectations, checks, their outcomes and measurements.

In: the expectations' JSON. Out: frozen values. Imports only `verify.device`.
"""
