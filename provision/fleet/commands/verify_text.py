"""Render what the suite found on the nodes of a fleet."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from images.text.printable import printable
from provision.fleet.classes import several
from provision.fleet.verify.drain import Drain
from provision.fleet.verify.reports import NodeReport
from provision.output.text import row

_LABELS = {
    "unfit": "unfit",
    "slow": "slow",
    "not-tested": "not tested",
    "no-verdict": "no verdict",
    "fit": "fit",
}
_WELL = frozenset({"no-verdict", "fit"})
_MOST_NODES = 40  # with their own lines, of one standing
_MOST_REASONS = 3
_LONGEST = 300
_NAMES = 8
_DRAINS = {None: "to drain", True: "drained", False: "not drained"}


def report_line(report: NodeReport) -> str:
    """A node as soon as it has answered. A report is judged with all others, at the end."""
    if report.failure is not None:
        said = report.failure.message
    elif report.status == "kept":
        said = f"{report.name}: reported, in an earlier run"
    else:
        said = f"{report.name}: reported, by {report.way}"
    return f"{said} ({report.seconds:.1f} s)" if report.seconds else said


def describe_verified(found: Mapping[str, Any], planned: Sequence[Drain]) -> str:
    """Every node that is not fit, the worst first, with the reason; one fix for all that have the
    same.
    """
    nodes = found["nodes"]
    tested = sum(node["standing"] != "not-tested" for node in nodes)
    kept = sum(node["status"] == "kept" for node in nodes)
    before = f", {kept} of them before" if kept else ""
    lines = row("tested", f"{tested} of {len(nodes)} nodes{before}, level {found['level']}")
    for standing, label in _LABELS.items():
        alike = [node for node in nodes if node["standing"] == standing]
        if standing in _WELL:
            names = several([node["name"] for node in alike], most=_NAMES)
            lines += row(label, f"{len(alike)}: {names}") if alike else []
        else:
            lines += _standing(label, alike)
    unsaved = [node for node in nodes if node["code"] == "report-not-kept"]
    lines += _standing("not kept", [one for one in unsaved if one["standing"] in _WELL])
    lines += row("reports", found["directory"])
    lines += describe_drains(planned, _DRAINS)
    return "\n".join(lines)


def describe_drains(planned: Sequence[Drain], words: Mapping[bool | None, str]) -> list[str]:
    """Nodes with the commands that were not run, or failed."""
    lines: list[str] = []
    for one in planned:
        said = one.message or one.reason
        lines += row(words[one.done], printable(f"{one.node}: {said}", limit=_LONGEST))
        lines += [f"  {shlex.join(one.argv)}"] if one.done is not True else []
    return lines


def _standing(label: str, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    lines: list[str] = []
    fixes: dict[str, None] = {}
    for node in nodes[:_MOST_NODES]:
        reasons, fix = node_reasons(node)
        for text in reasons[:_MOST_REASONS]:
            lines += row(label, printable(text, limit=_LONGEST))
        if len(reasons) > _MOST_REASONS:
            lines += row("", f"{node['name']}: and {len(reasons) - _MOST_REASONS} more")
        if fix:
            fixes[printable(fix, limit=_LONGEST)] = None
    if len(nodes) > _MOST_NODES:
        lines += row(label, f"and {len(nodes) - _MOST_NODES} more nodes: see --json or --html")
    for fix in list(fixes)[:_MOST_NODES]:
        lines += row("fix", fix)
    return lines


def node_reasons(node: Mapping[str, Any]) -> tuple[list[str], str | None]:
    """What is wrong with a node, each with its name, and the first fix."""
    name = node["name"]
    said = [f"{name}: {one['check']} ({_whose(one)}): {one['message']}" for one in node["failed"]]
    if node["message"] is not None:
        said.append(node["message"])
    said += [
        f"{name}: {one['check']}: {_metric(one)} is {abs(one['change']):.0%} worse than the "
        f"median of {one['twins']} twins"
        for one in node["slow"]
    ]
    fix = next((one["fix"] for one in node["failed"] if one["fix"]), None) or node["fix"]
    return said, fix


def _whose(one: Mapping[str, Any]) -> str:
    """What is at fault, in the words of the page."""
    name = "fault unknown" if one["at_fault"] == "unknown" else str(one["at_fault"])
    return name if one["shared"] is None else f"{name}, as on {one['shared']} nodes"


def _metric(one: Mapping[str, Any]) -> str:
    labels = ", ".join(f"{key} {value}" for key, value in one["labels"].items())
    return f"{one['name']} ({labels})" if labels else str(one["name"])
