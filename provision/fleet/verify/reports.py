"""Runs the suite on the nodes, and keeps a report for each that has one: DIR/NODE.json.

The node's host file is kept, too (DIR/hosts/NODE.json), so that a report can be judged again with
the GPUs that the node has. A file is complete or not there: a run that was killed goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from images.errors import Failure
from provision.errors import HostFileError
from provision.fleet.nodes.calls import NodeCall, NodeFailure
from provision.fleet.nodes.collect import facts_of, write_answer, write_in
from provision.fleet.nodes.in_image import NodeRun, no_result, run_in_image
from provision.fleet.nodes.work import NodeLimits
from provision.fleet.on_node.image import expected_gpus
from provision.fleet.verify.order import FleetOrder
from provision.model.facts import read_host_file
from provision.model.plan import HostFacts
from provision.verification.suite import report_bytes

HOSTS = "hosts"
_MOST_BYTES = 64 << 20


class NodeReport(NamedTuple):
    """What became of a node. "kept": it was not asked, as it has a report of this image and level.
    `claimed` is the verdict that the report has; it is judged at the end. `code`: the suite's exit
    code, null if it is not known any more.
    """

    name: str
    status: Literal["tested", "kept", "failed"]
    claimed: str | None
    way: str | None
    code: int | None
    failure: NodeFailure | None
    seconds: float


def verify_nodes(
    calls: Sequence[NodeCall],
    order: FleetOrder,
    folder: Path,
    limits: NodeLimits,
    *,
    again: bool,
    tell: Callable[[NodeReport], None],
) -> tuple[NodeReport, ...]:
    """Every node's result, in the order of the calls; `tell` gets each when it is known.
    BadInputError: a report cannot be written; what runs is then ended, as by Ctrl-C.
    """
    found: dict[str, NodeReport] = {}

    def known(one: NodeReport) -> None:
        found[one.name] = one
        tell(one)

    def keep(run: NodeRun) -> None:
        known(_keep(run, folder))

    todo = []
    for call in calls:
        claimed = None if again else kept_verdict(folder / f"{call.name}.json", order)
        if claimed is None:
            todo.append(call)
        else:
            known(NodeReport(call.name, "kept", claimed, None, None, None, 0.0))
    if todo:
        (folder / HOSTS).mkdir(exist_ok=True)
        work = order.work()
        run_in_image(todo, lambda _: work, limits, keep)
    return tuple(found[call.name] for call in calls)


def kept_verdict(path: Path, order: FleetOrder) -> str | None:
    """The verdict of an earlier report of this image and level; None: there is none."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        report = json.loads(path.read_bytes())
        same = report["level"] == order.level and report["environment"]["image"] == order.image_id
        return str(report["verdict"]) if same and isinstance(report["checks"], list) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _keep(run: NodeRun, folder: Path) -> NodeReport:
    """Write what a node sent, and say what it is."""
    failed = NodeReport(run.name, "failed", None, run.way, run.code, run.failure, run.seconds)
    facts = None if run.host is None else facts_of(run.name, run.host)
    if isinstance(facts, HostFacts):
        write_answer(folder / HOSTS / f"{run.name}.json", facts)
    path = folder / f"{run.name}.json"
    if run.failure is not None or not {"verdict", "checks"} <= run.json.keys():
        # an earlier report says nothing about today
        path.unlink(missing_ok=True)
        why = run.failure or no_result(run.name, "it printed other JSON")
        return failed._replace(failure=why)
    try:
        data = report_bytes(run.json)
    except (ValueError, RecursionError):
        path.unlink(missing_ok=True)
        return failed._replace(failure=no_result(run.name, "its numbers are not finite"))
    write_in(path, data)
    return failed._replace(status="tested", claimed=str(run.json["verdict"]))


def list_rows(nodes: Sequence[NodeReport], order: FleetOrder, folder: Path) -> list[dict[str, Any]]:
    """The rows of LIST for `verify fleet`."""
    return [_list_row(one, order, folder) for one in nodes]


def _list_row(one: NodeReport, order: FleetOrder, folder: Path) -> dict[str, Any]:
    if one.failure is not None:
        return {"node": one.name, "failure": one.failure._asdict()}
    facts: HostFacts | None = None
    try:
        facts = read_host_file(str(folder / HOSTS / f"{one.name}.json"))
    except (HostFileError, Failure):
        facts = None
    gpus = None if facts is None else expected_gpus(facts.gpus, order.specs)
    return {
        "node": one.name,
        "failure": None,
        "report": str((folder / f"{one.name}.json").absolute()),  # the judge runs elsewhere
        "expect": {**order.expect, "gpus": gpus},
        "code": one.code,
    }
