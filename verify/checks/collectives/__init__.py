"""Collectives: sums and exchanges between GPUs or processes, and their bandwidth."""
