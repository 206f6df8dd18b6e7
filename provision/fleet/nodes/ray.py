"""Nodes of a Ray cluster: one driver lists them, and runs a task on each.

Ray is the user's: the driver (`ray_driver`) runs on the Python that the program `ray` uses.
https://docs.ray.io/en/latest/ray-core/api/doc/ray.nodes.html; the messages are those of Ray 2.60.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import selectors
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from images.system.process import Completed, ToolMissing, describe_exit, environment, which
from images.text.printable import printable
from provision.errors import BadInputError, Exit, IndexUnreachableError
from provision.fleet.nodes.calls import NodeCall, NodeFailure, last_line
from provision.fleet.nodes.ray_call import BROKEN, FAILED, LOST
from provision.model.request import quoted

START_S = 90
_END_S = 25
_SPARE_S = 10
"""How much later than its call a task ends by itself, if nothing else could cancel it."""
_ADDRESS = re.compile(r"(?:ray://)?(?:[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_NOT_FOR_A_NAME = re.compile(r"[^A-Za-z0-9._-]")
_LEFT = frozenset({1, 4})
"""Why a node ended, by gcs.proto's NodeDeathInfo: ended by `ray stop`, or as the autoscaler did not
need it. The others are unexpected, or preempted.
"""
_HERE = Path(__file__).parent


class RayError(IndexUnreachableError):
    """The Ray cluster does not answer, or Ray fails on this machine."""

    code = "ray-unreachable"
    exit_code = Exit.UNREACHABLE


class RayNode(NamedTuple):
    """One node, as Ray lists it. `label` is the name that it was started with, else its address.
    `reason` is a number of NodeDeathInfo, 0 if unknown; `message` says why it is dead.
    """

    id: str
    alive: bool
    host: str
    address: str
    port: int
    label: str
    reason: int
    message: str

    @property
    def identity(self) -> tuple[str, str, str]:
        """What a node has again when it is started again."""
        return self.host, self.address, self.label


class RayCluster(NamedTuple):
    """The nodes, and the socket at which their programs are given to the driver."""

    nodes: tuple[RayNode, ...]
    socket: Path


def parse_address(text: str) -> str:
    """The address of "ray[:ADDRESS]", for ray.init. BadInputError: it is none."""
    if text in {"", "auto"}:
        return "auto"
    if _ADDRESS.fullmatch(text):
        return text
    raise BadInputError(
        f"--on ray:{quoted(text)} is not the address of a cluster.",
        fix="Write HOST:6379 on a node of the cluster, ray://HOST:10001 elsewhere (the address of "
        "the dashboard does not serve), or on a node only: --on ray",
    )


def find_own_cluster(proc: Path = Path("/proc")) -> str:
    """The address of the cluster that runs here. As ray.init(address="auto") finds it: by
    RAY_ADDRESS, by the raylets that run, or by the file of the last `ray start`; but nothing that
    another user than root started or wrote counts: our driver unpickles what a cluster sends.
    RayError: there is none.
    """
    named = os.environ.get("RAY_ADDRESS", "")
    if named not in {"", "auto"}:
        return named
    running = _raylets(proc)
    own = sorted({address for user, address in running if user in {0, os.geteuid()}})
    last = _last_started()
    if own:
        return last if last in own else own[0]
    if last:
        return last
    other = next((f" (user {user} has one)" for user, _ in running), "")
    raise RayError(
        f"No Ray cluster of yours was found on this machine{other}.",
        fix="Name the cluster: --on ray:HOST:6379",
    )


def _raylets(proc: Path) -> list[tuple[int, str]]:
    """The user of each raylet that runs here, and the address of its cluster."""
    found = []
    for folder in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            flag = next((word for word in words if word.startswith("--gcs-address=")), "")
            address = flag.partition("=")[2]
            if "raylet" in os.path.basename(words[0]) and _ADDRESS.fullmatch(address):  # noqa: PTH119
                found.append((folder.stat().st_uid, address))
    return found


def _last_started() -> str:
    """The address that `ray start` left in its file; "": there is no file of this user's or root's.
    Ray's own folder may be written by everybody.
    """
    place = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  Ray's
    with contextlib.suppress(OSError):
        file = os.open(Path(place, "ray/ray_current_cluster"), os.O_RDONLY | os.O_NOFOLLOW)
        with open(file, encoding="utf-8", errors="replace") as opened:  # noqa: PTH123
            status = os.fstat(file)
            text = opened.read(200).strip()
        own = status.st_uid in {0, os.geteuid()} and not status.st_mode & stat.S_IWOTH
        return text if own and _ADDRESS.fullmatch(text) else ""
    return ""


def find_ray_python() -> str:
    """The Python of the program `ray`. ToolMissing: there is none on PATH, or its Python is not
    found.
    """
    program = which("ray")
    if program is None:
        raise ToolMissing(
            "The program ray is needed and was not found on this host.",
            fix="Activate the environment that has Ray, in the version of the cluster.",
        )
    with contextlib.suppress(OSError):
        first = Path(program).read_bytes()[:4096].split(b"\n", 1)[0].decode("utf-8", "replace")
        words = first[2:].split() if first.startswith("#!") else []
        if words and os.path.basename(words[0]) == "env":  # noqa: PTH119
            words = [which(words[-1]) or ""]
        if words and re.match(r"python[0-9.]*$", Path(words[0]).name) and Path(words[0]).is_file():
            return words[0]
    # pip and uv write a line for /bin/sh where the path of the Python is long
    beside = Path(program).resolve().parent / "python3"
    if beside.is_file():
        return str(beside)
    shown = printable(program, limit=200)
    raise ToolMissing(
        f"{shown}: the Python that it uses was not found.",
        fix="Activate the environment that has Ray.",
    )


@contextlib.contextmanager
def ray_cluster(address: str) -> Iterator[RayCluster]:
    """The cluster, with a driver that runs as long as the block. RayError: it does not answer, or
    there is none for "auto". ToolMissing: there is no ray. BadInputError: it has no nodes.
    """
    python = find_ray_python()
    address = find_own_cluster() if address == "auto" else address
    parent = None if len(tempfile.gettempdir()) < 60 else "/tmp"  # noqa: S108  a socket's path is short
    with tempfile.TemporaryDirectory(prefix="provision-ray-", dir=parent) as name:
        place = Path(name)
        driver = _start(python, address, place)
        try:
            nodes = parse_nodes(_first_answer(driver, place))
            if not nodes:
                raise BadInputError("Ray has no nodes.", fix="See them: ray status")
            yield RayCluster(nodes, place / "s")
        finally:
            _end(driver.process)


class _Driver(NamedTuple):
    process: subprocess.Popen[bytes]
    mark: str


def _start(python: str, address: str, place: Path) -> _Driver:
    mark = f"gpu-provision-{secrets.token_hex(8)} "
    text = (_HERE / "ray_driver.py").read_text(encoding="utf-8")
    # Ray's own answer to `uv run` would be to install our environment on every node
    env = environment({"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"})
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [python, "-c", text, mark, address, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=place,
            env=env,
            start_new_session=True,
        )
    return _Driver(process, mark)


def _first_answer(driver: _Driver, place: Path) -> list[dict[str, Any]]:
    """The nodes as the driver lists them."""
    fix = "See that the cluster is up (ray status), and that this Ray and Python are its own."
    out, ended = _read(driver, START_S)
    found = re.search(rf"^{re.escape(driver.mark)}(.*)$", out, re.MULTILINE)
    if found is not None:
        answer: dict[str, Any] = json.loads(found[1])
        if "nodes" in answer:
            return list(answer["nodes"])
        raise RayError(f"Ray: {printable(str(answer['error']), limit=400)}", fix=fix)
    if not ended:
        raise RayError(f"Ray did not answer within {START_S} s.", fix=fix)
    log = (place / "log").read_text(encoding="utf-8", errors="replace")
    code = driver.process.wait(timeout=_END_S)
    said = printable(last_line(log), limit=300) or describe_exit(code)
    raise RayError(f"Ray failed: {said}", fix=fix)


def _read(driver: _Driver, limit_s: float) -> tuple[str, bool]:
    """Standard output, and whether it was closed within the limit."""
    assert driver.process.stdout is not None
    deadline, data = time.monotonic() + limit_s, b""
    with selectors.DefaultSelector() as selector:
        selector.register(driver.process.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if selector.select(left):
                more = os.read(driver.process.stdout.fileno(), 65536)
                data += more
                if not more:
                    return data.decode("utf-8", "replace"), True
    return data.decode("utf-8", "replace"), False


def _end(process: subprocess.Popen[bytes]) -> None:
    """The driver cancels what still runs and leaves the cluster; at its limit it is killed."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(timeout=_END_S)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


def parse_nodes(listed: Sequence[dict[str, Any]]) -> tuple[RayNode, ...]:
    """The nodes: those that are alive, and those that died unexpectedly and did not come back."""
    nodes = [RayNode(**one) for one in listed]
    alive = {one.identity for one in nodes if one.alive}
    dead: dict[tuple[str, str, str], RayNode] = {}
    for one in nodes:
        if not one.alive and one.reason not in _LEFT and one.identity not in alive:
            dead[one.identity] = one
    return (*(one for one in nodes if one.alive), *dead.values())


def ray_calls(cluster: RayCluster, timeout_s: float) -> tuple[NodeCall, ...]:
    """The calls. A node has the name of its host, or the name that it was started with; where
    several have that name, the address is added, then the port.
    """
    names = node_names(cluster.nodes)
    script = str(_HERE / "ray_call.py")
    calls = []
    for name, node in sorted(zip(names, cluster.nodes, strict=True)):
        if node.alive:
            seconds = f"{timeout_s + _SPARE_S:g}"
            argv = (sys.executable, "-I", script, str(cluster.socket), node.id, seconds)
            calls.append(NodeCall(name, argv, partial(explain_ray, name)))
        else:
            calls.append(NodeCall(name, refused=_dead(name, node)))
    return tuple(calls)


def node_names(nodes: Sequence[RayNode]) -> tuple[str, ...]:
    """Unique names, which are also names of files."""
    names = [
        (one.host if one.label in {"", one.address} and one.host else one.label or one.address)[:99]
        for one in nodes
    ]
    for more in (lambda one: one.address, lambda one: str(one.port), lambda one: one.id):
        count = Counter(_file_name(one) for one in names)
        names = [
            f"{name}-{more(node)}" if count[_file_name(name)] > 1 else name
            for name, node in zip(names, nodes, strict=True)
        ]
    return tuple(_file_name(one) for one in names)


def _file_name(text: str) -> str:
    return _NOT_FOR_A_NAME.sub("_", text)[:200].lstrip(".-") or "_"


def _dead(name: str, node: RayNode) -> NodeFailure:
    why = printable(node.message, limit=200).rstrip(".")
    return NodeFailure(
        code="node-out-of-service",
        message=f"{name}: Ray lists it as dead{f': {why}' if why else ''}.",
        fix="Start it again (ray start on the node), or ignore it: Ray lists a dead node until "
        "the head is started again.",
    )


def explain_ray(name: str, done: Completed) -> NodeFailure:
    """Why a call gave no answer, by what Ray or the program said."""
    if done.code == FAILED and (lost := re.search(rf"^{LOST}(.*)", done.output, re.MULTILINE)):
        return NodeFailure(
            code="node-lost",
            message=f"{name}: it left the cluster, or its worker died: "
            f"{printable(lost[1], limit=300)}",
            fix="See whether it is up: ray status. A worker also dies if memory runs out.",
        )
    said = printable(last_line(done.output), limit=300).removeprefix(BROKEN)
    return NodeFailure(
        code="node-failed",
        message=f"{name}: {said or describe_exit(done.code)}",
        fix="Run the same on the node by hand: python3 --version",
    )
