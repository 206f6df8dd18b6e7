"""Renders a finished report: JUnit, Markdown, HTML, Prometheus, comparison.

Everything here is pure: a report as `report.schema.json` describes it comes in, text goes out. The
same report always gives the same text.
"""
