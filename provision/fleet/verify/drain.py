"""Takes unfit nodes out of service: Slurm's commands, with the failed check as the reason.

https://slurm.schedmd.com/scontrol.html: State=DRAIN needs a Reason; jobs that run there go on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from images.errors import Failure
from images.system import process

_LONGEST = 180
_COMMAND_S = 60.0


class Drain(NamedTuple):
    """The command for a node. `done`: whether it was run and succeeded, None: not run; `message`
    says why it failed.
    """

    node: str
    argv: tuple[str, ...]
    done: bool | None = None
    message: str = ""


def drains(nodes: Sequence[Mapping[str, Any]]) -> tuple[Drain, ...]:
    """One for each unfit node of the result. A slow node still works: that is for a person."""
    return tuple(
        Drain(node["name"], drain_command(node["name"], why_unfit(node)))
        for node in nodes
        if node["standing"] == "unfit"
    )


def why_unfit(node: Mapping[str, Any]) -> str:
    """The first failed check with its message, or why there is no report."""
    if node["failed"]:
        first = node["failed"][0]
        return f"{first['check']}: {first['message']}"
    return f"{node['code']}: {node['message']}"


def drain_command(name: str, why: str) -> tuple[str, ...]:
    """The argv. The reason is one line of plain ASCII without quotes: it is stored by Slurm, shown
    by sinfo, and pasted by people; it comes from an image that nobody trusts.
    """
    plain = re.sub(r"[^A-Za-z0-9 .,:;_+=/()\[\]%@#<>-]+", " ", why)
    plain = " ".join(plain.split())
    reason = f"gpu-provision: {plain}"
    if len(reason) > _LONGEST:
        reason = reason[: _LONGEST - 4].rstrip() + " ..."
    return ("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")


def run_drains(planned: Sequence[Drain]) -> tuple[Drain, ...]:
    """Run the commands; one that fails does not keep the others from it."""
    return tuple(_run(one) for one in planned)


def _run(one: Drain) -> Drain:
    try:
        done = process.run(one.argv, timeout_s=_COMMAND_S)
    except Failure as failure:
        return one._replace(done=False, message=failure.message)
    said = done.last_lines(1).strip() or process.describe_exit(done.code)
    return one._replace(done=done.ok, message="" if done.ok else said)
