"""Takes nodes that are at fault out of service in Slurm, and returns those that it took.

https://slurm.schedmd.com/scontrol.html: State=DRAIN needs a Reason; jobs that run there go on.
State=RESUME takes a drained node back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from images.errors import Failure
from images.system import process
from provision.errors import BadInputError
from provision.fleet.nodes.calls import NodeFailure
from provision.fleet.nodes.slurm import SlurmNode
from provision.model.request import quoted

DEFAULT_LIMIT = "10%"
_OURS = "gpu-provision: "  # so a reason begins; those of templates/slurm/gate.sh, too
_LONGEST = 180
_COMMAND_S = 60.0
_LIMIT = re.compile(r"([1-9][0-9]{0,5})|([1-9][0-9]?|100)%", re.ASCII)


class Drain(NamedTuple):
    """The command for a node, and the reason that Slurm has or gets. `done`: whether it was run and
    succeeded, None: not run; `message` says why it failed.
    """

    node: str
    reason: str
    argv: tuple[str, ...]
    done: bool | None = None
    message: str = ""


class DrainLimit(NamedTuple):
    """How many nodes may be out of service through us: a number, or a percentage of all."""

    number: int | None
    percent: int | None

    def of(self, nodes: int) -> int:
        """The number for so many nodes; a percentage is rounded down, but is at least one node."""
        return self.number or max(1, nodes * (self.percent or 0) // 100)

    def __str__(self) -> str:
        return f"{self.percent}%" if self.number is None else str(self.number)


def read_limit(text: str) -> DrainLimit:
    """The value of --drain-at-most. BadInputError: it is invalid."""
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise BadInputError(
            f"--drain-at-most {quoted(text)} is not a number of nodes or a percentage.",
            fix="Give one from 1 on, or from 1% to 100%: --drain-at-most 3",
        )
    count, percent = found.groups()
    return DrainLimit(int(count) if count else None, int(percent) if percent else None)


def drains(nodes: Sequence[Mapping[str, Any]]) -> tuple[Drain, ...]:
    """One for each node of the result that is itself at fault. What an image, its start or a slow
    number shows is for a person, and so is a node without a report.
    """
    return tuple(
        drain_of(node["name"], why_at_fault(node)) for node in nodes if node["at_fault"] == "node"
    )


def why_at_fault(node: Mapping[str, Any]) -> str:
    """The first check that failed through the node, with its message."""
    first = next(one for one in node["failed"] if one["at_fault"] == "node")
    return f"{first['check']}: {first['message']}"


def drain_of(name: str, why: str) -> Drain:
    """The reason is one line of plain ASCII without quotes: it is stored by Slurm, shown by sinfo,
    and pasted by people; it comes from an image that nobody trusts.
    """
    plain = re.sub(r"[^A-Za-z0-9 .,:;_+=/()\[\]%@#<>-]+", " ", why)
    reason = _OURS + " ".join(plain.split())
    if len(reason) > _LONGEST:
        reason = reason[: _LONGEST - 4].rstrip() + " ..."
    return Drain(name, reason, _update(name, "State=DRAIN", f"Reason={reason}"))


def over_limit(
    planned: Sequence[Drain], limit: DrainLimit, nodes: int, before: int
) -> NodeFailure | None:
    """Why none of these may be drained; None: all may. `nodes` were asked, and `before` of them are
    out of service through us already.
    """
    most, wanted = limit.of(nodes), len(planned)
    if not wanted or before + wanted <= most:
        return None
    already = f" and {before} drained already" if before else ""
    return NodeFailure(
        code="too-many-drains",
        message=f"Nothing is drained: {wanted} of {nodes} nodes are at fault{already}, and at most "
        f"{most} may be drained ({limit}).",
        fix="Look at the nodes first. To drain them all the same: --drain-at-most N",
    )


def drained_by_us(nodes: Sequence[SlurmNode]) -> tuple[Drain, ...]:
    """Drained nodes with a reason of ours, and the command that resumes each. Where somebody gave
    another reason since, the node is theirs.
    """
    return tuple(
        Drain(node.name, node.reason, _update(node.name, "State=RESUME"))
        for node in nodes
        if node.state.startswith("drain") and node.reason.startswith(_OURS)
    )


def unchanged(planned: Sequence[Drain], now: Sequence[SlurmNode]) -> tuple[Drain, ...]:
    """The planned ones; `done` is False where Slurm has another reason or state by now."""
    still = {(one.node, one.reason) for one in drained_by_us(now)}
    changed = "it was changed in Slurm meanwhile"
    return tuple(
        one if (one.node, one.reason) in still else one._replace(done=False, message=changed)
        for one in planned
    )


def _update(name: str, *words: str) -> tuple[str, ...]:
    return ("scontrol", "update", f"NodeName={name}", *words)


def run_drains(planned: Sequence[Drain]) -> tuple[Drain, ...]:
    """Run the commands; one that fails does not keep the others from it."""
    return tuple(one if one.done is False else _run(one) for one in planned)


def _run(one: Drain) -> Drain:
    try:
        done = process.run(one.argv, timeout_s=_COMMAND_S)
    except Failure as failure:
        return one._replace(done=False, message=failure.message)
    said = done.last_lines(1).strip() or process.describe_exit(done.code)
    return one._replace(done=done.ok, message="" if done.ok else said)
