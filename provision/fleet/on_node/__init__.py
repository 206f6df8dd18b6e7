"""What runs on a node: sent there as source text, never installed.

In: a task's argument, as JSON. Out: its answer, as JSON. Runs on Python 3.8 with the standard
library; imports `host`, `model` and `images.system` only, since all that it imports is sent, too.
"""
