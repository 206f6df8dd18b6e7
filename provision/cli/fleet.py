"""`provision fleet ...`: read many machines, and plan images for them."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.cli.fleet_nodes import (
    KUBERNETES,
    MOST_AT_ONCE,
    chosen_calls,
    on_options,
    output_folder,
    read_calls,
)
from provision.cli.options import read_catalog, read_request, read_whole
from provision.cli.typed import plan_words
from provision.errors import BadInputError, Exit, exit_of_refusal
from provision.fleet.classes import classes_of
from provision.fleet.hostfiles import read_fleet_hosts
from provision.fleet.images import FleetImage, FleetPlan, FleetResolver, plan_fleet
from provision.fleet.report import fleet_to_json
from provision.fleet.what_if import change_driver
from provision.model.request import parse_driver
from provision.output.console import Console
from provision.output.stdout import print_json, print_result

if TYPE_CHECKING:
    from provision.fleet.nodes.calls import NodeCall
    from provision.fleet.nodes.collect import NodeReading

_LONGEST_S = 3600


def fleet_detect_options(verb: argparse.ArgumentParser) -> None:
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


def do_fleet_detect(args: argparse.Namespace, console: Console) -> int:
    """Read every node, and say which did not answer and why."""
    from provision.cli.render.fleet_nodes import describe_nodes, node_line
    from provision.fleet.nodes.collect import collect
    from provision.fleet.nodes.program import node_program
    from provision.fleet.nodes.slurm import SlurmJob
    from provision.fleet.nodes.work import NodeLimits
    from provision.fleet.report import nodes_to_json

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
    from provision.fleet.nodes import kubernetes

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


def hosts_argument(verb: argparse.ArgumentParser) -> None:
    """The machines."""
    verb.add_argument(
        "hosts",
        metavar="HOSTS",
        nargs="+",
        help="host files (JSON, or what nvidia-smi printed), or directories of them",
    )


def fleet_plan_options(verb: argparse.ArgumentParser) -> None:
    """Which machines, and what if they had another driver."""
    hosts_argument(verb)
    verb.add_argument(
        "--if-driver",
        metavar="V",
        help="show how many images are enough if older machines get this driver, and which of "
        "them need it",
    )


def do_fleet_plan(args: argparse.Namespace, console: Console) -> int:
    """The fewest images, which node gets which, and why there are not fewer."""
    driver = None if args.if_driver is None else parse_driver(args.if_driver, "--if-driver")
    catalog = read_catalog(console)
    request = read_request(args, catalog)
    resolver = FleetResolver(request, catalog)
    classes = classes_of(read_fleet_hosts(args.hosts, catalog))
    plan = plan_fleet(classes, resolver)
    change = None if driver is None else change_driver(classes, driver, resolver)

    def command(image: FleetImage) -> str:
        hosts = [word for one in image.classes for word in ("--host", one.path)]
        packages = [word for name in request.companions for word in ("--with", name)]
        typed = plan_words(args)
        words = shlex.join(["provision", "build", *hosts, *packages])
        return f"{words} {typed}" if typed else words

    if args.json:
        print_json(fleet_to_json(plan, classes, change, command))
    else:
        from provision.cli.render.fleet import describe_fleet

        print_result(describe_fleet(plan, change, command))
    return exit_of(plan)


def exit_of(plan: FleetPlan) -> Exit:
    """As of `plan` for the nodes that no image serves: 4 if only the nodes themselves can change
    that.
    """
    codes = {exit_of_refusal(one.error.code) for one in plan.unserved}
    if not codes:
        return Exit.DONE if plan.images else Exit.HOST_UNFIT
    return Exit.HOST_UNFIT if codes == {Exit.HOST_UNFIT} else Exit.NOTHING_COMPATIBLE
