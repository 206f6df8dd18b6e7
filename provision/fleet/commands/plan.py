"""`provision fleet plan`: the fewest images that serve all machines."""

from __future__ import annotations

import argparse
import shlex

from provision.cli.hostfiles import read_fleet_hosts
from provision.cli.option import option, retyped
from provision.cli.request import read_request, request_options
from provision.cli.settings import read_catalog
from provision.errors import Exit, exit_of_refusal
from provision.fleet.classes import classes_of
from provision.fleet.commands.plan_text import describe_fleet
from provision.fleet.images import FleetImage, FleetPlan, FleetResolver, plan_fleet
from provision.fleet.report import fleet_to_json
from provision.fleet.what_if import change_driver
from provision.model.request import parse_driver
from provision.output.console import Console
from provision.output.stdout import print_json, print_result

EXAMPLES = ("provision fleet plan hosts/ --framework jax",)


def options(verb: argparse.ArgumentParser) -> None:
    """Which machines, and what if they had another driver."""
    hosts_argument(verb)
    if_driver_option(
        verb,
        "show how many images are enough if older machines get this driver, and which of "
        "them need it",
    )
    request_options(verb)


def hosts_argument(verb: argparse.ArgumentParser) -> None:
    """The machines."""
    verb.add_argument(
        "hosts",
        metavar="HOSTS",
        nargs="+",
        help="host files (JSON, or what nvidia-smi printed), or directories of them",
    )


def if_driver_option(verb: argparse.ArgumentParser, says: str) -> None:
    """--if-driver."""
    option(verb, "--if-driver", "V", says)


def run(args: argparse.Namespace, console: Console) -> int:
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
        typed = retyped(args, "plan")
        words = shlex.join(["provision", "build", *hosts, *packages])
        return f"{words} {typed}" if typed else words

    if args.json:
        print_json(fleet_to_json(plan, classes, change, command))
    else:
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
