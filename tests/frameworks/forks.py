"""Runs commands of the suite as forks of one interpreter, which imports PyTorch once for all.

`python -m tests.frameworks.forks` reads {group: [{"argv", "fault", "env"}, ...]} as JSON. The
commands of a group run at the same time: "{port}" and "{other}" in their words are free ports, the
same for the group. A fault is Python code that the command runs first. For each group it prints a
JSON line: {"group", "ends": [[exit code, stdout, stderr], ...]}.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import IO, Any, NoReturn

from tests.mutations.runner import Work, in_children
from verify.across import work
from verify.checks.collectives import ranks
from verify.commands.main import main
from verify.model.frameworks import FRAMEWORKS
from verify.running.children import spool

LIMIT_S = 300.0  # for a group: what hangs, not what is slow


def run_group(commands: list[dict[str, Any]]) -> Callable[[], object]:
    def run() -> object:
        with socket.socket() as one, socket.socket() as two:
            for taken in (one, two):
                taken.bind(("127.0.0.1", 0))
            ports = {"port": one.getsockname()[1], "other": two.getsockname()[1]}
        running = []
        for command in commands:
            out, err = spool(), spool()
            pid = os.fork()
            if pid == 0:
                live(command, ports, out, err)
            running.append((pid, out, err))
        return [end(*each) for each in running]

    return run


def end(pid: int, out: IO[bytes], err: IO[bytes]) -> list[Any]:
    """As subprocess has it: the signal that ended a command is a negative exit code."""
    status = os.waitpid(pid, 0)[1]
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    said = []
    for file in (out, err):
        file.seek(0)
        said.append(file.read().decode())
    return [code, *said]


def live(
    command: dict[str, Any], ports: dict[str, int], out: IO[bytes], err: IO[bytes]
) -> NoReturn:
    code = 70
    try:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.environ.update(command["env"])
        names = {"os": os, "signal": signal, "time": time}
        mine = {"work": work, "ranks": ranks, "true": work.contribution}
        exec(command["fault"], {**names, **mine, "torch": sys.modules["torch"]})
        code = main([word.format_map(ports) for word in command["argv"]])
    except Exception:  # noqa: BLE001  # said by the exit code, too
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    FRAMEWORKS["pytorch"].load()
    works = [Work(name, run_group(some), LIMIT_S) for name, some in json.load(sys.stdin).items()]
    for name, ending in in_children(works):
        said = {"group": name, "ends": ending.value or [], "how": ending.how()}
        sys.stdout.write(json.dumps(said) + "\n")
