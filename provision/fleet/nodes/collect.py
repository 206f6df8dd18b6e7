"""Reads the nodes, and writes a host file for each that answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from images.errors import Failure, refuse_full
from images.text.printable import printable
from provision.cli.hostfiles import ENDING
from provision.errors import BadInputError, HostFileError
from provision.fleet.nodes.calls import NodeCall, NodeFailure
from provision.fleet.nodes.program import NodeProgram
from provision.fleet.nodes.work import NodeAnswer, NodeLimits, ask_nodes
from provision.model.facts import host_to_json, parse_host, read_host_file
from provision.model.plan import HostFacts
from provision.output.files import write_whole


class NodeReading(NamedTuple):
    """What became of a node. "kept": it was not asked, as it has a host file. `path` is its host
    file: of a failed node that of an earlier run, if there is one. `seconds` is wall time.
    """

    name: str
    status: Literal["read", "kept", "failed"]
    path: Path | None
    failure: NodeFailure | None
    seconds: float


def collect(
    calls: Sequence[NodeCall],
    program: NodeProgram,
    folder: Path,
    limits: NodeLimits,
    *,
    again: bool,
    tell: Callable[[NodeReading], None],
) -> tuple[NodeReading, ...]:
    """Every node's result, in the order of the calls; `tell` gets each when it is known. A host
    file is complete or not there, and Ctrl-C leaves those that are. ToolMissing: ssh or srun is
    not installed.
    """
    readings: dict[str, NodeReading] = {}

    def known(reading: NodeReading) -> None:
        readings[reading.name] = reading
        tell(reading)

    def keep(answer: NodeAnswer) -> None:
        path = folder / f"{answer.name}{ENDING}"
        facts = answer.failure or facts_of(answer.name, answer.value)
        if isinstance(facts, NodeFailure):
            before = path if _is_host_file(path) else None
            known(NodeReading(answer.name, "failed", before, facts, answer.seconds))
        else:
            write_answer(path, facts)
            known(NodeReading(answer.name, "read", path, None, answer.seconds))

    todo = []
    for call in calls:
        path = folder / f"{call.name}{ENDING}"
        if not again and _is_host_file(path):
            known(NodeReading(call.name, "kept", path, None, 0.0))
        else:
            todo.append(call)
    ask_nodes(todo, lambda _: program, limits, keep)
    return tuple(readings[call.name] for call in calls)


def facts_of(name: str, value: Any) -> HostFacts | NodeFailure:  # noqa: ANN401  JSON
    """A node's facts, from the host file that it sent."""
    try:
        return parse_host(json.dumps(value), label=name)._replace(label=name)
    except (ValueError, KeyError, TypeError, Failure) as error:
        return NodeFailure(
            code="node-failed",
            message=f"{name}: the answer is damaged: {printable(str(error), limit=200)}",
            fix="Ask the node again.",
        )


def write_answer(path: Path, facts: HostFacts) -> None:
    """A host file, whole. BadInputError, DiskFullError: it cannot be written."""
    write_in(path, f"{json.dumps(host_to_json(facts), indent=2)}\n".encode())


def write_in(path: Path, data: bytes) -> None:
    """A file of --output, whole. BadInputError, DiskFullError: it cannot be written."""
    try:
        write_whole(path, data)
    except OSError as error:
        shown = printable(str(path), limit=100)
        refuse_full(error, shown)
        raise BadInputError(
            f"{shown} cannot be written: {error.strerror}.",
            fix="Name a directory that you may write to: --output DIR",
        ) from error


def _is_host_file(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        read_host_file(str(path))
    except HostFileError:
        return False
    return True
