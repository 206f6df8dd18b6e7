"""Runs a task on many nodes, a few at a time, and streams their answers.

Every command that asks nodes uses this: `collect` (host files) and `in_image` (a command in an
image). A node that fails, in whatever way, is an answer with its name.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from images.errors import Failure
from images.system import process
from provision.fleet.nodes.calls import NodeCall, NodeFailure
from provision.fleet.nodes.program import NodeProgram, read_answer

_MOST_OUTPUT = 12 << 20  # a report has some hundred kilobytes, a node's program sends 4 MiB of it
_CLEANUP_S = 10
_GRACE_S = 10.0  # a node gives the suite 8 seconds to say what it has found
_POLL_S = 0.5


class NodeLimits(NamedTuple):
    """How many nodes are asked at a time, and how long each may take, in seconds."""

    at_once: int
    timeout_s: float


class NodeAnswer(NamedTuple):
    """What became of a node: `value`, the JSON that its task returned, or why there is none.
    `seconds` is wall time, 0 if it was not asked.
    """

    name: str
    value: Any
    failure: NodeFailure | None
    seconds: float


def ask_nodes(
    calls: Sequence[NodeCall],
    program: Callable[[NodeCall], NodeProgram],
    limits: NodeLimits,
    tell: Callable[[NodeAnswer], None],
) -> tuple[NodeAnswer, ...]:
    """Each node's answer, in the order of the calls; `tell` gets each when it is known, in the
    calling thread. `program` makes what a node is sent: nodes may get different arguments.

    Ctrl-C, an error in `tell`, and the time limit end the calls that run: with the command of
    `NodeCall.cleanup`, too. After Ctrl-C `tell` gets the answers of those that heard of it.
    ToolMissing: ssh or srun is not installed.
    """
    answers: dict[str, NodeAnswer] = {}

    def known(answer: NodeAnswer) -> None:
        answers[answer.name] = answer
        tell(answer)

    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=limits.at_once) as pool:
        left: set[Future[NodeAnswer]] = set()
        try:
            for call in calls:
                if call.refused is not None:
                    known(NodeAnswer(call.name, None, call.refused, 0.0))
                else:
                    left.add(pool.submit(_ask, call, program, limits.timeout_s, stop))
            while left:
                done, left = wait(left, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                for one in done:
                    known(one.result())
        except BaseException as error:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for one in left if isinstance(error, KeyboardInterrupt) else ():
                if not one.cancelled() and (answer := one.result()).value is not None:
                    known(answer)  # what it has found until now
            raise
    return tuple(answers[call.name] for call in calls)


def _ask(
    call: NodeCall,
    program: Callable[[NodeCall], NodeProgram],
    timeout_s: float,
    stop: threading.Event,
) -> NodeAnswer:
    began = time.monotonic()
    sent = program(call)

    def answer(found: Any) -> NodeAnswer:  # noqa: ANN401  JSON
        seconds = time.monotonic() - began
        if isinstance(found, NodeFailure):
            return NodeAnswer(call.name, None, found, seconds)
        return NodeAnswer(call.name, found, None, seconds)

    try:
        done = process.run(
            call.argv,
            timeout_s=timeout_s,
            # the sender's own settings say nothing about a node
            env={"LC_ALL": "C", "PROVISION_DRIVER": None, "LD_LIBRARY_PATH": None},
            input=sent.text,
            apart=True,
            limit_bytes=_MOST_OUTPUT,
            grace_s=_GRACE_S,
            stopped=stop.is_set,
        )
    except process.CommandTimedOut as error:
        if call.cleanup:
            with contextlib.suppress(Failure, OSError):
                process.run(call.cleanup, timeout_s=_CLEANUP_S)
        found = read_answer(call.name, error.completed.stdout, sent.mark)
        return answer(
            found
            or NodeFailure(
                code="node-timeout",
                message=f"{call.name}: it did not answer within {timeout_s:g} s.",
                fix="See whether it hangs, or allow more time: --timeout SECONDS",
            )
        )
    if done.flooded:
        return answer(
            NodeFailure(
                code="node-failed",
                message=f"{call.name}: it sent more than {_MOST_OUTPUT >> 20} MiB and was ended.",
                fix="See what prints that much when a command runs there: a shell's start files?",
            )
        )
    found = read_answer(call.name, done.stdout, sent.mark)
    if found is not None:
        return answer(found)
    assert call.explain is not None
    return answer(call.explain(done))
