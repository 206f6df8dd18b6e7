"""A fleet as Prometheus text, for the textfile collector of node_exporter."""

from __future__ import annotations

from typing import Dict, Iterator, List, Tuple

from verify.fleet.across import FleetTogether
from verify.fleet.nodes import STANDINGS, FleetResult
from verify.fleet.reasons import key_words
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
        (
            {
                "node": node.name,
                "check": one.check,
                "status": one.status,
                "at_fault": one.fault.at_fault,
            },
            1,
        )
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
    if fleet.together is not None:
        yield from _together(fleet.together)


def _together(found: FleetTogether) -> Iterator[Tuple[str, str, Samples]]:
    """What the nodes did together. Units are base units, as of a single machine."""
    which = {"backend": found.backend or ""}
    told = "1 if the collectives over all nodes were right."
    yield "across_passed", told, [(which, int(found.status == "pass"))]
    named = [(one.kind, node) for one in found.faults for node in one.nodes]
    told = "1 for each node that a fault of the nodes together names."
    yield "across_node_fault", told, [({"kind": kind, "node": node}, 1) for kind, node in named]
    links = [one.nodes for one in found.faults if one.kind == "bad link"]
    told = "1 for each two nodes that fail together, and work with others."
    yield "across_bad_link", told, [({"node": ends[0], "peer": ends[1]}, 1) for ends in links]
    told = "The median bus bandwidth of the collective over all nodes, by message size."
    yield "across_bus_bandwidth_bytes_per_second", told, _by_size(found)
    pairs: Samples = [({**which, "node": one.node}, one.gbs * 1e9) for one in found.readings]
    told = "Bus bandwidth of the node's better pair."
    yield "across_pair_bandwidth_bytes_per_second", told, pairs


def _by_size(found: FleetTogether) -> Samples:
    return [
        (
            {"operation": line["name"], "bytes": str(int(size)), "backend": found.backend or ""},
            gbs * 1e9,
        )
        for plot in found.plots[:1]
        for line in plot["lines"]
        for size, gbs in (point[:2] for point in line["points"])
    ]
