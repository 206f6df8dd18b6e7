"""What all signed statements share: the envelope, the keys, and strict reading.

`record` and `provenance` build on it, each with its own predicate.
"""
