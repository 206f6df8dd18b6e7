"""I/O seam of --fix (terminal, subprocesses, clock), replaceable in tests."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

from images.system import process

Say: TypeAlias = Callable[[str], None]
Ask: TypeAlias = Callable[[str], bool]
# A shell text, its limit in seconds, the receiver of each line. The exit code; None: timed out.
Run: TypeAlias = Callable[[str, float, Say], "int | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixEffects:
    """`ask` is None if nobody can answer; `home` is the user's home, where no sudo is needed."""

    say: Say
    ask: Ask | None
    run: Run
    is_root: bool
    has_sudo: bool
    home: Path
    now: Callable[[], datetime] = field(default=lambda: datetime.now(timezone.utc))
    sleep: Callable[[float], None] = time.sleep


def local_doors(say: Say) -> FixEffects:
    """The real I/O: this machine and the person at its terminal."""
    return FixEffects(
        say=say,
        ask=ask_at_terminal if sys.stdin is not None and sys.stdin.isatty() else None,
        run=run_in_shell,
        is_root=os.geteuid() == 0,
        has_sudo=process.which("sudo") is not None,
        home=Path(os.environ.get("HOME") or "/"),
    )


def run_in_shell(command: str, limit_s: float, on_line: Say) -> int | None:
    """Run one command with /bin/sh, here. sudo may ask for a password at the terminal."""
    try:
        done = process.run(
            ["sh", "-ec", command],
            timeout_s=limit_s,
            on_line=on_line,
            terminal=sys.stdin is not None and sys.stdin.isatty(),
            missing_fix="Install a POSIX shell as sh.",
        )
    except process.CommandTimedOut:
        return None
    return done.code


def ask_at_terminal(question: str) -> bool:
    """Ask; only "y" or "yes" is a yes, and end of input is a no.

    KeyboardInterrupt at the first Ctrl-C, whenever it comes.
    """
    with _signals() as signals:  # before the question, which a person may answer at once
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        answer = _read_line(sys.stdin.fileno(), signals)
    return answer.strip().lower() in {b"y", b"yes"}


def _read_line(terminal: int, signals: int) -> bytes:
    """The line that was typed, or the part of it before end of input.

    A signal that arrives between Python's last look for one and the read() of the system
    interrupts nothing: Python would raise KeyboardInterrupt only after the next line. So the read
    begins only when there is something to read, and the signal itself ends the waiting for that
    (https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd).
    """
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([terminal, signals], [], [])
        # the handler of a signal has run before this line, and has raised if it was Ctrl-C
        if signals in ready:
            os.read(signals, 4096)
        if terminal in ready:
            typed = _typed(terminal)
            if not typed:
                break
            line += typed
    return line


def _typed(terminal: int) -> bytes:
    """The available input; empty at end of input, and if the terminal is gone."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A descriptor that becomes readable with every signal that Python handles."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    try:
        yield readable
    finally:
        signal.set_wakeup_fd(before)
        os.close(readable)
        os.close(writable)
