"""The reports of many machines: judged one by one, twins compared, one page for all.

In: reports of one image and level, a node each, or why a node has none. Out: a `FleetResult`, its
JSON, page, JUnit and Prometheus texts. Imports `reports` and `model`.
"""
