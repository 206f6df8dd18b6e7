"""The part of the suite that runs on several nodes at once: collectives over all their GPUs.

In: this node's number, how many there are, the address of the first. Out: one report, the same on
each node. Imports `verify.checks` and what is below it; PyTorch alone is imported, in the ranks.
"""
