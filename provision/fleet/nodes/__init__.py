"""Asks the nodes of a fleet through what runs there: SSH, Slurm, Ray, Kubernetes.

In: a list of hosts, or a cluster. Out: a host file, or the result of a command in an image, for
each node that answered, and why the others did not. `ssh`, `slurm`, `ray` and `kubernetes` make the
calls, `program` is what they send (a task of `on_node`), `work` runs them; `collect` and `in_image`
are its two users.
"""
