"""What the measuring checks work on: networks, samples, batch sizes.

Imports nothing of the suite; a framework only inside the functions.
"""
