"""Collectives over the nodes of a fleet, and the search for the node or link that spoils them.

In: how to run `verify across` on groups of nodes, several groups at a time. Out: what is wrong, in
words and JSON. `search` is pure; `groups` makes one run of several groups of it.
"""
