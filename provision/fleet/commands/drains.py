"""Nodes out of service in Slurm: what `fleet verify --drain` and `fleet undrain` share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from images.errors import Failure
from provision.cli.option import option
from provision.errors import BadInputError
from provision.fleet.nodes.calls import NodeFailure
from provision.fleet.nodes.names import expand_names
from provision.fleet.nodes.slurm import SlurmNode, list_nodes, parse_partition
from provision.fleet.verify.drain import (
    DEFAULT_LIMIT,
    Drain,
    drained_by_us,
    drains,
    over_limit,
    read_limit,
    run_drains,
)
from provision.output.console import Console
from provision.output.prompt import ask_at_terminal


def drain_options(verb: argparse.ArgumentParser) -> None:
    """What may be drained."""
    option(verb, "--drain", None, "(slurm) list the nodes that are at fault, ask, and drain them")
    option(verb, "--yes", None, "with --drain: do not ask", requires=("--drain",))
    option(
        verb,
        "--drain-at-most",
        "N|P%",
        "drain nothing if more nodes than this would be drained (default: 10%%, or one node)",
        rare=True,
        requires=("--drain",),
    )


def check_drain(args: argparse.Namespace) -> None:
    """BadInputError: an option is invalid."""
    if args.drain_at_most is not None:
        read_limit(args.drain_at_most)
    if args.drain and args.on.partition(":")[0] != "slurm":
        raise BadInputError(
            "--drain requires --on slurm.", fix="Take the nodes out of service by hand."
        )


def drain_nodes(
    args: argparse.Namespace, console: Console, nodes: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Drain, ...], dict[str, str] | None]:
    """The nodes at fault, drained if that is allowed, and why none may be."""
    planned = drains(nodes)
    if not planned:
        console.note("nothing is drained: no node is itself at fault")
        return (), None
    names = {node["name"] for node in nodes}
    try:
        before = [one.node for one in drained_by_us(slurm_nodes(args))]
        already = len(names.intersection(before) - {one.node for one in planned})
        limit = read_limit(args.drain_at_most or DEFAULT_LIMIT)
        why = over_limit(planned, limit, len(nodes), already)
    except Failure as failure:  # the result matters more
        why = NodeFailure(failure.code, failure.message, failure.fix)
    if why is not None:
        console.fail(why.message, why.fix)
        return planned, why._asdict()
    if agreed(args, console, planned, "Drain"):
        planned = run_drains(planned)
    return planned, None


def drain_json(one: Drain) -> dict[str, Any]:
    """A node in the JSON of both commands."""
    return {
        "node": one.node,
        "reason": one.reason,
        "command": list(one.argv),
        "done": one.done,
        "message": one.message or None,
    }


def slurm_nodes(args: argparse.Namespace) -> tuple[SlurmNode, ...]:
    return list_nodes(parse_partition(args.on.partition(":")[2]))


def chosen(args: argparse.Namespace, nodes: Sequence[SlurmNode]) -> Sequence[SlurmNode]:
    """The nodes that --nodes names. BadInputError: Slurm has no such node."""
    if args.nodes is None:
        return nodes
    names = expand_names(args.nodes)
    unknown = sorted(set(names) - {node.name for node in nodes})
    if unknown:
        raise BadInputError(f"Slurm has no node {unknown[0]}.", fix="See the names: sinfo --Node")
    return [node for node in nodes if node.name in names]


def agreed(args: argparse.Namespace, console: Console, planned: Sequence[Drain], verb: str) -> bool:
    """Whether they may be changed: with --yes, or a person says so. The list is shown first."""
    asks = not args.yes and not args.json and sys.stdin is not None and sys.stdin.isatty()
    if not planned or not (args.yes or asks):
        return False
    for one in planned:
        console.say(f"{verb.lower()} {one.node}: {one.reason}")
    if args.yes:
        return True
    count = len(planned)
    return ask_at_terminal(f"{verb} {count} node{'' if count == 1 else 's'}?")
