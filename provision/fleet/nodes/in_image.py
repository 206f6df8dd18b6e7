"""Runs a command in an image on many nodes, each with its own arguments.

The suite on each node, and ranks of one process group on all of them at once, are such commands:

    runs = run_in_image(calls, lambda call: ImageWork(image=..., command=suite_command("across",
                        "--rank", rank[call.name]), network="host", timeout_s=600),
                        NodeLimits(at_once=len(calls), timeout_s=660), tell=show)
    runs[0].name, runs[0].json, runs[0].failure     # its JSON, or a NodeFailure: never both
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from images.text.printable import printable
from provision.fleet.nodes.calls import NodeCall, NodeFailure, last_line
from provision.fleet.nodes.program import RUN_IN_IMAGE, node_program
from provision.fleet.nodes.work import NodeAnswer, NodeLimits, ask_nodes
from provision.fleet.on_node.image import INSIDE, WAYS

SUITE_SHM_BYTES = 1 << 30
SUITE_STACK_BYTES = 64 << 20
MARGIN_S = 30.0
"""What a node may take beyond the command: to connect, to read its facts, to end a container."""


class ImageWork(NamedTuple):
    """What one node runs.

    `command` is the argv in the container (`suite_command`). `ways`: what may run it, in this
    order. `provision`: the command of a checkout that the nodes share; it runs `provision verify
    IMAGE` with the words of `verify`, and nothing else. `expect`: the expectations without GPUs,
    given on standard input with this node's GPUs (`--expect -`); `specs`: a GPU's name -> its
    specification. `digest`: what a file or a layout directory must have on the node, the file's
    own or that of its manifest; None: it is not looked at. `network` is "none" or "host".
    `timeout_s` is for the command alone.
    """

    image: str
    command: tuple[str, ...]
    timeout_s: float
    ways: tuple[str, ...] = WAYS
    provision: str | None = None
    verify: tuple[str, ...] | None = None
    expect: Mapping[str, Any] | None = None
    specs: Mapping[str, Mapping[str, Any]] = {}
    digest: str | None = None
    network: str = "none"
    environment: Mapping[str, str] = {}
    shm_bytes: int = SUITE_SHM_BYTES
    stack_bytes: int = SUITE_STACK_BYTES


class NodeRun(NamedTuple):
    """What became of a node: `json` is the last JSON object that the command printed on separate
    lines, `code` its exit code, `stderr` the end of what it said; or `failure` says why there is
    none. `host` is the node's host file (null if it never answered), `way` what ran the image.
    """

    name: str
    json: Any
    code: int | None
    stderr: str
    way: str | None
    host: Any
    failure: NodeFailure | None
    seconds: float


def suite_command(*words: str) -> tuple[str, ...]:
    """The argv that runs the suite, or a command of it, in an image."""
    from images.layers.own import SUITE

    return ("python3", SUITE, *words)


def run_in_image(
    calls: Sequence[NodeCall],
    work: Callable[[NodeCall], ImageWork],
    limits: NodeLimits,
    tell: Callable[[NodeRun], None],
) -> tuple[NodeRun, ...]:
    """Each node's run, in the order of the calls; `tell` gets each when it is known. With
    `limits.at_once` as large as the number of calls, all run at once. Ctrl-C, and the time limit,
    end what runs on the nodes. ToolMissing: ssh or srun is not installed.
    """
    found: list[NodeRun] = []

    def known(answer: NodeAnswer) -> None:
        run = run_of(answer)
        found.append(run)
        tell(run)

    ask_nodes(calls, lambda call: node_program(RUN_IN_IMAGE, work(call)._asdict()), limits, known)
    places = {call.name: number for number, call in enumerate(calls)}
    return tuple(sorted(found, key=lambda run: places[run.name]))


def run_of(answer: NodeAnswer) -> NodeRun:
    """The run that a node's answer describes. What a node sends is checked, not trusted."""
    name, value = answer.name, answer.value
    failed = NodeRun(name, None, None, "", None, None, answer.failure, answer.seconds)
    if answer.failure is not None:
        return failed
    damaged = NodeFailure("node-failed", f"{name}: the answer is damaged.", "Ask the node again.")
    if not isinstance(value, dict):
        return failed._replace(failure=damaged)
    host, row = value.get("host"), value.get("failure")
    if isinstance(row, dict):
        code, message, fix = (printable(str(row.get(key)), limit=600) for key in _ROW)
        return failed._replace(host=host, failure=NodeFailure(code, f"{name}: {message}", fix))
    ended, out, err = value.get("code"), value.get("stdout"), value.get("stderr")
    way = value.get("way")
    known = isinstance(way, str) and way in (*WAYS, INSIDE)
    is_code = type(ended) is int and abs(ended) <= _MOST_CODE
    if not (known and is_code and isinstance(out, str) and isinstance(err, str)):
        return failed._replace(failure=damaged)
    run = failed._replace(host=host, way=way, code=ended, stderr=err)
    found = last_object(out)
    if found is None:
        said = printable(last_line(err), limit=300) or f"exit code {ended}"
        return run._replace(failure=no_result(name, said))
    error = found.get("error") if set(found) <= {"schema", "error"} else None
    if isinstance(error, dict):  # of `provision verify`
        message = f"{name}: {printable(str(error.get('message')), limit=600)}"
        fix = printable(str(error.get("fix")), limit=600)
        return run._replace(failure=NodeFailure(code="node-run-failed", message=message, fix=fix))
    return run._replace(json=found)


_MOST_CODE = 255
_ROW = ("code", "message", "fix")


def no_result(name: str, said: str) -> NodeFailure:
    """The command ended, and printed no JSON."""
    return NodeFailure(
        code="node-no-report",
        message=f"{name}: the suite ended there without a report: {said}",
        fix="Run it on the node by hand: docker run --rm --gpus all IMAGE verify",
    )


def last_object(text: str) -> dict[str, Any] | None:
    """The last JSON object that begins and ends on separate lines: an image's entrypoint may print
    others before it.
    """
    text = f"\n{text}\n"
    end = text.rfind("\n}\n")
    start = text.rfind("\n{\n", 0, end + 1)
    if end < 0 or start < 0:
        return None
    try:
        found = json.loads(text[start : end + 2])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
