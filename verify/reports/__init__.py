"""A finished report in the shapes that others read: JUnit, Markdown, HTML, Prometheus, comparison.

Everything here is pure: a report of `report.schema.json` comes in, a text goes out. The same
report always gives the same text.
"""
