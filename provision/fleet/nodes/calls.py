"""The values between a cluster's own tools and `work`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from images.system.process import Completed


class NodeFailure(NamedTuple):
    """Why a node gave no result: stable code, sentence, what to do."""

    code: str
    message: str
    fix: str


class FailureSign(NamedTuple):
    """What a tool prints (a regular expression), and what it means for a node."""

    pattern: str
    code: str
    message: str
    fix: str

    def of(self, name: str) -> NodeFailure:
        """The failure of this node."""
        return NodeFailure(self.code, f"{name}: {self.message}.", self.fix)


class NodeCall(NamedTuple):
    """How to run a program on one node: `argv` gets it on standard input.

    `explain` says why it did not answer, from how the command ended. `cleanup` is run if it was
    ended at its time limit, () if there is nothing to do. `refused`: the node cannot be asked.
    """

    name: str
    argv: tuple[str, ...] = ()
    explain: Callable[[Completed], NodeFailure] | None = None
    cleanup: tuple[str, ...] = ()
    refused: NodeFailure | None = None


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
