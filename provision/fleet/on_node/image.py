"""The task of `fleet verify`: runs a command in an image on this node, by what is installed here.

Keys of the order: `image`, `ways` (tried in this order), `provision` (its command, or null),
`command` (argv in the container), `verify` (the words of `provision verify`, or null), `expect`
(the expectations without GPUs, or null) and `specs` (a GPU's name -> its specification), `digest`
(of the file or the layout that `image` names by its path, or null), `network` ("none" or "host"),
`shm_bytes`, `stack_bytes`, `environment`, `timeout_s` (of the command alone).

The answer: `host` (the node's host file), `way`, `code`, `stdout` and `stderr` (its end) of the
command; or `host` and `failure` (`code`, `message`, `fix`).
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from images.engines import run_arguments
from images.errors import Failure
from images.system import process
from images.system.hashed_file import check_unchanged, hash_file
from provision.fleet.on_node.identity import LAYOUT, layout_has
from provision.host.gpu_request import gpus_to_request
from provision.host.probe import detect
from provision.model.facts import host_to_json
from provision.model.plan import Gpu, HostFacts

WAYS = ("provision", "docker", "podman", "apptainer", "enroot")
"""What can run an image on a node, in the order in which it is looked for."""
INSIDE = "inside"
"""The way where this program itself runs in the image: in a pod of Kubernetes."""
APPTAINERS = ("apptainer", "singularity")

_ASK_S = 60.0
_MOST_OUTPUT = 4 << 20
_STDERR = 20_000
_BEAT_S = 2.0
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_ENDING_S = 8.0
"""How long a command may take to say what it has found: the suite gives itself 6 seconds."""
_NOT_STARTED = frozenset({125, 126, 127})
_LIMIT = re.compile("rlimit|ulimit", re.IGNORECASE)
_NO_IMAGE = re.compile(
    "manifest unknown|not found: manifest|pull access denied|No such image|image not known|"
    "requested access to the resource is denied|no such host|initializing source|"
    "Unable to find image|unauthorized|FATAL: .*(?:pull|fetch|conveyor)",
    re.IGNORECASE,
)


class NodeRunError(Exception):
    """Why the image could not run here: stable code, sentence without the node's name, fix."""

    def __init__(self, *, code: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.row = {"code": code, "message": message, "fix": fix}


def run_in_image(order: Mapping[str, Any]) -> dict[str, Any]:
    """Run the order's command, and return the answer."""
    facts = detect()
    order = {**order, "deadline": time.monotonic() + order["timeout_s"]}
    answer: dict[str, Any] = {"host": host_to_json(facts)}
    caller = Caller()
    with contextlib.suppress(ValueError):  # in a thread, which gets no signals
        for number in _SIGNALS:  # as Slurm ends a job, and Kubernetes a pod
            signal.signal(number, lambda number, _: caller.end(number))
    try:
        answer.update(_run(order, facts, caller))
    except NodeRunError as trouble:
        answer["failure"] = trouble.row
    except Failure as failure:
        answer["failure"] = {
            "code": "node-run-failed",
            "message": failure.message,
            "fix": failure.fix,
        }
    finally:
        caller.stop()
    if caller.ended_by and not str(answer.get("stdout", "")).strip():
        # No report: what ended us says why better than we can, as Slurm does of a job's limit.
        signal.signal(caller.ended_by, signal.SIG_DFL)
        signal.raise_signal(caller.ended_by)
    return answer


class Caller:
    """Whoever asked for the run. A line every two seconds shows whether the connection still
    exists: over SSH a command is not ended with it.
    """

    def __init__(self) -> None:
        self._gone = threading.Event()
        self.ended_by: int | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def gone(self) -> bool:
        """Whether nobody waits for the answer any more, or the node's own time is over."""
        return self._gone.is_set() or self.ended_by is not None

    def end(self, number: int) -> None:
        """A signal ends the node's time: the answer is what the command says now."""
        self.ended_by = number

    def stop(self) -> None:
        """No more lines: the answer follows."""
        self._done.set()
        self._thread.join(timeout=_ASK_S)

    def _beat(self) -> None:
        try:
            while not self._done.wait(_BEAT_S):
                sys.stdout.write("\n")
                sys.stdout.flush()
        except (OSError, ValueError):
            self._gone.set()


def _run(order: Mapping[str, Any], facts: HostFacts, caller: Caller) -> dict[str, Any]:
    if tuple(order["ways"]) == (INSIDE,):
        way, program = INSIDE, ""
    else:
        way, program = choose_way(order["ways"], order["provision"], process.which, _answers)
    if way == "provision":
        if order["verify"] is None:
            raise NodeRunError(
                code="no-way-to-run",
                message="provision verify runs the suite only.",
                fix="Choose another way: --way docker",
            )
        argv = [*shlex.split(order["provision"]), "verify", order["image"], *order["verify"]]
        done = _process(argv, order, caller, data="", cleanup=())
        return _ended(way, done)
    expect = order["expect"]
    if expect is not None:
        expect = {**expect, "gpus": expected_gpus(facts.gpus, order["specs"])}
    data = "" if expect is None else json.dumps(expect)
    if way == INSIDE:
        return _ended(way, _process(order["command"], order, caller, data=data))
    with _same_image(order, caller):
        return _by_way(way, program, gpus_to_request(facts), order, caller, data)


def _by_way(
    way: str, program: str, gpus: str, order: Mapping[str, Any], caller: Caller, data: str
) -> dict[str, Any]:
    if way in ("docker", "podman"):
        return _ended(way, _in_container(way, gpus, order, caller, data))
    if way == "apptainer":
        argv = run_arguments.apptainer_words(
            program,
            run_arguments.apptainer_source(order["image"]),
            gpus=gpus,
            environment=order["environment"],
            command=order["command"],
        )
        return _ended(way, _process(argv, order, caller, data=data, cleanup=()))
    return _ended(way, _in_enroot(gpus, order, caller, data))


@contextlib.contextmanager
def _same_image(order: Mapping[str, Any], caller: Caller) -> Iterator[None]:
    """NodeRunError: the path that the order names is another image here; FileChangedError: the
    file was changed before the end. A registry's image has its digest in its name, and an engine's
    is named by it, but a path may lead to other bytes on each node.
    """
    image, digest = order["image"], order["digest"]
    if digest is None or not image.startswith(("/", LAYOUT)):
        yield
        return

    def in_time(_: int) -> None:
        if caller.gone() or time.monotonic() > order["deadline"]:
            raise NodeRunError(
                code="node-timeout",
                message=f"{image} was not hashed within {order['timeout_s']:g} s.",
                fix="See whether the file system is slow, or allow more time: --timeout SECONDS",
            )

    hashed = None
    try:
        if image.startswith(LAYOUT):
            same = layout_has(image, digest)
        else:
            hashed = hash_file(Path(image), in_time)
            same = hashed.digest == digest
    except (OSError, ValueError, RecursionError) as error:
        raise NodeRunError(
            code="no-image-on-node",
            message=f"{image} cannot be read there: {error}",
            fix="Keep the image on a file system that all nodes share.",
        ) from error
    if not same:
        raise NodeRunError(
            code="other-image-on-node",
            message=f"{image} is another image there than {digest[:19]}.",
            fix="Compare it with the file here (sha256sum FILE), and copy the right one.",
        )
    yield
    if hashed is not None:
        check_unchanged(hashed)


def choose_way(
    ways: Sequence[str],
    provision: str | None,
    which: Callable[[str], str | None],
    answers: Callable[[Sequence[str]], str],
) -> tuple[str, str]:
    """The first way that works here, and its program. `answers` runs a command, and returns "" or
    why it failed. NodeRunError: there is none.
    """
    problems: list[str] = []
    for way in ways:
        names: tuple[str, ...] = APPTAINERS if way == "apptainer" else (way,)
        if way == "provision":
            names = tuple(shlex.split(provision or "")[:1])
        program = next((name for name in names if which(name)), None)
        if program is None:
            problems += [f"no {way}"] if names else []
            continue
        checks = {"docker": ("docker", "version"), "podman": ("podman", "info")}
        why = answers(checks[way]) if way in checks else ""
        if not why:
            return way, program
        problems.append(f"{way}: {why}")
    raise NodeRunError(
        code="no-way-to-run",
        message=f"nothing there can run the image ({'; '.join(problems) or 'no way was named'}).",
        fix="Install docker, podman, apptainer or enroot on the node, or name a checkout that the "
        'nodes share: --provision "/shared/gpu-provision/run provision"',
    )


def expected_gpus(
    gpus: Sequence[Gpu] | None, specs: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]] | None:
    """The GPUs that the suite must find, as expectations have them; None: not known."""
    if gpus is None:
        return None
    rows = []
    for gpu in gpus:
        major_minor = gpu.compute_capability
        spec = specs.get(gpu.name or "") or specs.get(f"NVIDIA {gpu.name}")
        row: dict[str, Any] = {
            "uuid": gpu.uuid,
            "name": gpu.name,
            "compute_capability": "{}.{}".format(*major_minor) if major_minor else None,
        }
        rows.append({**row, "spec": spec} if spec and not gpu.mig else row)
    return rows


def _answers(argv: Sequence[str]) -> str:
    done = process.run(argv, timeout_s=_ASK_S)
    return "" if done.ok else (done.last_lines(1).strip()[:200] or "it does not answer")


def _in_container(
    engine: str, gpus: str, order: Mapping[str, Any], caller: Caller, data: str
) -> process.Completed:
    limits = run_arguments.limit_values(order["stack_bytes"], memlock_unlimited=True)
    while True:
        name = f"gpu-provision-{secrets.token_hex(8)}"
        options = run_arguments.container_words(
            engine,
            name=name,
            gpus=gpus,
            limits=limits,
            shm_bytes=order["shm_bytes"],
            network=order["network"],
            environment=order["environment"],
        )
        argv = [engine, "run", "--rm", "--interactive", *options, order["image"]]
        gone = (engine, "rm", "--force", name)
        done = _process([*argv, *order["command"]], order, caller, data=data, cleanup=gone)
        refused = done.code in _NOT_STARTED and not done.stdout and _LIMIT.search(done.output)
        if not (refused and limits):
            return done
        limits = {}  # the machine does not permit them: it is still worth testing


def _in_enroot(gpus: str, order: Mapping[str, Any], caller: Caller, data: str) -> process.Completed:
    """enroot unpacks an image before it starts it; the root is removed afterwards."""
    root = f"gpu-provision-{secrets.token_hex(8)}"
    remove = ("enroot", "remove", "--force", root)
    file = f"/tmp/{root}.sqsh"  # noqa: S108  a random name
    try:
        source = order["image"]
        if not source.startswith("/"):  # a squashfs is what import would make
            source = file
            take = (
                "enroot",
                "import",
                "--output",
                file,
                run_arguments.enroot_source(order["image"]),
            )
            done = _process(take, order, caller, data="", cleanup=())
            if not done.ok:
                return done
        done = _process(("enroot", "create", "--name", root, source), order, caller, data="")
        if not done.ok:
            return done
        argv = run_arguments.enroot_words(
            root, gpus=gpus, environment=order["environment"], command=order["command"]
        )
        return _process(argv, order, caller, data=data)
    finally:
        for clean in (remove, ("rm", "-f", file)):
            with contextlib.suppress(Failure, OSError):
                process.run(clean, timeout_s=_ASK_S)


def _process(
    argv: Sequence[str],
    order: Mapping[str, Any],
    caller: Caller,
    *,
    data: str,
    cleanup: Sequence[str] = (),
) -> process.Completed:
    """One command, for what is left of the time. NodeRunError: the time is over."""
    left = order["deadline"] - time.monotonic()
    try:
        return process.run(
            argv,
            timeout_s=max(0.1, left),
            input=data,
            apart=True,
            limit_bytes=_MOST_OUTPUT,
            grace_s=_ENDING_S,
            stopped=caller.gone,
        )
    except process.CommandTimedOut as error:
        if caller.ended_by:
            return error.completed
        last = error.completed.last_lines(1).strip()[:200]
        raise NodeRunError(
            code="node-timeout",
            message=f"the suite still ran after {order['timeout_s']:g} s and was ended"
            + (f"; its last line: {last}" if last else "."),
            fix="See whether it hangs there, or allow more time: --timeout SECONDS",
        ) from error
    finally:
        if cleanup:
            with contextlib.suppress(Failure, OSError):
                process.run(cleanup, timeout_s=_ASK_S)


def _ended(way: str, done: process.Completed) -> dict[str, Any]:
    """How the command ended. NodeRunError: it was never started, or was ended for its output."""
    if done.flooded:
        raise NodeRunError(
            code="node-no-report",
            message=f"{way}: the image printed more than {_MOST_OUTPUT >> 20} MiB and was ended.",
            fix=f"Run it on the node by hand: {way} run IMAGE verify",
        )
    if done.code in _NOT_STARTED and not done.stdout.strip():
        last = done.last_lines(1).strip()[:300] or process.describe_exit(done.code)
        if _NO_IMAGE.search(done.output):
            raise NodeRunError(
                code="no-image-on-node",
                message=f"{way} has no such image there, and cannot get it: {last}",
                fix="Push the image to a registry that the nodes reach, or load it there.",
            )
        raise NodeRunError(
            code="node-run-failed",
            message=f"{way} could not start the image: {last}",
            fix=f"Try the same on the node by hand: {way} run IMAGE verify",
        )
    return {
        "way": way,
        "code": done.code,
        "stdout": done.stdout,
        "stderr": done.output[-_STDERR:],
    }
