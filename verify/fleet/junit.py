"""A fleet as JUnit XML: one test case per node."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, tostring

from verify.fleet.nodes import FleetNode, FleetResult
from verify.fleet.words import reasons
from verify.reports.junit import indent
from verify.reports.words import clean, one_line, shortened

_ELEMENTS = {"unfit": "failure", "slow": "failure", "not-tested": "error", "no-verdict": "skipped"}
_LIMIT = 20_000


def render(fleet: FleetResult) -> str:
    """The XML document."""
    suites = Element("testsuites", name="gpu-provision fleet verify")
    suite = SubElement(suites, "testsuite", name="fleet", package="fleet", time="0.000")
    properties = SubElement(suite, "properties")
    for name, text in (("image", fleet.image), ("level", fleet.level)):
        SubElement(properties, "property", name=name, value=one_line(text or ""))
    for node in fleet.nodes:
        _case(suite, node)
    counts = {
        "tests": len(fleet.nodes),
        "failures": fleet.count("unfit") + fleet.count("slow"),
        "errors": fleet.count("not-tested"),
    }
    for name, count in counts.items():
        suite.set(name, str(count))
        suites.set(name, str(count))
    suite.set("skipped", str(fleet.count("no-verdict")))
    suites.set("time", "0.000")
    indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def _case(suite: Element, node: FleetNode) -> None:
    case = SubElement(suite, "testcase", name=one_line(node.name), classname="fleet", time="0.000")
    element = _ELEMENTS.get(node.standing)
    if element is None:
        return
    said = reasons(node) or ["no check of a GPU could run"]
    message = "{}: {}".format(node.standing, said[0])
    ending = SubElement(case, element, message=one_line(shortened(message, 2_000)))
    if element != "skipped":
        ending.set("type", node.standing)
    ending.text = clean(shortened("\n".join(said), _LIMIT))
