"""Reads the nodes of a fleet through what runs there: SSH, Slurm.

In: a list of hosts, or a cluster. Out: a host file for each node that answered, and why the others
did not. `program` is what a node runs, `ssh` and `slurm` make the calls, `collect` runs them.
"""
