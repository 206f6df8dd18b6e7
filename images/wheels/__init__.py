"""Wheels, for every package that reads them: an entry of a lock, and the directory of a zip.

In: bytes of a zip. Out: its members. Imports only `images.text` and `images.errors`.
"""
