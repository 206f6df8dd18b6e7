"""The suite on every node of a fleet, in its image: who is unfit, and who is slower than others.

In: the calls of `nodes`, an image, a level. Out: a directory with a report for each node that has
one, and the result of `verify fleet`, which judges them and compares twins. `drain` makes Slurm's
commands for what was found. Imports `nodes` and `verification`.
"""
