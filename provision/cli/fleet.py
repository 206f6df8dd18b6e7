"""`provision fleet ...`: read many machines, and plan images for them."""

from __future__ import annotations

import argparse
import shlex

from provision.cli.options import plan_words, read_catalog, read_request
from provision.errors import Exit, exit_of_refusal
from provision.fleet.classes import classes_of
from provision.fleet.hostfiles import read_fleet_hosts
from provision.fleet.images import FleetImage, FleetPlan, FleetResolver, plan_fleet
from provision.fleet.report import fleet_to_json
from provision.fleet.what_if import change_driver
from provision.model.request import parse_driver
from provision.output.console import Console
from provision.output.stdout import print_json, print_result


def fleet_plan_options(verb: argparse.ArgumentParser) -> None:
    """Which machines, and what if they had another driver."""
    verb.add_argument(
        "hosts",
        metavar="HOSTS",
        nargs="+",
        help="host files, or directories of host files (*.json)",
    )
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
    resolver = FleetResolver(read_request(args, catalog), catalog)
    classes = classes_of(read_fleet_hosts(args.hosts))
    plan = plan_fleet(classes, resolver)
    change = None if driver is None else change_driver(classes, driver, resolver)

    def command(image: FleetImage) -> str:
        hosts = [word for one in image.classes for word in ("--host", one.path)]
        packages = [word for name in args.companions for word in ("--with", name)]
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
