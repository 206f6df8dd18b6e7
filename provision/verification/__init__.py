"""An image in, a report out: the suite run in it, and what an earlier record is worth.

Imports `attestation`, `lock` and what these import.
"""
