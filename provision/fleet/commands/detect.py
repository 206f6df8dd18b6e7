"""`provision fleet detect`: the facts of every node, in a host file for each."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence

from provision.cli.paths import output_folder
from provision.cli.settings import read_whole
from provision.errors import BadInputError, Exit
from provision.fleet.commands.nodes import (
    KUBERNETES,
    MOST_AT_ONCE,
    chosen_calls,
    on_options,
    read_calls,
)
from provision.fleet.commands.nodes_text import describe_nodes, node_line
from provision.fleet.nodes import kubernetes
from provision.fleet.nodes.calls import NodeCall
from provision.fleet.nodes.collect import NodeReading, collect
from provision.fleet.nodes.program import node_program
from provision.fleet.nodes.slurm import SlurmJob
from provision.fleet.nodes.work import NodeLimits
from provision.fleet.report import nodes_to_json
from provision.output.console import Console
from provision.output.stdout import print_json, print_result

EXAMPLES = (
    "provision fleet detect --on slurm:gpu --output hosts/",
    "provision fleet detect --on ssh:hosts.txt --output hosts/",
)
_LONGEST_S = 3600


def options(verb: argparse.ArgumentParser) -> None:
    """Which machines, how they are reached, and where the files go."""
    on_options(verb, KUBERNETES)
    verb.add_argument(
        "--output", metavar="DIR", required=True, help="directory for the host files (NODE.json)"
    )
    verb.add_argument(
        "--again", action="store_true", help="ask nodes that already have a host file, too"
    )
    verb.add_argument(
        "--timeout", metavar="SECONDS", default="60", help="time limit for each node (default: 60)"
    )
    verb.add_argument(
        "--image",
        metavar="IMAGE",
        help="with kubernetes: an image that has Python 3.8 or newer as python3",
    )
    verb.add_argument(
        "--runtime-class",
        metavar="NAME",
        help="with kubernetes: see all GPUs through this RuntimeClass (default: request them all)",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Read every node, and say which did not answer and why."""

    def tell(reading: NodeReading) -> None:
        console.progress(node_line(reading))

    limits = NodeLimits(
        read_whole("--at-once", args.at_once, MOST_AT_ONCE),
        read_whole("--timeout", args.timeout, _LONGEST_S),
    )
    job = SlurmJob(wait_s=limits.timeout_s / 2, run_s=limits.timeout_s)
    with contextlib.ExitStack() as held:
        calls = _kubernetes_calls(args, limits.timeout_s)
        if calls is None:
            calls = read_calls(args, job, limits.timeout_s, held, KUBERNETES)
        calls = chosen_calls(args, calls)
        folder = output_folder(args.output)
        with console.step("detect", f"reading {len(calls)} nodes, {limits.at_once} at a time"):
            readings = collect(calls, node_program(), folder, limits, again=args.again, tell=tell)
    if args.json:
        print_json(nodes_to_json(readings, folder))
    else:
        print_result(describe_nodes(readings, str(folder)))
    return Exit.UNREACHABLE if any(one.status == "failed" for one in readings) else Exit.DONE


def _kubernetes_calls(args: argparse.Namespace, timeout_s: float) -> Sequence[NodeCall] | None:
    """The calls of --on kubernetes, whose pods need an image; None: it is another engine."""
    kind, _, where = args.on.partition(":")
    if kind != "kubernetes":
        if args.image is not None or args.runtime_class is not None:
            option = "--runtime-class" if args.image is None else "--image"
            raise BadInputError(f"{option} requires --on kubernetes.", fix="Remove it.")
        return None
    if args.ssh_config is not None:
        raise BadInputError("--ssh-config requires --on ssh:FILE.", fix="Remove it.")
    if not args.image:
        raise BadInputError(
            "--on kubernetes requires an image for the pods.",
            fix="Name one that has Python 3.8 or newer as python3, for example "
            "--image python:3.12-slim, or an image of provision build.",
        )
    options = kubernetes.PodOptions(args.image, args.runtime_class, timeout_s)
    return kubernetes.read_kubernetes_calls(where, options)
