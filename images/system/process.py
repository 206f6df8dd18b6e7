"""Runs commands; other modules start a process themselves only to stream data through it.

A command gets its own session, so that one signal ends it and everything that it started: a time
limit, Ctrl-C or an error in the caller's `on_line` leaves no process behind. Output is read line by
line, only its end is kept, and secrets never leave this module.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from images.errors import Failure
from images.system.interruption import uninterrupted
from images.system.output import Capture, LineStream, SecretFilter, Tail

if TYPE_CHECKING:
    from typing import TypeAlias

KEEP_BYTES = 64 * 1024
"""How much of the end of a command's output is kept: enough for the lines that explain an error."""

GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""

_LINGER_S = 1.0
"""How long output is still read after a command ended and its children keep the pipe open."""

_POLL_S = 0.2

_REAP_S = 0.5
"""How long to wait for a killed command after its grace period: one stuck in the kernel stays."""

_SEARCHED = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
"""Search paths. Without the variable, programs are searched in the system's directories."""

_Ending: TypeAlias = Literal["ended", "time", "size"]


class ToolMissing(Failure):
    """A required program is not on this host, or cannot be started."""

    code = "tool-missing"
    exit_code = 5


class CommandFailed(Failure):
    """A command failed. `completed` has all that is known about it."""

    code = "command-failed"
    exit_code = 5

    def __init__(self, message: str, *, fix: str, completed: Completed) -> None:
        super().__init__(message, fix=fix, detail=completed.output)
        self.completed = completed


class CommandTimedOut(CommandFailed):
    """A command was still running at its time limit; it was ended."""

    code = "command-timed-out"


class Completed(NamedTuple):
    """How a command ended."""

    argv: tuple[str, ...]
    """As run, with secrets redacted."""
    code: int
    """The exit code; the negative signal number of a command that was killed."""
    output: str
    """The end of its output: both streams, or only standard error if stdout is separate."""
    stdout: str
    """All of standard output if it was captured separately, else empty."""
    seconds: float
    flooded: bool = False
    """Whether it was ended because it wrote more than `limit_bytes`."""

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.flooded

    @property
    def command(self) -> str:
        """The command as a user would type it."""
        return shlex.join(self.argv)

    def last_lines(self, count: int = 20) -> str:
        return "\n".join(self.output.splitlines()[-count:])


def describe_exit(code: int) -> str:
    """Describe how a command ended, in words that follow "the command"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (often: the machine ran out of memory)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the command ended. Does not reap it, so that its group's ID cannot be reused."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _end(
    process: subprocess.Popen[bytes], *, by_itself: bool, own_group: bool, grace_s: float
) -> None:
    """Stop it, or reap it if it ended `by_itself`, and close its pipes."""
    if by_itself:
        process.wait()
    else:
        _stop(process, own_group=own_group, grace_s=grace_s)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _stop(process: subprocess.Popen[bytes], *, own_group: bool, grace_s: float) -> None:
    """End a command, and with `own_group` everything it started: SIGTERM, then SIGKILL."""

    send = partial(_send, process, own_group=own_group)
    send(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while not _ended(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    send(signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s + _REAP_S)


def _send(process: subprocess.Popen[bytes], number: signal.Signals, *, own_group: bool) -> None:
    # sudo's children belong to root and cannot be signalled; sudo itself passes SIGTERM on
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if own_group:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)


def which(program: str, path: str | None = None) -> str | None:
    """The program's path on PATH, or on `path`. None: it is in none of its absolute directories."""
    searched = os.environ.get("PATH", os.defpath) if path is None else path
    return shutil.which(program, path=without_relative_entries({"PATH": searched}).get("PATH", ""))


def without_relative_entries(env: Mapping[str, str]) -> dict[str, str]:
    """The variables, without entries of search paths that depend on the working directory: an empty
    one, as in "/usr/lib:", means that directory itself, and anybody may have written to it.
    """
    changed = dict(env)
    for name in _SEARCHED:
        entries = re.split(r"[:;]" if name.startswith("LD_") else ":", changed.pop(name, ""))
        if kept := [entry for entry in entries if entry.startswith(("/", "$ORIGIN", "${ORIGIN}"))]:
            changed[name] = ":".join(kept)
    return changed


def environment(
    changes: Mapping[str, str | None] | None = None, *, inherit: bool = True
) -> dict[str, str]:
    """The variables for a command: ours, or with `inherit` False none, with changes (None removes
    one), and `without_relative_entries`.
    """
    found: dict[str, str | None] = {**(os.environ if inherit else {}), **(changes or {})}
    return without_relative_entries(
        {name: value for name, value in found.items() if value is not None}
    )


def _start(  # the arguments are Popen's own
    argv: Sequence[str],
    *,
    env: Mapping[str, str | None] | None,
    inherit_env: bool,
    cwd: Path | None,
    stdin: int | None,
    apart: bool,
    terminal: bool,
    missing_fix: str,
) -> subprocess.Popen[bytes]:
    program = argv[0]
    try:
        return subprocess.Popen(
            argv,
            env=environment(env, inherit=inherit_env),
            cwd=cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if apart else subprocess.STDOUT,
            start_new_session=not terminal,
        )
    except (FileNotFoundError, NotADirectoryError) as exc:
        if cwd is not None and not cwd.is_dir():
            raise
        raise ToolMissing(
            f"The program {program} is needed and was not found on this host.", fix=missing_fix
        ) from exc
    except OSError as exc:
        if exc.errno not in {errno.EACCES, errno.ENOEXEC, errno.EPERM}:
            raise
        raise ToolMissing(
            f"The program {program} is needed and could not be started: {exc.strerror}.",
            fix=missing_fix,
        ) from exc


def _follow(
    process: subprocess.Popen[bytes],
    sinks: Mapping[int, LineStream | Capture],
    payload: bytes,
    deadline: float,
    limit_bytes: float,
    stopped: Callable[[], bool],
    ask_to_end: Callable[[], float],
) -> _Ending:
    """Write the command's input and pass its output on, until it ends or reaches a limit.
    `ask_to_end` then sends it a signal, and returns how many seconds it may still take.
    """
    pending = memoryview(payload)
    written, asked = 0, False
    linger: float | None = None

    def is_over() -> bool:
        nonlocal asked, deadline
        late = time.monotonic() >= deadline
        if asked or not (late or stopped()):
            return asked and late
        asked, deadline = True, time.monotonic() + ask_to_end()
        return False

    with selectors.DefaultSelector() as selector:
        for number in sinks:
            selector.register(number, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin.fileno(), selectors.EVENT_WRITE)
        while selector.get_map():
            now = time.monotonic()
            if linger is None and _ended(process):
                linger = now + _LINGER_S
            if linger is not None and now >= linger:
                break
            if is_over():
                return "time"
            if written > limit_bytes:
                return "size"
            for key, _ in selector.select(max(0.0, min(_POLL_S, deadline - now))):
                if key.fd in sinks:
                    data = os.read(key.fd, 65536)
                    sinks[key.fd].feed(data, final=not data)
                    written += len(data)
                    if not data:
                        selector.unregister(key.fd)
                    continue
                try:
                    pending = pending[os.write(key.fd, pending[:65536]) :]
                except BrokenPipeError:  # it reads no more: its exit code will say why
                    pending = pending[len(pending) :]
                if not pending and process.stdin is not None:
                    selector.unregister(key.fd)
                    process.stdin.close()
        for number, sink in sinks.items():
            if number in selector.get_map():
                sink.feed(b"", final=True)
    while not _ended(process):
        if is_over():
            return "time"
        time.sleep(0.01)
    return "time" if asked else "ended"


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str | None] | None = None,
    inherit_env: bool = True,
    input: str | bytes | None = None,  # noqa: A002  the standard library's name
    cwd: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    apart: bool = False,
    check: bool = False,
    redact: Iterable[str] = (),
    missing_fix: str = "Install it, and see that it is on PATH.",
    fix: str = "Read its output above: the last lines say why.",
    keep_bytes: int = KEEP_BYTES,
    limit_bytes: int | None = None,
    terminal: bool = False,
    grace_s: float = GRACE_S,
    stopped: Callable[[], bool] = lambda: False,
) -> Completed:
    """Run a command to its end and return how it ended.

    `env` overrides our environment (None removes a name), or replaces it without `inherit_env`.
    `on_line` gets each line as it comes, of both streams, or only of standard error with `apart`,
    which captures all of standard output. With `check` an exit code other than 0 raises
    `CommandFailed`; running past `timeout_s` always raises `CommandTimedOut`. A command that writes
    more than `limit_bytes` is ended, and `flooded` is set. `redact` lists strings that become "***"
    in all output. `terminal` leaves the command in our session with our standard input, so that
    sudo can ask for a password; Ctrl-C then reaches it directly. A command that is ended has
    `grace_s` to clean up, and what it says then is read. When `stopped` becomes true, it is ended
    as at its time limit: only the main thread gets Ctrl-C.
    """
    strike = SecretFilter(redact)
    payload = input.encode() if isinstance(input, str) else input
    tail = Tail(keep_bytes)

    def emit(line: str) -> None:
        tail.add(line)
        if on_line is not None:
            on_line(line)

    started = time.monotonic()
    stdin = None if terminal else subprocess.DEVNULL
    capture = Capture()
    lines = LineStream(emit, strike, keep_bytes)
    sinks: dict[int, LineStream | Capture] = {}
    process: subprocess.Popen[bytes] | None = None
    ending: _Ending = "time"
    most = math.inf if limit_bytes is None else limit_bytes
    try:
        with uninterrupted():  # else it might run without us having its ID
            process = _start(
                argv,
                env=env,
                inherit_env=inherit_env,
                cwd=cwd,
                stdin=stdin if payload is None else subprocess.PIPE,
                apart=apart,
                terminal=terminal,
                missing_fix=missing_fix,
            )
        if process.stdout is not None:
            sinks[process.stdout.fileno()] = capture if apart else lines
        if process.stderr is not None:
            sinks[process.stderr.fileno()] = lines
        own, allowed_s = process, grace_s

        def end() -> float:
            nonlocal grace_s
            _send(own, signal.SIGTERM, own_group=not terminal)
            grace_s = 0.0  # it has had its time then
            return allowed_s

        ending = _follow(process, sinks, payload or b"", started + timeout_s, most, stopped, end)
    finally:
        if process is not None:
            _end(process, by_itself=ending == "ended", own_group=not terminal, grace_s=grace_s)
    completed = Completed(
        argv=tuple(strike(part) for part in argv),
        code=-signal.SIGKILL if process.returncode is None else process.returncode,
        output=tail.text(),
        stdout=strike(capture.text()),
        seconds=time.monotonic() - started,
        flooded=ending == "size",
    )
    if ending == "time":
        raise CommandTimedOut(
            f"`{completed.command}` was still running after {timeout_s:g} s and was ended.",
            fix=fix,
            completed=completed,
        )
    if check and not completed.ok:
        raise CommandFailed(
            f"`{completed.command}` {describe_exit(completed.code)}.", fix=fix, completed=completed
        )
    return completed


def is_alive(pid: int) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # the name in parentheses may itself contain anything
    return state.rpartition(")")[2].split()[:1] not in (["Z"], ["X"], [])
