"""Runs a command with this process's input, output and terminal, and passes signals on to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from images.system.interruption import passed_on
from images.system.process import ToolMissing

_END_S = 5.0


def attend(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    terminal: bool = False,
    first: Callable[[int], int | None] = lambda _: None,
) -> int:
    """Run a command to its end; returns its exit code as shells do: 128 and the number of a signal
    that killed it. `terminal`: it changes ours, which is restored. The signals that we get go to
    it, or if it starts a namespace of processes, to the first process there: `first` finds that by
    the command's ID. The command has a session of its own, so that Ctrl-C does not reach it twice.
    Nothing of it is left running. ToolMissing: it cannot be started.
    """
    started = threading.Event()
    killed_for: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def send(number: int) -> None:
        started.wait()
        if process is None:
            return
        with contextlib.suppress(OSError):  # it has ended
            found = None if number in {signal.SIGKILL, signal.SIGWINCH} else first(process.pid)
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            elif found is None or is_handled(found, number):
                os.kill(found or process.pid, number)
            else:
                killed_for.append(number)
                os.kill(found, signal.SIGKILL)

    with kept_terminal() if terminal else contextlib.nullcontext(), passed_on(send):
        try:
            process = subprocess.Popen(argv, env=env, cwd=cwd, start_new_session=True)
        except OSError as error:
            raise ToolMissing(
                f"The program {argv[0]} could not be started: {error.strerror}.",
                fix="Install it, and see that it is on PATH.",
            ) from error
        finally:
            started.set()
        try:
            code = process.wait()
        finally:
            if process.poll() is None:
                send(signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
    if killed_for:
        return 128 + killed_for[0]
    return code if code >= 0 else 128 - code


def is_handled(pid: int, number: int) -> bool:
    """Whether a process catches, blocks or ignores a signal. What it does not handle ends any
    process but the first of its namespace, which does not get it: pid_namespaces(7).
    """
    status = _status(pid)
    masks = (int(status.get(name, "0"), 16) for name in ("SigCgt", "SigBlk", "SigIgn"))
    return any(mask >> (number - 1) & 1 for mask in masks)


def is_first(pid: int) -> bool:
    """Whether a process is the first one of a namespace below ours."""
    numbers = _status(pid).get("NSpid", "").split()
    return len(numbers) > 1 and numbers[-1] == "1"


def first_below(pid: int) -> int | None:
    """The first process of the namespace that a process, or one started by it, has made."""
    pending = [pid]
    while pending:
        one = pending.pop()
        if is_first(one):
            return one
        with contextlib.suppress(OSError, ValueError):
            file = Path(f"/proc/{one}/task/{one}/children")
            pending += map(int, file.read_text(encoding="ascii").split())
    return None


def _status(pid: int) -> dict[str, str]:
    """proc_pid_status(5); {} if it has ended."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, _, value in pairs}
    return {}


@contextlib.contextmanager
def kept_terminal() -> Iterator[None]:
    """Set the terminal of standard input as it was before the block."""
    before = termios.tcgetattr(0)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)


def is_terminal() -> bool:
    """Whether both standard input and standard output are terminals."""
    return os.isatty(0) and os.isatty(1)
