"""The suite that runs inside an image and proves it on the machine it runs on: `python -m verify`.

It stands alone: the standard library of Python 3.8 or newer, and the framework, which is imported
only where a check runs. Expectations come in as one JSON file, the report goes out as another.
"""
