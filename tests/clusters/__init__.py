"""Fleets on real clusters, whose nodes are all on this machine."""
