"""Several machines at once: reads each through what runs there, and finds the fewest images that
serve all of them.

In: host files, an inventory, a request. Out: host files, a `FleetPlan`. Imports `resolve` and what
that imports.

    hostfiles --> HostFacts --classes--> NodeClass --cover--> sets of classes --images--> FleetPlan
                                                              what_if: the same with another driver
"""
