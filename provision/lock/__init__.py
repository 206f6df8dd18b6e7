"""A plan in, a PEP 751 lock out: wheels chosen by uv, with what an index needs to be asked.

Imports `catalog`, `host`, `model` and `output`.
"""
