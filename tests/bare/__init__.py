"""The README's commands on machines that have git and Python, and nothing else."""
