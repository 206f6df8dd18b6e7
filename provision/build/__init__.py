"""A lock in, an image out: where it goes, who makes it, its documents, and the whole job.

Imports everything but `cli` and `inspection`.
"""
