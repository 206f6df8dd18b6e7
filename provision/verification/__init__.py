"""Runs the suite in an image, makes the report, and judges earlier records.

Imports `attestation`, `lock` and what these import.
"""
