"""Signed statements of an image: `record` says that it was tested, `provenance` how it was built.

Imports `lock`, `model` and `output`.
"""
