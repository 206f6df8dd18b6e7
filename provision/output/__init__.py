"""What leaves the program: lines on stderr, results on stdout, files.

Imports `errors` and `model`.
"""
