"""`provision plan`: a compatible combination, or why nothing fits."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from provision.cli.command_line import request_words
from provision.cli.hosts import host_options, read_hosts
from provision.cli.option import option
from provision.cli.project import project_argument, read_project_option
from provision.cli.request import read_request_for, request_options
from provision.cli.settings import network_options, read_catalog
from provision.errors import BadInputError, Exit, exit_of_refusal
from provision.model.plan import Cell, HostFacts, Plan
from provision.model.planfile import matrix_to_json, plan_to_json
from provision.output.console import Console
from provision.output.stdout import print_document, print_json, print_result

if TYPE_CHECKING:
    from provision.catalog.catalog import Catalog
    from provision.cli.render.install import HostInstall
    from provision.cli.render.plan import Installing

EXAMPLES = (
    "provision plan",
    "provision plan --gpu V100 --driver 535 --cuda 11.7 --explain",
    "provision plan --host node1.json --host node2.json --with vllm",
    "provision plan requirements-gpu.txt --gpu H100 --driver 580.95.05",
    "provision plan --format uv | sh",
)


def options(verb: argparse.ArgumentParser) -> None:
    """The request, the machines, and how the plan is shown."""
    project_argument(verb)
    verb.add_argument("--explain", action="store_true", help="show every reason, with its source")
    verb.add_argument("--matrix", action="store_true", help="list every build and whether it fits")
    option(
        verb,
        "--format",
        "KIND",
        "print how to install it without a container: uv or pip (shell commands), or conda "
        "(environment.yml)",
        choices=("uv", "pip", "conda"),
    )
    request_options(verb)
    host_options(verb)
    network_options(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """A plan, or why nothing fits, for what a project declares if one is named; with --matrix
    every build and whether it fits; with --format how to install it without a container.
    """
    from provision.resolve import matrix, resolve

    install = _read_format(args)
    catalog = read_catalog(console)
    read = cache(lambda: read_hosts(args, catalog))
    project = read_project_option(args)
    request = read_request_for(project, args, catalog, read)
    if args.ca_bundle is not None:
        from provision.lock.network import ca_bundle

        ca_bundle(args.ca_bundle, {})
    hosts = read()
    plan = resolve(hosts, request, catalog)
    if install is None and request.companions:
        from provision.resolve.run_time import plan_for_needs, requested_needs, with_remarks

        needs = requested_needs(request)
        request, plan = plan_for_needs(hosts, request, catalog, needs)
        plan = with_remarks(plan, hosts, request, catalog, needs)
    if project is not None:
        from provision.build.project.pins import with_lines

        plan = with_lines(plan, project, hosts, request, catalog)
    if install is not None:
        _show_install(plan, install, catalog, console)
        return Exit.DONE
    cells: Sequence[Cell] = ()
    if args.matrix:
        cells = matrix(hosts, request, catalog)
    elif args.explain:
        cells = matrix(hosts, request._replace(cuda=None), catalog)
    if args.json:
        result = plan_to_json(plan)
        print_json({**result, "matrix": matrix_to_json(cells)} if args.matrix else result)
    else:
        from provision.cli.render.plan import describe_matrix, describe_plan

        if args.matrix:
            print_result(describe_matrix(cells, plan))
        else:
            installing = _installing(args, plan, catalog, hosts) if plan.error is None else None
            print_result(describe_plan(plan, installing, explain=args.explain, considered=cells))
    return Exit.DONE if plan.error is None else exit_of_refusal(plan.error.code)


def _installing(
    args: argparse.Namespace, plan: Plan, catalog: Catalog, hosts: Sequence[HostFacts]
) -> Installing:
    """What to type for a plan. Where more is needed than commands, --format says it."""
    from provision.cli.render.install import host_install, is_alone, pip_commands
    from provision.cli.render.plan import Installing
    from provision.resolve.builds import build_of

    known = hosts if plan.verdict != "unverified" else ()
    words, build = request_words(args, known), build_of(plan, catalog)
    by_commands = args.project is None and not args.companions and is_alone(plan, build)
    in_full = " ".join(filter(None, ("provision plan", words, "--format pip")))
    host = pip_commands(host_install(plan, build)) if by_commands else (in_full,)
    return Installing(
        build=f"provision build {words}".rstrip(),
        host=host,
        toolkit=build.libraries == "system" or plan.flavour == "devel",
    )


def _read_format(args: argparse.Namespace) -> Callable[[HostInstall], str] | None:
    """What renders the plan with --format; None without it. BadInputError: an option that
    determines the output, too.
    """
    if args.format is None:
        return None
    from provision.cli.render.install import FORMATS

    for name in ("json", "matrix", "explain"):
        if getattr(args, name):
            raise BadInputError(
                f"--format and --{name} both determine the output.", fix="Remove one of them."
            )
    return FORMATS[args.format]


def _show_install(
    plan: Plan, install: Callable[[HostInstall], str], catalog: Catalog, console: Console
) -> None:
    """Only what can be saved and run goes to stdout; the plan's remarks go to stderr."""
    from provision.build.base import require_plan
    from provision.build.pipeline import show_remarks
    from provision.cli.render.install import host_install
    from provision.resolve.builds import build_of

    plan = require_plan(plan)
    show_remarks(plan, console)
    print_document(install(host_install(plan, build_of(plan, catalog))))
