"""The program's output: lines on stderr, results on stdout, files.

Imports `errors` and `model`.
"""
