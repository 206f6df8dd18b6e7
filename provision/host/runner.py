"""Runs programs of a machine within a time limit, and never raises.

A program that hangs is killed with everything that it started; one stuck in the kernel (state D, as
`nvidia-smi` can be) survives that and is left behind. Output is limited, too, for programs that
print forever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from images.system import process
from provision.host.source_facts import one_line

OUTPUT_LIMIT_BYTES = 4 << 20


class ProgramResult(NamedTuple):
    """How a program ended. `problem` is set when it did not run to its own end."""

    code: int | None = None
    out: str = ""
    err: str = ""
    problem: str | None = None

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.problem is None

    @property
    def message(self) -> str:
        """Why it failed, in one line: our problem, else its first output, else its exit code."""
        if self.problem:
            return self.problem
        for text in (self.err, self.out):
            for line in text.splitlines():
                if line.strip():
                    return one_line(line)
        return f"exit code {self.code}, no output"


class ProgramRunner(Protocol):
    """Runs a program to its end or its time limit; never raises."""

    def __call__(self, argv: Sequence[str], timeout_s: float, /) -> ProgramResult: ...


def local_runner(env: Mapping[str, str]) -> ProgramRunner:
    """The real one. Messages are in English (LC_ALL=C), because we parse them."""
    child_env = {**env, "LC_ALL": "C"}

    def run(argv: Sequence[str], timeout_s: float, /) -> ProgramResult:
        return _run(tuple(argv), timeout_s, child_env)

    return run


def _run(argv: tuple[str, ...], timeout_s: float, env: Mapping[str, str]) -> ProgramResult:
    name = argv[0].rpartition("/")[2]
    try:
        done = process.run(
            argv,
            timeout_s=timeout_s,
            env=env,
            inherit_env=False,
            apart=True,
            keep_bytes=OUTPUT_LIMIT_BYTES,
            limit_bytes=OUTPUT_LIMIT_BYTES,
            grace_s=0,
        )
    except process.ToolMissing as exc:
        why = "was not found"
        if isinstance(cause := exc.__cause__, PermissionError):
            why = "may not be executed (permission denied)"
        elif isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
            why = f"could not be started: {cause.strerror}"
        return ProgramResult(problem=f"{name} {why}")
    except process.CommandTimedOut as exc:
        problem = f"{name} did not answer within {timeout_s:g} s"
        return _result(exc.completed, problem)
    except (OSError, ValueError) as exc:  # a NUL in the path, no memory
        return ProgramResult(problem=f"{name} could not be started: {one_line(str(exc))}")
    flooded = f"{name} printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB"
    return _result(done, flooded if done.flooded else None)


def _result(done: process.Completed, problem: str | None) -> ProgramResult:
    return ProgramResult(code=done.code, out=done.stdout, err=done.output, problem=problem)
