"""Commands in the foreground: exit codes, and signals that reach them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from images.system.foreground import attend, first_below, is_first, is_handled
from images.system.process import ToolMissing
from tests.kit.cases import cases

ENV = {"PATH": os.environ["PATH"]}


@cases(
    "script code",
    ("done", "exit 0", 0),
    ("its own code", "exit 42", 42),
    ("killed by a signal, as a shell says it", "kill -TERM $$", 143),
)
def test_the_exit_code_is_the_commands(script: str, code: int) -> None:
    assert attend(["sh", "-c", script], env=ENV) == code


def test_a_missing_program_is_an_error() -> None:
    with pytest.raises(ToolMissing, match="/no/such"):
        attend(["/no/such"], env=ENV)


PROGRAM = """
import os, sys
from images.system.foreground import attend
sys.exit(attend(["sh", "-c", sys.argv[1]], env=dict(os.environ)))
"""
WAITS = "echo $$; while :; do sleep 0.05; done"


@cases(
    "before numbers code",
    ("one that it handles", "trap 'exit 5' TERM", [signal.SIGTERM], 5),
    ("a batch system's", "trap 'exit 6' USR1", [signal.SIGUSR1], 6),
    ("one that ends it", ":", [signal.SIGTERM], 143),
    ("the third ends what ignores it", "trap '' TERM INT",
     [signal.SIGTERM, signal.SIGINT, signal.SIGTERM], 137),
)  # fmt: skip
def test_signals_reach_the_command(before: str, numbers: list[int], code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, f"{before}; {WAITS}"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    command = int(process.stdout.readline())
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.2)  # two of one kind would be one
    assert process.wait(20) == code
    process.stdout.close()
    assert not Path(f"/proc/{command}").exists()


def test_what_a_process_handles_is_read() -> None:
    assert is_handled(os.getpid(), signal.SIGINT)
    assert not is_handled(os.getpid(), signal.SIGTTOU)
    assert not is_handled(1 << 22, signal.SIGINT)


def test_no_process_of_our_own_namespace_is_the_first_of_another() -> None:
    assert not is_first(os.getpid())
    assert first_below(os.getpid()) is None
