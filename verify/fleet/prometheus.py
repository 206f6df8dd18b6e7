"""A fleet as Prometheus text, for the textfile collector of node_exporter."""

from __future__ import annotations

from typing import Dict, Iterator, List, Tuple

from verify.fleet.nodes import STANDINGS, FleetResult
from verify.fleet.words import key_words
from verify.reports.compare import change
from verify.reports.prometheus import Samples, series


def render(fleet: FleetResult) -> str:
    """The text, one family after the other, without duplicate series."""
    both = {"image": fleet.image or "", "level": fleet.level or ""}
    lines: List[str] = []
    for name, told, samples in _families(fleet):
        unique: Dict[str, float] = {}
        for labels, value in samples:
            unique.setdefault(series("fleet_" + name, {**both, **labels}), value)
        if unique:
            full = "gpu_provision_fleet_" + name
            lines += ["# HELP {} {}".format(full, told), "# TYPE {} gauge".format(full)]
            lines += ["{} {!r}".format(one, value) for one, value in unique.items()]
    return "\n".join(lines) + "\n"


def _families(fleet: FleetResult) -> Iterator[Tuple[str, str, Samples]]:
    counts: Samples = [({"standing": one}, fleet.count(one)) for one in STANDINGS]
    yield "nodes", "Nodes with this standing.", counts
    each: Samples = [({"node": node.name, "standing": node.standing}, 1) for node in fleet.nodes]
    yield "node_standing", "1 for the standing of the node.", each
    failed: Samples = [
        ({"node": node.name, "check": one.check, "status": one.status}, 1)
        for node in fleet.nodes
        for one in node.troubles
    ]
    yield "node_check_failed", "1 for each check that failed or broke.", failed
    missing: Samples = [
        ({"node": node.name, "code": node.missing.code}, 1)
        for node in fleet.nodes
        if node.missing is not None
    ]
    yield "node_not_tested", "1 for each node without a report.", missing
    slow: Samples = [
        ({"node": node.name, "metric": key_words(one.key)}, abs(change(one.median, one.value)))
        for node in fleet.nodes
        for one in node.slower
    ]
    yield "node_slower_ratio", "By how much a metric is worse than that of its twins.", slow
