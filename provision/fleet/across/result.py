"""Tests nodes together, finds out which spoil it, and says so: the result as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from provision.errors import Exit
from provision.fleet.across.groups import AcrossError, AcrossOrder, GroupRun, RoundRun, Rounds
from provision.fleet.across.search import AcrossDiagnosis, Group, diagnose
from provision.fleet.nodes.calls import NodeCall

_ENOUGH = 4
"""Nodes of which pairs are compared: each has two partners, and there are two pairs at a time."""


def verify_across(
    calls: Sequence[NodeCall], order: AcrossOrder, tell: Callable[[RoundRun], None]
) -> dict[str, Any]:
    """The result for these nodes; docs/json.md has the format. Nodes that cannot be asked are
    named, and the others tested. AcrossError: fewer than two can be asked, or the nodes do not
    belong together. ToolMissing: ssh or srun is not installed.
    """
    refused = {call.name: call.refused.message for call in calls if call.refused is not None}
    names = tuple(call.name for call in calls if call.refused is None)
    if len(names) < 2:
        raise AcrossError(
            f"Collectives across nodes need two nodes; of {len(calls)} only {len(names)} can be "
            "asked.",
            fix="See the nodes' state, or test the node alone: provision fleet verify.",
        )
    rounds = Rounds({call.name: call for call in calls}, order, tell)
    found = diagnose(names, rounds.run)
    alive = tuple(name for name in names if name not in found.named)
    works = not (found.sick or found.links or found.parts or found.suspects or found.together)
    if works and len(alive) >= _ENOUGH:
        for pairs in neighbours(alive):
            rounds.run(pairs)
    return to_json(order, found, rounds.done, refused)


def neighbours(nodes: Sequence[str]) -> tuple[list[Group], list[Group]]:
    """Two rounds of pairs in which each node has both its neighbours on a ring; of an odd number,
    two nodes have one.
    """
    shifted = [*nodes[1:], nodes[0]]
    return _pairs(nodes), _pairs(shifted)


def _pairs(nodes: Sequence[str]) -> list[Group]:
    return list(zip(nodes[::2], nodes[1::2], strict=False))


def to_json(
    order: AcrossOrder,
    found: AcrossDiagnosis,
    rounds: Sequence[RoundRun],
    refused: Mapping[str, str],
) -> dict[str, Any]:
    """The result."""
    whole = _whole(rounds)
    backend = None if whole is None or whole.report is None else whole.report.get("backend")
    named = {**refused, **found.named}
    wrong = found._replace(named=named)
    status = "fail" if not wrong.sound else "pass"
    return {
        "image": order.image,
        "status": status,
        "backend": backend,
        "named": [{"node": node, "message": why} for node, why in named.items()],
        "sick": list(found.sick),
        "links": [list(link) for link in found.links],
        "parts": [list(part) for part in found.parts],
        "suspects": list(found.suspects),
        "together": found.together,
        "complete": found.complete,
        "rounds": [_round_json(one) for one in rounds],
        "readings": readings(rounds),
        "report": None if whole is None else whole.report,
        "exit_code": exit_code(status, backend, rounds),
    }


def _whole(rounds: Sequence[RoundRun]) -> GroupRun | None:
    """The run of the most nodes that worked, else the first."""
    runs = [run for one in rounds for run in one.groups]
    worked = [run for run in runs if run.ok]
    return max(worked, key=lambda run: len(run.nodes)) if worked else next(iter(runs), None)


def exit_code(status: str, backend: object, rounds: Sequence[RoundRun]) -> int:
    """1: something is wrong; 5: no node answered; 7: nothing is wrong, and NCCL was not tested."""
    if all(run.report is None for one in rounds for run in one.groups):
        return Exit.UNREACHABLE
    if status == "fail":
        return Exit.UNFIT
    return Exit.DONE if backend == "nccl" else Exit.NO_VERDICT


def _round_json(one: RoundRun) -> dict[str, Any]:
    groups = [
        {
            "nodes": list(run.nodes),
            "ok": run.ok,
            "code": run.code,
            "message": run.message or None,
            "gbs": run.gbs,
        }
        for run in one.groups
    ]
    return {"groups": groups, "seconds": round(one.seconds, 1)}


def readings(rounds: Sequence[RoundRun]) -> list[dict[str, Any]]:
    """Each node's best bus bandwidth in a pair, in GB/s, and its share of the median of all nodes;
    the slowest first. There is no source for how much of it is too little.
    """
    best: dict[str, float] = {}
    for run in (run for one in rounds for run in one.groups):
        gbs = run.gbs
        if len(run.nodes) == 2 and run.ok and gbs is not None:
            for node in run.nodes:
                best[node] = max(gbs, best.get(node, 0.0))
    if len(best) < _ENOUGH:
        return []
    usual = statistics.median(best.values())
    rows = [{"node": n, "gbs": gbs, "share": gbs / usual} for n, gbs in best.items()]
    return sorted(rows, key=lambda row: (row["gbs"], row["node"]))
