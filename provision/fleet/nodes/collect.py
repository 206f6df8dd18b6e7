"""Runs the calls, a few at a time, and writes a host file for each node that answers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Literal, NamedTuple

from images.errors import Failure
from images.system import process
from images.text.printable import printable
from provision.errors import BadInputError, HostFileError
from provision.fleet.hostfiles import ENDING
from provision.fleet.nodes.calls import NodeCall, NodeFailure
from provision.fleet.nodes.program import NodeProgram, read_answer
from provision.model.facts import host_to_json, read_host_file
from provision.model.plan import HostFacts
from provision.output.files import write_whole

_MOST_OUTPUT = 4 << 20
_CLEANUP_S = 10
_GRACE_S = 1.0


class NodeReading(NamedTuple):
    """What became of a node. "kept": it was not asked, as it has a host file. `path` is its host
    file: of a failed node that of an earlier run, if there is one. `seconds` is wall time.
    """

    name: str
    status: Literal["read", "kept", "failed"]
    path: Path | None
    failure: NodeFailure | None
    seconds: float


class CollectLimits(NamedTuple):
    """How many nodes are read at a time, and how long each may take, in seconds."""

    at_once: int
    timeout_s: float


def collect(
    calls: Sequence[NodeCall],
    program: NodeProgram,
    folder: Path,
    limits: CollectLimits,
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

    todo = []
    for call in calls:
        path = folder / f"{call.name}{ENDING}"
        before = path if _is_host_file(path) else None
        if before is not None and not again:
            known(NodeReading(call.name, "kept", before, None, 0.0))
        elif call.refused is not None:
            known(NodeReading(call.name, "failed", before, call.refused, 0.0))
        else:
            todo.append(call)
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=limits.at_once) as pool:
        left: set[Future[NodeReading]] = {
            pool.submit(_read, call, program, folder, limits.timeout_s, stop) for call in todo
        }
        try:
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for one in done:
                    known(one.result())
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return tuple(readings[call.name] for call in calls)


def _is_host_file(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        read_host_file(str(path))
    except HostFileError:
        return False
    return True


def _read(
    call: NodeCall, program: NodeProgram, folder: Path, timeout_s: float, stop: threading.Event
) -> NodeReading:
    began = time.monotonic()
    answer = _ask(call, program, timeout_s, stop)
    path = folder / f"{call.name}{ENDING}"
    seconds = time.monotonic() - began
    if isinstance(answer, NodeFailure):
        before = path if _is_host_file(path) else None
        return NodeReading(call.name, "failed", before, answer, seconds)
    try:
        write_whole(path, f"{json.dumps(host_to_json(answer), indent=2)}\n".encode())
    except OSError as error:
        shown = printable(str(path), limit=100)
        raise BadInputError(
            f"{shown} cannot be written: {error.strerror}.",
            fix="Name a directory that you may write to: --output DIR",
        ) from error
    return NodeReading(call.name, "read", path, None, seconds)


def _ask(
    call: NodeCall, program: NodeProgram, timeout_s: float, stop: threading.Event
) -> HostFacts | NodeFailure:
    try:
        done = process.run(
            call.argv,
            timeout_s=timeout_s,
            # the sender's own settings say nothing about a node
            env={"LC_ALL": "C", "PROVISION_DRIVER": None, "LD_LIBRARY_PATH": None},
            input=program.text,
            apart=True,
            limit_bytes=_MOST_OUTPUT,
            grace_s=_GRACE_S,
            stopped=stop.is_set,
        )
    except process.CommandTimedOut as error:
        if call.cleanup:
            with contextlib.suppress(Failure, OSError):
                process.run(call.cleanup, timeout_s=_CLEANUP_S)
        found = read_answer(call.name, error.completed.stdout, program.mark)
        return found or NodeFailure(
            code="node-timeout",
            message=f"{call.name}: it did not answer within {timeout_s:g} s.",
            fix="See whether it hangs, or allow more time: --timeout SECONDS",
        )
    found = read_answer(call.name, done.stdout, program.mark)
    if found is not None:
        return found
    assert call.explain is not None
    return call.explain(done)
