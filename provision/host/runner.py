"""Running a program without ever waiting for it longer than agreed.

`subprocess.run(timeout=...)` is not enough here: a shell script's child keeps the pipe open after
the script was killed, and an `nvidia-smi` stuck in the kernel (state D) survives SIGKILL, so that
waiting for it never ends. Hence our own loop: read until the deadline, kill the whole session,
then walk away. Output has a limit too, for the program that prints for ever.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from provision.host.reading import one_line

OUTPUT_LIMIT_BYTES = 4 << 20
_GRACE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a program ended. `problem` is set when it did not run to its own end."""

    code: int | None = None
    out: str = ""
    err: str = ""
    problem: str | None = None

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.problem is None

    @property
    def said(self) -> str:
        """Why it failed, in one line: our problem, else its first words, else its exit code."""
        if self.problem:
            return self.problem
        for text in (self.err, self.out):
            for line in text.splitlines():
                if line.strip():
                    return one_line(line)
        return f"exit code {self.code}, no output"


class Runner(Protocol):
    """Runs a program to its end or its time limit; never raises."""

    def __call__(self, argv: Sequence[str], timeout_s: float, /) -> Completed: ...


def local_runner(env: Mapping[str, str]) -> Runner:
    """The real one. Messages come in English (LC_ALL=C), because we read them."""
    child_env = {**env, "LC_ALL": "C"}

    def run(argv: Sequence[str], timeout_s: float, /) -> Completed:
        return _run(tuple(argv), timeout_s, child_env)

    return run


def _run(argv: tuple[str, ...], timeout_s: float, env: Mapping[str, str]) -> Completed:
    name = argv[0].rpartition("/")[2]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
        )
    except FileNotFoundError:
        return Completed(problem=f"{name} was not found")
    except PermissionError:
        return Completed(problem=f"{name} may not be executed (permission denied)")
    except (OSError, ValueError) as exc:  # not a program, a NUL in the path, no memory
        return Completed(problem=f"{name} could not be started: {one_line(str(exc))}")
    with contextlib.ExitStack() as stack:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                stack.enter_context(pipe)
        killed = True
        try:
            out, err, problem = _collect(process, time.monotonic() + timeout_s)
            killed = problem is not None
        finally:
            code = _finish(process, killed=killed)
        if problem == "time":
            problem = f"{name} did not answer within {timeout_s:g} s"
        elif problem == "size":
            problem = f"{name} printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB"
    return Completed(code=code, out=_text(out), err=_text(err), problem=problem)


def _collect(
    process: subprocess.Popen[bytes], deadline: float
) -> tuple[bytearray, bytearray, str | None]:
    """Both outputs until they end, until the deadline ("time") or the limit ("size")."""
    out, err = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for pipe, buffer in ((process.stdout, out), (process.stderr, err)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, buffer)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return out, err, "time"
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                key.data.extend(chunk)
            if len(out) + len(err) > OUTPUT_LIMIT_BYTES:
                return out, err, "size"
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(deadline - time.monotonic(), 0.01))
        return out, err, None
    return out, err, "time"


def _finish(process: subprocess.Popen[bytes], *, killed: bool) -> int | None:
    if killed:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:  # stuck in the kernel: nothing can end it, so leave it
        return None


def _text(data: bytearray) -> str:
    return data.decode("utf-8", "replace")
