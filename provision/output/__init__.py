"""The program's output: lines on stderr, results on stdout, files.

`export/` has the files that run an image elsewhere. Imports `errors` and `model`.
"""
