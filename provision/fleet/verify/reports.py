"""Runs the suite on the nodes, and keeps a report for each that has one: DIR/NODE.json.

The node's host file is kept, too (DIR/hosts/NODE.json), so that a report can be judged again with
the GPUs that the node has. A file is complete or not there: a run that was killed goes on. A report
that DIR cannot hold is judged all the same: it is in a spare directory until the run ends.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from images.errors import DiskFullError, Failure
from provision.errors import BadInputError, HostFileError
from provision.fleet.nodes.calls import NodeCall, NodeFailure
from provision.fleet.nodes.collect import facts_of, write_answer, write_in
from provision.fleet.nodes.in_image import NodeRun, no_result, run_in_image
from provision.fleet.nodes.work import NodeLimits
from provision.fleet.on_node.image import expected_gpus
from provision.fleet.verify.order import FleetOrder
from provision.model.facts import read_host_file
from provision.model.plan import HostFacts
from provision.verification.suite import BURN, VERDICTS, interruption, report_bytes

HOSTS = "hosts"
_NOT_KEPT = (BadInputError, DiskFullError)
_MOST_BYTES = 4 << 20  # a report has some hundred kilobytes


class NodeReport(NamedTuple):
    """What became of a node. "kept": it was not asked, as it has a report of this image and level.
    Its report is judged at the end: until then, what it says is a claim. `way`: what ran the image,
    null if nothing did. `code`: the suite's exit code, null if it is not known any more.
    `place`: the directory that has the report; `unsaved`: why that is not the one that was named.
    """

    name: str
    status: Literal["tested", "kept", "failed"]
    way: str | None
    code: int | None
    failure: NodeFailure | None
    seconds: float
    place: Path | None = None
    unsaved: str = ""


def verify_nodes(
    calls: Sequence[NodeCall],
    order: FleetOrder,
    folder: Path,
    limits: NodeLimits,
    *,
    spare: Path,
    again: bool,
    tell: Callable[[NodeReport], None],
) -> tuple[NodeReport, ...]:
    """Every node's result, in the order of the calls; `tell` gets each when it is known. `spare`
    gets the reports that `folder` cannot hold.
    """
    found: dict[str, NodeReport] = {}

    def known(one: NodeReport) -> None:
        found[one.name] = one
        tell(one)

    def keep(run: NodeRun) -> None:
        known(_keep(run, folder, spare))

    todo = []
    for call in calls:
        if again or not has_report(folder / f"{call.name}.json", order):
            todo.append(call)
        else:
            known(NodeReport(call.name, "kept", None, None, None, 0.0, folder))
    if todo:
        work = order.work()
        run_in_image(todo, lambda _: work, limits, keep)
    return tuple(found[call.name] for call in calls)


def has_report(path: Path, order: FleetOrder) -> bool:
    """Whether it is an earlier report of this image and level, and of as many minutes of load."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return False
        report = json.loads(path.read_bytes())
        same = report["level"] == order.level and report["environment"]["image"] == order.image_id
        loaded = [row["measured"].get("minutes") for row in report["checks"] if row["id"] == BURN]
        same = same and order.burn_min in (None, *loaded) and not interruption(report)
        return same and report["verdict"] in VERDICTS and isinstance(report["checks"], list)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _keep(run: NodeRun, folder: Path, spare: Path) -> NodeReport:
    """Write what a node sent, and say what it is."""
    failed = NodeReport(run.name, "failed", run.way, run.code, run.failure, run.seconds)
    facts = None if run.host is None else facts_of(run.name, run.host)
    facts = facts if isinstance(facts, HostFacts) else None
    path = folder / f"{run.name}.json"
    data = run.failure or _report_of(run)
    if isinstance(data, NodeFailure):
        # an earlier report says nothing about today
        _remove(path)
        with contextlib.suppress(*_NOT_KEPT):
            _write(run.name, facts, None, folder)
        return failed._replace(failure=data)
    tested = failed._replace(status="tested")
    try:
        _write(run.name, facts, data, folder)
        return tested._replace(place=folder)
    except _NOT_KEPT as error:
        _remove(path)
        why = _unsaved(run.name, error.message)
    try:
        _write(run.name, facts, data, spare)
    except _NOT_KEPT:
        return failed._replace(failure=why)
    return tested._replace(place=spare, unsaved=why.message)


def _report_of(run: NodeRun) -> bytes | NodeFailure:
    """The report that a node sent, as a file has it; or why it is not one."""
    if run.json.get("verdict") not in VERDICTS or "checks" not in run.json:
        return no_result(run.name, "it printed other JSON")
    try:
        data = report_bytes(run.json)
    except (ValueError, RecursionError):
        return no_result(run.name, "its numbers are not finite")
    if len(data) > _MOST_BYTES:
        return no_result(run.name, f"its report has more than {_MOST_BYTES >> 20} MiB")
    return data


def _write(name: str, facts: HostFacts | None, data: bytes | None, folder: Path) -> None:
    """What a node sent. BadInputError, DiskFullError: it cannot be written."""
    if facts is not None:
        with contextlib.suppress(OSError):  # the file says it
            (folder / HOSTS).mkdir(exist_ok=True)
        write_answer(folder / HOSTS / f"{name}.json", facts)
    if data is not None:
        write_in(folder / f"{name}.json", data)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


UNSAVED_FIX = "Free space there, then repeat the command: it tests nodes without a report again."


def _unsaved(name: str, why: str) -> NodeFailure:
    return NodeFailure(
        code="report-not-kept",
        message=f"{name}: it was tested, and its report is not kept: {why}",
        fix=UNSAVED_FIX,
    )


def list_rows(nodes: Sequence[NodeReport], order: FleetOrder) -> list[dict[str, Any]]:
    """The rows of LIST for `verify fleet`."""
    return [_list_row(one, order) for one in nodes]


def _list_row(one: NodeReport, order: FleetOrder) -> dict[str, Any]:
    if one.failure is not None or one.place is None:
        why = one.failure or no_result(one.name, "it has no report")
        return {"node": one.name, "failure": why._asdict()}
    facts: HostFacts | None = None
    try:
        facts = read_host_file(str(one.place / HOSTS / f"{one.name}.json"))
    except (HostFileError, Failure):
        facts = None
    gpus = None if facts is None else expected_gpus(facts.gpus, order.specs)
    return {
        "node": one.name,
        "failure": None,
        "report": str((one.place / f"{one.name}.json").absolute()),  # the judge runs elsewhere
        "expect": {**order.expect, "gpus": gpus},
        "code": one.code,
    }
