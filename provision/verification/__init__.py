"""Tests an image: by running the suite in it, or by reading what is in it (`inspection`); makes the
report, and judges earlier records.

Imports `attestation`, `lock` and what these import.
"""
