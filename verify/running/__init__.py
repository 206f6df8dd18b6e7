"""How checks are run: each alone, with a time limit, in processes; texts of errors explained.

In: checks and a context. Out: results. Imports `verify.model` and `verify.device`.
"""
