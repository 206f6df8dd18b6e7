"""`provision fleet verify`: the suite on every node, in its image."""

from __future__ import annotations

import argparse
import contextlib

from images.system.scratch import scratch_directory
from provision.cli.option import option
from provision.cli.paths import absolute_file, output_folder
from provision.cli.settings import (
    image_names,
    network_options,
    read_catalog,
    read_image,
    read_places,
    read_whole,
)
from provision.cli.suite import (
    burn_option,
    level_option,
    read_minutes,
    read_seconds,
    timeout_option,
)
from provision.errors import BadInputError, Exit
from provision.fleet.commands.across import across_options, check_across, run_across, worse
from provision.fleet.commands.across_text import describe_across
from provision.fleet.commands.drains import check_drain, drain_json, drain_nodes, drain_options
from provision.fleet.commands.nodes import (
    KUBERNETES,
    MOST_AT_ONCE,
    chosen_calls,
    job_wait_s,
    on_options,
    read_calls,
)
from provision.fleet.commands.verify_text import describe_verified, report_line
from provision.fleet.nodes.calls import NodeCall
from provision.fleet.nodes.in_image import MARGIN_S
from provision.fleet.nodes.kubernetes import PodOptions, read_kubernetes_calls
from provision.fleet.nodes.slurm import SlurmJob
from provision.fleet.nodes.work import NodeLimits
from provision.fleet.verify.order import FleetOrder, read_order
from provision.fleet.verify.reports import NodeReport, verify_nodes
from provision.fleet.verify.result import judge_fleet
from provision.output.console import Console
from provision.output.stdout import print_json, print_result
from provision.verification.report_files import refuse_unusable
from provision.verification.subject import find_subject

_FORMATS = ("junit", "html", "prometheus")


EXAMPLES = ("provision fleet verify --on slurm --image oci:/shared/images:NAME --output reports/",)


def options(verb: argparse.ArgumentParser) -> None:
    """Which nodes, which image, how it runs there, and what is written."""
    on_options(verb, KUBERNETES)
    option(
        verb,
        "--image",
        "IMAGE",
        "image built by provision build",
        required=True,
        complete=image_names,
    )
    option(verb, "--output", "DIR", "directory for the reports (NODE.json)", required=True)
    level_option(verb)
    burn_option(verb)
    timeout_option(verb, "time limit of the suite on each node, to which --burn is added")
    verb.add_argument(
        "--again", action="store_true", help="test nodes that already have a report, too"
    )
    option(
        verb,
        "--way",
        "WAY",
        "what runs the image on the nodes: provision, docker, podman, apptainer or enroot "
        "(default: the first that a node has)",
        rare=True,
    )
    option(
        verb,
        "--provision",
        "COMMAND",
        'command of a checkout that the nodes share: "/shared/gpu-provision/run provision"',
        rare=True,
    )
    for name, rare, says in (
        ("html", False, "one page: nodes and checks, worst first"),
        ("junit", True, "JUnit XML, a test case for each node"),
        ("prometheus", True, "metrics for node_exporter's textfile collector"),
    ):
        option(verb, f"--{name}", "FILE", f"write {says}", rare=rare)
    drain_options(verb)
    across_options(verb)
    network_options(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """Test every node, judge all reports, and say what is wrong, the worst first."""
    files = {
        name: absolute_file(f"--{name}", given)
        for name in _FORMATS
        if (given := getattr(args, name)) is not None
    }
    refuse_unusable(files, None)
    check_drain(args)
    check_across(args)
    level, timeout_s = args.level or "standard", read_seconds(args.timeout)
    burn_min = read_minutes(args.burn)
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
        burn_min=burn_min,
    )
    wait_s = job_wait_s(args.on, order.whole_s)
    job = SlurmJob(wait_s=wait_s, run_s=order.whole_s + MARGIN_S, whole=True)
    limits = NodeLimits(at_once, order.whole_s + 2 * MARGIN_S + wait_s)

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
    if args.ssh_config is not None:
        raise BadInputError("--ssh-config requires --on ssh:FILE.", fix="Remove it.")
    return read_kubernetes_calls(
        where, PodOptions(order.image, None, timeout_s, wait_s, suite=True)
    )
