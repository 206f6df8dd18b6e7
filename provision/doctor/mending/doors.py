"""The doors of --fix to the world: what it says, asks and runs. Tests have their own."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

from images import process

Say: TypeAlias = Callable[[str], None]
Ask: TypeAlias = Callable[[str], bool]
# A shell text, its limit in seconds, who gets each line. The exit code; None: its time was up.
Run: TypeAlias = Callable[[str, float, Say], "int | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """`ask` is None where nobody can answer; `home` is the user's, where no sudo is needed."""

    say: Say
    ask: Ask | None
    run: Run
    is_root: bool
    has_sudo: bool
    home: Path
    now: Callable[[], datetime] = field(default=lambda: datetime.now(timezone.utc))
    sleep: Callable[[float], None] = time.sleep


def local_doors(say: Say) -> Doors:
    """The doors to this machine and to the person at its terminal."""
    return Doors(
        say=say,
        ask=ask_at_terminal if sys.stdin is not None and sys.stdin.isatty() else None,
        run=run_in_shell,
        is_root=os.geteuid() == 0,
        has_sudo=shutil.which("sudo") is not None,
        home=Path(os.environ.get("HOME") or "/"),
    )


def run_in_shell(command: str, limit_s: float, on_line: Say) -> int | None:
    """Run one command by /bin/sh, here. sudo may ask for a password at the terminal."""
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
    """Only a plain yes is one; the end of the input is none."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
