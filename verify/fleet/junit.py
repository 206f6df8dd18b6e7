"""A fleet as JUnit XML: one test case per node; and for what the nodes did together."""

from __future__ import annotations

from typing import Dict, Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from verify.fleet.across import FleetTogether
from verify.fleet.nodes import FleetNode, FleetResult
from verify.fleet.reasons import reasons
from verify.reports.formatting import clean, one_line, shortened
from verify.reports.junit import indent

_ELEMENTS = {"unfit": "failure", "slow": "failure", "not-tested": "error", "no-verdict": "skipped"}
_LIMIT = 20_000
_NAMES = 8


def render(fleet: FleetResult) -> str:
    """The XML document."""
    suites = Element("testsuites", name="gpu-provision fleet verify")
    suite = SubElement(suites, "testsuite", name="fleet", package="fleet", time="0.000")
    properties = SubElement(suite, "properties")
    for name, text in (("image", fleet.image), ("level", fleet.level)):
        SubElement(properties, "property", name=name, value=one_line(text or ""))
    for node in fleet.nodes:
        _case(suite, node)
    found = [suite]
    if fleet.together is not None:
        found.append(SubElement(suites, "testsuite", name="across", package="fleet", time="0.000"))
        _together(found[1], fleet.together)
    for one in found:
        for name, count in _counts(one).items():
            one.set(name, str(count))
    for name in ("tests", "failures", "errors"):
        suites.set(name, str(sum(int(one.get(name, "0")) for one in found)))
    suites.set("time", "0.000")
    indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def _counts(suite: Element) -> Dict[str, int]:
    cases = suite.findall("testcase")
    kinds = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {
        name: sum(case.find(kind) is not None for case in cases) for name, kind in kinds.items()
    }
    return {"tests": len(cases), **counts}


def _together(suite: Element, found: FleetTogether) -> None:
    """A case for all nodes, and one for each fault, named as the nodes or links that it names."""
    said = [found.message, *("{}: {}".format(one.kind, one.message) for one in found.faults)]
    if found.standing == "no-verdict":
        said.insert(0, "NCCL was not tested: there are no GPUs")
    _ended(_new_case(suite, "all nodes together", "across"), found.standing, said)
    for fault in found.faults:
        name = "{}: {}".format(fault.kind, " - ".join(fault.nodes[:_NAMES]) or "all nodes")
        _ended(_new_case(suite, name, "across"), "unfit", [fault.message])


def _new_case(suite: Element, name: str, classname: str) -> Element:
    return SubElement(suite, "testcase", name=one_line(name), classname=classname, time="0.000")


def _case(suite: Element, node: FleetNode) -> None:
    said = reasons(node) or ["no check of a GPU could run"]
    _ended(_new_case(suite, node.name, "fleet"), node.standing, said)


def _ended(case: Element, standing: str, said: Sequence[str]) -> None:
    element = _ELEMENTS.get(standing)
    if element is None:
        return
    message = "{}: {}".format(standing, said[0])
    ending = SubElement(case, element, message=one_line(shortened(message, 2_000)))
    if element != "skipped":
        ending.set("type", standing)
    ending.text = clean(shortened("\n".join(said), _LIMIT))
