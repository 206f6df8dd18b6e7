"""Starts a Docker engine without an init, with as few omissions as the machine allows."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.engines.docker import DEFAULT_HOST, knock
from images.errors import Failure
from images.system import process

_NO_FIREWALL = ("--iptables=false", "--ip6tables=false")
_NO_BRIDGE = ("--bridge=none",)
_PLAIN_STORAGE = ("--storage-driver=vfs",)
# Omitting more does not help against these.
_HOPELESS = re.compile(
    r"pid file found|process with PID|is still running|address already in use|"
    r"needs to be started with root|no space left on device|"
    r"unable to configure the Docker daemon|unknown flag|[Dd]evices cgroup isn't mounted"
)
_STORAGE = re.compile(r"graphdriver|storage.driver|driver not supported|snapshotter|overlay")
_FIREWALL = re.compile(r"iptables|ip6tables|nf_tables|NAT chain")
WAIT_S = 60.0
DOCS = "https://docs.docker.com/engine/install/"


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """An engine's answer: its version, or what went wrong."""

    version: str = ""
    problem: str = ""

    @property
    def is_up(self) -> bool:
        """Whether an engine runs there, even one that this user has no access to."""
        return bool(self.version) or self.is_closed

    @property
    def is_closed(self) -> bool:
        return "Permission denied" in self.problem


def ask_engine(host: str | None = None) -> EngineAnswer:
    """Query the version of an engine: the one that the environment names, or `host`."""
    import docker
    import docker.errors

    where = host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    try:
        if where.startswith("unix://"):
            knock(where)
        # with a version given the client sends no query of its own; /version is the same in all
        client = (
            docker.from_env(version="1.44", timeout=10)
            if host is None
            else docker.DockerClient(base_url=host, version="1.44", timeout=10)
        )
        with contextlib.closing(client):
            answer = client.api.version(api_version=False)
    except (docker.errors.DockerException, OSError, ValueError, AttributeError) as exc:
        return EngineAnswer(problem=str(exc))
    return EngineAnswer(version=str(answer.get("Version", "?")))


@dataclass(frozen=True, slots=True)
class Omission:
    """A feature that the engine is started without, and the consequence."""

    arguments: tuple[str, ...]
    why: str


_LADDER = (
    Omission(
        _NO_FIREWALL, "without firewall rules: containers reach out only over the host's network"
    ),
    Omission(_NO_BRIDGE, "without a network of its own: containers use --network host or none"),
    Omission(_PLAIN_STORAGE, "with plain copies for storage: slower, and it takes much more disk"),
)


def telling_line(log: str) -> str:
    """The line of an engine's log that explains why it ended."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for pattern in (r"failed to start daemon", r"level=fatal", r"level=error"):
        matching = [line for line in lines if re.search(pattern, line)]
        if matching:
            message = re.search(r'msg="((?:[^"\\]|\\.)*)"', matching[-1])
            return message[1].replace('\\"', '"') if message else matching[-1]
    return lines[-1] if lines else ""


def next_step(line: str, given: Sequence[str]) -> Omission | None:
    """What to omit next, according to the log line; None if nothing is left to try."""
    if _HOPELESS.search(line):
        return None
    left = [step for step in _LADDER if not set(step.arguments) <= set(given)]
    for pattern, arguments in ((_STORAGE, _PLAIN_STORAGE), (_FIREWALL, _NO_FIREWALL)):
        for step in left:
            if step.arguments == arguments and pattern.search(line):
                return step
    return left[0] if left else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedEngine:
    """A running engine."""

    pid: int
    version: str
    host: str
    log: Path
    left_out: tuple[Omission, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartIO:
    """I/O seam of starting an engine (processes, log, clock), replaceable in tests."""

    detach: Callable[[Sequence[str]], int]
    is_alive: Callable[[int], bool]
    ask: Callable[[], EngineAnswer]
    read_log: Callable[[], str]
    stop: Callable[[int], None]
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def _await(io: StartIO, pid: int, wait_s: float) -> EngineAnswer:
    """Wait until the engine answers or ends, or the time limit is reached."""
    deadline = io.clock() + wait_s
    while True:
        answer = io.ask()
        if answer.is_up or not io.is_alive(pid) or io.clock() >= deadline:
            return answer
        io.sleep(0.25)


def start_engine(
    *,
    host: str,
    log: Path,
    say: Callable[[str], None],
    io: StartIO,
    arguments: Sequence[str] = (),
    wait_s: float = WAIT_S,
) -> StartedEngine:
    """Start an engine without an init, with as few omissions as the machine allows.
    EngineSetupError: it does not start even so.
    """
    left_out: list[Omission] = []
    while True:
        extra = [argument for step in left_out for argument in step.arguments]
        command = ["dockerd", "--host", host, *arguments, *extra]
        say(f"+ {shlex.join(command)} >>{log} 2>&1 &")
        pid = io.detach(command)
        answer = _await(io, pid, wait_s)
        if answer.is_up:
            return StartedEngine(
                pid=pid, version=answer.version, host=host, log=log, left_out=tuple(left_out)
            )
        if io.is_alive(pid):
            line = f"it did not answer within {wait_s:g} s"
            io.stop(pid)
        else:
            line = telling_line(io.read_log()) or "it exited without a message"
        say(f"dockerd did not start: {line}")
        step = next_step(line, [*arguments, *extra])
        if step is None:
            raise EngineSetupError(
                f"dockerd cannot be started on this machine: {line}.",
                fix=f"Its log: {log}. To use an engine elsewhere, set DOCKER_HOST.",
                detail="\n".join(io.read_log().splitlines()[-20:]),
            )
        say(f"trying again {step.why}")
        left_out.append(step)


def stop_pid(pid: int, *, sudo: Sequence[str] = (), wait_s: float = 15.0) -> None:
    """End an engine by its process ID: SIGTERM, then SIGKILL."""
    for name, seconds in (("TERM", wait_s), ("KILL", 5.0)):
        # The shell's builtin: a minimal system has no program kill.
        kill = ("sh", "-c", f"kill -s {name} {pid}")
        process.run([*sudo, *kill], timeout_s=60, terminal=bool(sudo))
        deadline = time.monotonic() + seconds
        while process.is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not process.is_alive(pid):
            return


def local_io(host: str, log: Path, *, sudo: Sequence[str] = ()) -> StartIO:
    """The effects on this machine. The log is read from its current end on."""
    try:
        start = log.stat().st_size
    except OSError:
        start = 0

    def read_log() -> str:
        try:
            with log.open("rb") as file:
                file.seek(start)
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    return StartIO(
        detach=lambda argv: detach(
            argv, log=log, prefix=sudo, missing_fix=f"Install Docker: {DOCS}"
        ),
        is_alive=process.is_alive,
        ask=lambda: ask_engine(host),
        read_log=read_log,
        stop=lambda pid: stop_pid(pid, sudo=sudo),
    )


class EngineSetupError(Failure):
    """The engine could not be installed or started."""

    code = "engine-setup-failed"
    exit_code = 5


def detach(argv: Sequence[str], *, log: Path, prefix: Sequence[str] = (), missing_fix: str) -> int:
    """Start a command that outlives us, append its output to `log`, and return its process ID.

    `prefix` is sudo if the command and its log belong to root; it can ask for a password.
    """
    # in a shell's background setsid need not fork, so the ID is the command's own
    script = 'setsid "$@" >>"$0" 2>&1 </dev/null & echo $!'
    started = process.run(
        [*prefix, "sh", "-c", script, str(log), *argv],
        timeout_s=120,
        apart=True,
        check=True,
        missing_fix=missing_fix,
        terminal=bool(prefix),
    )
    return int(started.stdout)
