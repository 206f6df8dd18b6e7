"""Linux: runs and ends programs, handles Ctrl-C, scratch directories and the loader's cache.

In: argument lists, paths, bytes. Out: what a program printed and how it ended. Imports only
`images.text` and `images.errors`.
"""
