"""The command line: `python -m verify`, and its commands `batch`, `judge`, `monitor`, `render`.

In: arguments and files. Out: files, texts, an exit code. Imported by `verify.__main__` alone.
"""
