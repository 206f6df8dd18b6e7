"""What the measuring checks work on: networks, samples, sizes of batches.

Imports nothing of the suite; a framework only inside the functions.
"""
