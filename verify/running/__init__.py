"""Runs checks, each in its own process with a time limit, and explains error texts.

In: checks and a context. Out: results. Imports `verify.model` and `verify.device`.
"""
