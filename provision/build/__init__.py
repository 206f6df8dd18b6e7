"""Builds an image from a lock: its destination, its builder, its documents, and the whole job.

Imports everything but `cli`.
"""
