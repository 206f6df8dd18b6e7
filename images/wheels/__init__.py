"""What a wheel is, for all who read wheels: as a lock names it, and the directory of its zip.

In: bytes of a zip. Out: its members. Imports `images.text` and `images.errors` alone.
"""
