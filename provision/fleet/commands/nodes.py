"""The options of commands that ask the nodes of a fleet: where they are, and with which limits."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence

from provision.cli.option import option
from provision.errors import BadInputError
from provision.fleet.nodes.calls import NodeCall
from provision.fleet.nodes.names import choose_calls, expand_names
from provision.fleet.nodes.ray import parse_address, ray_calls, ray_cluster
from provision.fleet.nodes.slurm import SlurmJob, list_nodes, parse_partition, slurm_calls
from provision.fleet.nodes.ssh import read_ssh_hosts, ssh_calls
from provision.model.request import quoted

MOST_AT_ONCE = 1024
KUBERNETES = "kubernetes[:CONTEXT[/NAMESPACE]]"
_MOST_WAIT_S = 300.0


def on_options(verb: argparse.ArgumentParser, *more: str) -> None:
    """Which nodes, and how they are reached; `more`: what only this command can ask."""
    *places, last = ("slurm[:PARTITION]", "ray[:ADDRESS]", *more)
    verb.add_argument(
        "--on",
        metavar="WHERE",
        required=True,
        help=f"ssh:FILE (a list with one [USER@]HOST[:PORT] a line), {', '.join(places)} or {last}",
    )
    verb.add_argument(
        "--nodes",
        metavar="NODES",
        help="only these: 'n[0-3,7],login1' (default: all)",
    )
    option(verb, "--at-once", "N", "nodes to ask at a time (default: 32)", default="32", rare=True)
    option(
        verb, "--ssh-config", "FILE", "configuration for ssh (default: the user's own)", rare=True
    )


def job_wait_s(on: str, timeout_s: float) -> float:
    """How long a job or a pod for a node may wait until the node is free; SSH and Ray have none."""
    waits = on.partition(":")[0] in ("slurm", "kubernetes")
    return min(timeout_s, _MOST_WAIT_S) if waits else 0.0


def chosen_calls(args: argparse.Namespace, calls: Sequence[NodeCall]) -> Sequence[NodeCall]:
    """The calls to the nodes that --nodes names. BadInputError: there is no such node."""
    if args.nodes is None:
        return calls
    return choose_calls(calls, expand_names(args.nodes))


def read_calls(
    args: argparse.Namespace,
    job: SlurmJob,
    timeout_s: float,
    held: contextlib.ExitStack,
    *more: str,
) -> Sequence[NodeCall]:
    """The calls. `job`: what each node's job of Slurm may use; `timeout_s`: how long a node may
    take; `held` ends what the calls need; `more`: as for `on_options`.
    """
    kind, _, where = args.on.partition(":")
    if args.ssh_config is not None and kind != "ssh":
        raise BadInputError("--ssh-config requires --on ssh:FILE.", fix="Remove it.")
    if kind == "ssh" and where:
        return ssh_calls(read_ssh_hosts(where), args.ssh_config)
    if kind == "slurm":
        return slurm_calls(list_nodes(parse_partition(where)), job)
    if kind == "ray":
        cluster = held.enter_context(ray_cluster(parse_address(where)))
        return ray_calls(cluster, timeout_s)
    raise BadInputError(
        f"--on {quoted(args.on)} is not supported.", fix=f"Use ssh:FILE, {_places(more)}."
    )


def _places(more: tuple[str, ...]) -> str:
    *places, last = ("slurm[:PARTITION]", "ray[:ADDRESS]", *more)
    return f"{', '.join(places)} or {last}"
