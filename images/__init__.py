"""Builds a container image from a lock, and inspects images."""
