"""Consistency rules between rows, one module per subject; `provision.catalog.check` calls
them all.
"""
