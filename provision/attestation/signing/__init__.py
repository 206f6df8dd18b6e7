"""What all signed statements share: the envelope, the keys, and reading without trust.

`record` and `provenance` build on it, each with its own predicate.
"""
