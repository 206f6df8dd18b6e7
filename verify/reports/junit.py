"""JUnit XML, as Jenkins and GitLab read it: one test case per check.

There is no standard; the shape is that of junit-10.xsd in Jenkins's xUnit plug-in: test suites with
properties, and test cases that hold one of failure, error and skipped.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Optional
from xml.etree.ElementTree import Element, SubElement, tostring

from verify.model.report import CheckRow, MetricRow, Report, ReportComparison
from verify.reports import compare_text
from verify.reports.formatting import (
    clean,
    counted,
    flat,
    metrics_of,
    named,
    one_line,
    other_readings,
    percent,
    plots_of,
    shortened,
    tables_of,
    why,
)

OUTPUT_LIMIT = 100_000  # characters of one case's output; readers keep it all in memory
_MESSAGE_LIMIT = 2_000
_ELEMENTS = {"fail": "failure", "error": "error", "skip": "skipped"}


def render(report: Report) -> str:
    """The XML document."""
    suites = Element("testsuites", name="gpu-provision verify")
    suite = SubElement(suites, "testsuite", name="verify", package="verify")
    suite.set("timestamp", report["environment"]["started"].rstrip("Z"))
    suite.set("hostname", "localhost")
    _properties(suite, report)
    for check in report["checks"]:
        _case(suite, check)
    if "comparison" in report:
        _comparison_case(suite, report["comparison"])
    _count(suites, suite, sum(check["seconds"] for check in report["checks"]))
    indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def _count(suites: Element, suite: Element, seconds: float) -> None:
    totals = {"tests": len(suite.findall("testcase"))}
    for name, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        totals[name] = len(suite.findall("testcase/" + element))
    for name, total in totals.items():
        suite.set(name, str(total))
        if name != "skipped":  # the schema has no such attribute there
            suites.set(name, str(total))
    suites.set("time", _seconds(seconds))
    suite.set("time", _seconds(seconds))


def _seconds(seconds: float) -> str:
    return "{:.3f}".format(seconds)


def _properties(suite: Element, report: Report) -> None:
    properties = SubElement(suite, "properties")
    facts: Dict[str, str] = {"verdict": report["verdict"], "level": report["level"]}
    for name, text in {**facts, **flat(report["environment"])}.items():
        SubElement(properties, "property", name=one_line(name), value=one_line(text))


def _case(suite: Element, check: CheckRow) -> None:
    case = SubElement(suite, "testcase", name=one_line(check["id"]))
    case.set("classname", one_line(check["id"].partition(".")[0]))
    case.set("time", _seconds(check["seconds"]))
    element = _ELEMENTS.get(check["status"])
    if element:
        _ending(case, element, check["message"], why(check))
    said = "{}\n{}\n{}".format(check["title"], check["message"], _measured(check))
    SubElement(case, "system-out").text = clean(shortened(said, OUTPUT_LIMIT))


def _ending(case: Element, element: str, message: str, why: str) -> None:
    ending = SubElement(case, element, message=one_line(shortened(message, _MESSAGE_LIMIT)))
    if element != "skipped":
        ending.set("type", element)
    ending.text = clean(shortened(why, OUTPUT_LIMIT))


def _measured(check: CheckRow) -> str:
    """All measurements: one line per metric, one per table row, and the rest as JSON."""
    lines = [_metric(metric) for metric in metrics_of(check)]
    for table in tables_of(check):
        rows = [table["columns"], *([*map(_cell, row)] for row in table["rows"])]
        lines += ["", table["title"], *(" | ".join(row) for row in rows)]
    for plot in plots_of(check):
        lines += ["", "{}: {} over {}".format(plot["title"], plot["y"], plot["x"])]
        lines += [
            "{}: {}".format(line["name"], json.dumps(line["points"])) for line in plot["lines"]
        ]
    rest = other_readings(check)
    lines += ["", json.dumps(rest, indent=1, ensure_ascii=False)] if rest else []
    return "\n".join(lines)


def _metric(metric: MetricRow) -> str:
    """The unrounded number: readers of a log may compute with it."""
    said = "{}: {} {}, spread {:.4f} of {}".format(
        named(metric), metric["value"], metric["unit"], metric["spread"], metric["repeats"]
    )
    share = metric["of_spec"]
    return said if share is None else "{}, {} of the specification".format(said, percent(share))


def _cell(cell: Any) -> str:
    return "" if cell is None else str(cell)


def _comparison_case(suite: Element, found: ReportComparison) -> None:
    """Add a separate test case for regressions, since the check itself may have passed."""
    case = SubElement(suite, "testcase", name="comparison", classname="baseline", time="0.000")
    if found["worse"]:
        count = len(compare_text.worse(found))
        message = "worse than the baseline in {}".format(counted(count, "place"))
        _ending(case, "failure", message, "\n".join(compare_text.worse(found)))
    SubElement(case, "system-out").text = clean(shortened(compare_text.page(found), OUTPUT_LIMIT))


def indent(element: Element, depth: int = 0) -> None:
    """One line per element (ElementTree has its own since Python 3.9)."""
    last: Optional[Element] = None
    for child in element:
        indent(child, depth + 1)
        child.tail = "\n" + "  " * (depth + 1)
        last = child
    if last is not None:
        element.text = "\n" + "  " * (depth + 1)
        last.tail = "\n" + "  " * depth
