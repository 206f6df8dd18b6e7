"""The Linux beneath: programs run and ended, Ctrl-C, scratch folders, the loader's cache.

In: argument lists, paths, bytes. Out: what a program printed and how it ended. Imports
`images.text` and `images.errors` alone.
"""
