"""`provision fleet verify`: the suite on every node, in its image."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from provision.cli.fleet_across import across_options, check_across, run_across, worse
from provision.cli.fleet_drain import check_drain, drain_json, drain_nodes, drain_options
from provision.cli.fleet_nodes import (
    KUBERNETES,
    MOST_AT_ONCE,
    chosen_calls,
    job_wait_s,
    on_options,
    output_folder,
    read_calls,
)
from provision.cli.options import read_catalog, read_places, read_whole
from provision.cli.paths import absolute_file
from provision.cli.suite_options import read_image, read_level, read_seconds
from provision.errors import BadInputError, Exit
from provision.output.console import Console
from provision.output.stdout import print_json, print_result

if TYPE_CHECKING:
    from provision.fleet.nodes.calls import NodeCall
    from provision.fleet.verify.order import FleetOrder

_FORMATS = ("junit", "html", "prometheus")


def fleet_verify_options(verb: argparse.ArgumentParser) -> None:
    """Which nodes, which image, how it runs there, and what is written."""
    on_options(verb, KUBERNETES)
    add = verb.add_argument
    add("--image", metavar="IMAGE", required=True, help="image built by provision build")
    add("--output", metavar="DIR", required=True, help="directory for the reports (NODE.json)")
    add("--level", metavar="LEVEL", help="quick, standard (default) or full")
    add(
        "--timeout",
        metavar="SECONDS",
        help="time limit of the suite on each node (default: 1800)",
    )
    add("--again", action="store_true", help="test nodes that already have a report, too")
    add(
        "--way",
        metavar="WAY",
        help="what runs the image on the nodes: provision, docker, podman, apptainer or enroot "
        "(default: the first that a node has)",
    )
    add(
        "--provision",
        metavar="COMMAND",
        help='command of a checkout that the nodes share: "/shared/gpu-provision/run provision"',
    )
    for name, what in (
        ("html", "one page: nodes and checks, worst first"),
        ("junit", "JUnit XML, a test case for each node"),
        ("prometheus", "metrics for node_exporter's textfile collector"),
    ):
        add(f"--{name}", metavar="FILE", help=f"write {what}")
    drain_options(verb)
    across_options(verb)


def do_fleet_verify(args: argparse.Namespace, console: Console) -> int:
    """Test every node, judge all reports, and say what is wrong, the worst first."""
    from images.system.scratch import scratch_directory
    from provision.cli.render.fleet_across import describe_across
    from provision.cli.render.fleet_verify import describe_verified, report_line
    from provision.fleet.nodes.in_image import MARGIN_S
    from provision.fleet.nodes.slurm import SlurmJob
    from provision.fleet.nodes.work import NodeLimits
    from provision.fleet.verify.order import read_order
    from provision.fleet.verify.reports import NodeReport, verify_nodes
    from provision.fleet.verify.result import judge_fleet
    from provision.verification.report_files import refuse_unusable
    from provision.verification.subject import find_subject

    files = _read_files(args)
    refuse_unusable(files, None)
    check_drain(args)
    check_across(args)
    level, timeout_s = read_level(args.level), read_seconds(args.timeout)
    image = read_image(args.image)
    at_once = read_whole("--at-once", args.at_once, MOST_AT_ONCE)
    order = read_order(
        find_subject(image, read_places(args, console)),
        read_catalog(console),
        level=level,
        timeout_s=timeout_s,
        way=args.way,
        provision=args.provision,
        inside=args.on.partition(":")[0] == "kubernetes",
    )
    wait_s = job_wait_s(args.on, timeout_s)
    job = SlurmJob(wait_s=wait_s, run_s=timeout_s + MARGIN_S, whole=True)
    limits = NodeLimits(at_once, timeout_s + 2 * MARGIN_S + wait_s)

    def tell(report: NodeReport) -> None:
        console.say(report_line(report))

    with contextlib.ExitStack() as held:
        spare = held.enter_context(scratch_directory())
        calls = chosen_calls(
            args,
            _pods(args, order, limits.timeout_s, wait_s)
            or read_calls(args, job, limits.timeout_s, held, KUBERNETES),
        )
        folder = output_folder(args.output)
        nodes = "1 node" if len(calls) == 1 else f"{len(calls)} nodes, {at_once} at a time"
        what = f"{image}, level {level}, on {nodes}"
        with console.step("verify", what, named=True):
            reports = verify_nodes(
                calls, order, folder, limits, spare=spare, again=args.again, tell=tell
            )
        found = judge_fleet(reports, order, folder, files)
        across = None
        if args.across:
            across = run_across(args, console, order.image, order.ways, found["nodes"], timeout_s)
        if across is not None:
            found["exit_code"] = worse(found["exit_code"], across["exit_code"])
            if files:  # they were written without it, so that they exist if this was interrupted
                judge_fleet(reports, order, folder, files, across)
    planned, refused = drain_nodes(args, console, found["nodes"]) if args.drain else ((), None)
    if args.json:
        drained = {"drain": [drain_json(one) for one in planned], "drain_error": refused}
        print_json({**found, "across": across, **drained, "error": None})
    else:
        text = describe_verified(found, planned)
        print_result(f"{text}\n{describe_across(across)}" if args.across else text)
    if any(one.done is False for one in planned) and found["exit_code"] != Exit.UNFIT:
        return Exit.UNREACHABLE
    return Exit(found["exit_code"])


def _pods(
    args: argparse.Namespace, order: FleetOrder, timeout_s: float, wait_s: float
) -> tuple[NodeCall, ...]:
    """The calls of --on kubernetes; (): it is another engine."""
    kind, _, where = args.on.partition(":")
    if kind != "kubernetes":
        return ()
    from provision.fleet.nodes.kubernetes import PodOptions, read_kubernetes_calls

    if args.ssh_config is not None:
        raise BadInputError("--ssh-config requires --on ssh:FILE.", fix="Remove it.")
    return read_kubernetes_calls(
        where, PodOptions(order.image, None, timeout_s, wait_s, suite=True)
    )


def _read_files(args: argparse.Namespace) -> dict[str, Path]:
    return {
        name: absolute_file(f"--{name}", given)
        for name in _FORMATS
        if (given := getattr(args, name)) is not None
    }
