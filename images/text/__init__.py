"""Text of others made fit to print, and suggestions for a mistyped name.

In: strings and paths. Out: strings. Imports nothing of ours.
"""
