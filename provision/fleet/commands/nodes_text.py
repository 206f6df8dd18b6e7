"""Render what became of the nodes of a fleet."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from provision.fleet.nodes.collect import NodeReading
from provision.output.text import row


def node_line(reading: NodeReading) -> str:
    """A node as soon as its result is known."""
    said = reading.failure.message if reading.failure else f"{reading.name}: {reading.status}"
    return f"{said} ({reading.seconds:.1f} s)" if reading.seconds else said


def describe_nodes(readings: Sequence[NodeReading], folder: str) -> str:
    """How many were read, and each that was not, with the reason and the fix; one fix for all that
    have the same.
    """
    counts = {
        status: sum(one.status == status for one in readings)
        for status in ("read", "kept", "failed")
    }
    good = counts["read"] + counts["kept"]
    kept = f", {counts['kept']} of them before" if counts["kept"] else ""
    lines = row("read", f"{good} of {len(readings)} nodes{kept}")
    by_fix: dict[str, list[str]] = {}
    for one in readings:
        if one.failure is not None:
            old = f" {one.path.name} is from an earlier run." if one.path else ""
            by_fix.setdefault(one.failure.fix, []).append(f"{one.failure.message}{old}")
    for fix, messages in by_fix.items():
        for message in messages:
            lines += row("not read", message)
        lines += row("fix", fix)
    if good:
        lines.append(f"next: provision fleet plan {shlex.quote(folder)}")
    return "\n".join(lines)
