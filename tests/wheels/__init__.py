"""Layers made of real wheels, held against what pip makes of the same files."""
