"""I/O seam of --fix (terminal, subprocesses, clock), replaceable in tests."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

from images.system import process
from provision.output.prompt import ask_at_terminal

Say: TypeAlias = Callable[[str], None]
Ask: TypeAlias = Callable[[str], bool]
# A shell text, its limit in seconds, the receiver of each line. The exit code; None: timed out.
Run: TypeAlias = Callable[[str, float, Say], "int | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixIO:
    """`ask` is None if nobody can answer; `home` is the user's home, where no sudo is needed."""

    say: Say
    ask: Ask | None
    run: Run
    is_root: bool
    has_sudo: bool
    home: Path
    now: Callable[[], datetime] = field(default=lambda: datetime.now(timezone.utc))
    sleep: Callable[[float], None] = time.sleep


def local_io(say: Say) -> FixIO:
    """The real I/O: this machine and the person at its terminal."""
    return FixIO(
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
