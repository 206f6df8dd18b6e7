"""The suite that runs inside an image and tests it on this machine: `python -m verify`.

It needs only Python 3.8 or newer with its standard library, and the framework, which it imports
only where a check runs. It reads expectations from one JSON file and writes its report to another.
"""
