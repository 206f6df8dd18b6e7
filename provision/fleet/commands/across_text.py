"""Render what nodes do together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from images.text.printable import printable
from provision.fleet.across.groups import RoundRun
from provision.fleet.classes import several
from provision.output.text import row

_NAMES = 8
_MOST = 12
_SLOWEST = 4


def round_line(done: RoundRun) -> str:
    """A round when it has ended."""
    failed = [run for run in done.groups if not run.ok]
    sizes = sorted({len(run.nodes) for run in done.groups})
    nodes = " or ".join(map(str, sizes))
    what = (
        f"1 group of {nodes}" if len(done.groups) == 1 else f"{len(done.groups)} groups of {nodes}"
    )
    said = "all work" if not failed else f"{len(failed)} failed"
    if len(failed) == 1:
        said += f": {failed[0].message or next(iter(failed[0].named.values()), '')}"
    return f"{what}: {said} ({done.seconds:.1f} s)"


def describe_across(found: Mapping[str, Any] | None) -> str:
    """What is wrong with the nodes together, or how fast they are."""
    if found is None:
        return "\n".join(row("across", "not tested: fewer than two nodes are left"))
    report = found["report"] or {}
    lines = row("across", str(report.get("message") or "no node answered"))
    for one in found["named"][:_MOST]:
        lines += row("at fault", one["message"])
    lines += _more(found["named"])
    if found["sick"]:
        lines += row("sick", f"{several(found['sick'], most=_NAMES)}: fails with nodes that work")
    for link in found["links"][:_MOST]:
        lines += row("bad link", f"{link[0]} - {link[1]}: both work with other nodes")
    for part in found["parts"][:_MOST]:
        lines += row("apart", f"{len(part)} nodes that work only together: {_names(part)}")
    if found["suspects"]:
        lines += row("unclear", f"among {_names(found['suspects'])}: these runs do not tell which")
    if found["together"]:
        lines += row("unclear", "all pairs that were tried work, and all nodes together do not")
    if found["status"] == "fail" and not found["complete"]:
        lines += row("note", "there may be more: repeat it without these")
    lines += _slowest(found["readings"])
    return "\n".join(lines)


def _names(nodes: list[str]) -> str:
    return several([printable(node) for node in nodes], most=_NAMES)


def _more(rows: list[Any]) -> list[str]:
    return row("", f"and {len(rows) - _MOST} more") if len(rows) > _MOST else []


def _slowest(readings: list[Mapping[str, Any]]) -> list[str]:
    """No verdict: there is no source for how much of the usual speed is too little."""
    if not readings:
        return []
    said = [
        f"{one['node']} {one['gbs']:.3g} GB/s ({one['share']:.0%} of the median)"
        for one in readings[:_SLOWEST]
    ]
    return row("slowest", f"in pairs: {', '.join(said)}; not judged")
