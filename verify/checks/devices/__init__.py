"""Devices: which GPUs are seen, by whom, and whether work runs correctly on each of them."""
