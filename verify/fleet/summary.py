"""A fleet as JSON; docs/json.md has the format. `provision fleet verify` prints it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict

from verify.fleet.nodes import NO_REPORT, STANDINGS, ClassKey, FleetNode, FleetResult, Slower
from verify.reports.compare import change

EXIT_CODES = {"unfit": 1, "slow": 1, "not-tested": 5, "no-verdict": 7, "fit": 0}


def exit_code(fleet: FleetResult) -> int:
    """That of the worst standing, of a node or of all together: 1 if one is unfit or slow, else 5
    if one was not reached, else 7 if one has no verdict, or no report that counts.
    """
    codes = {_exit_code(node) for node in fleet.nodes}
    if fleet.together is not None:
        codes.add(EXIT_CODES[fleet.together.standing])
    return next((code for code in (1, 5, 7, 0) if code in codes), 7)


def _exit_code(node: FleetNode) -> int:
    refused = node.missing is not None and node.missing.code in NO_REPORT
    return EXIT_CODES["no-verdict" if refused else node.standing]


def to_json(fleet: FleetResult) -> Dict[str, Any]:
    """The documented format."""
    places = {group: number for number, group in enumerate(fleet.classes)}
    return {
        "schema": 1,
        "image": fleet.image,
        "level": fleet.level,
        "exit_code": exit_code(fleet),
        "counts": {standing: fleet.count(standing) for standing in STANDINGS},
        "classes": [
            {"driver": group[0], "arch": group[1], "gpus": list(group[2]), "nodes": list(names)}
            for group, names in fleet.classes.items()
        ],
        "comparisons": fleet.comparisons,
        "nodes": [_node(node, places) for node in fleet.nodes],
    }


def _node(node: FleetNode, places: Dict[ClassKey, int]) -> Dict[str, Any]:
    why = node.missing
    return {
        "name": node.name,
        "standing": node.standing,
        "at_fault": node.fault.at_fault if node.fault else None,
        "class": None if node.group is None else places[node.group],
        "checks": dict(Counter(node.states)),
        "failed": [
            {
                "check": one.check,
                "status": one.status,
                "message": one.message,
                "fix": one.fix,
                "at_fault": one.fault.at_fault,
                "shared": one.shared,
            }
            for one in node.troubles
        ],
        "slow": [_slower(one) for one in node.slower],
        "code": None if why is None else why.code,
        "message": None if why is None else why.message,
        "fix": None if why is None else why.fix,
    }


def _slower(one: Slower) -> Dict[str, Any]:
    check, name, labels, _ = one.key
    return {
        "check": check,
        "name": name,
        "labels": dict(labels),
        "unit": one.unit,
        "better": one.better,
        "value": one.value,
        "median": one.median,
        "spread": one.spread,
        "change": change(one.median, one.value),
        "twins": one.twins,
    }
