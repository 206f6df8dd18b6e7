"""`provision fleet check`: which images run on which nodes, and what another driver would break."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from provision.cli.hostfiles import read_fleet_hosts
from provision.cli.option import option
from provision.cli.settings import (
    image_names,
    network_options,
    read_catalog,
    read_image,
    read_places,
)
from provision.errors import BadInputError, Exit
from provision.fleet.check import CheckedImage, check_image
from provision.fleet.classes import NodeClass, classes_of, several
from provision.fleet.commands.plan import hosts_argument, if_driver_option
from provision.fleet.report import class_to_json
from provision.lock.labels import cut_of, plan_of
from provision.model.plan import TITLES
from provision.model.request import parse_driver
from provision.output.console import Console
from provision.output.stdout import print_json, print_result
from provision.output.text import row
from provision.verification.on_host import HostVerdict
from provision.verification.subject import find_subject

_NODES = 6
_LABELS = {True: "runs on", False: "not on", None: "not known"}


def options(verb: argparse.ArgumentParser) -> None:
    """Which machines, which images, and with which driver."""
    hosts_argument(verb)
    option(
        verb,
        "--image",
        "IMAGE",
        "image built by provision build (repeatable)",
        dest="images",
        several=True,
        complete=image_names,
    )
    if_driver_option(verb, "show what changes if older machines get this driver")
    network_options(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """Read the images' labels, and judge each on each class of nodes. Nothing is run."""
    if not args.images:
        raise BadInputError(
            "No image is named.", fix="Name each with --image, for example: --image team/torch:1"
        )
    driver = None if args.if_driver is None else parse_driver(args.if_driver, "--if-driver")
    names = [read_image(text) for text in args.images]
    catalog = read_catalog(console)
    classes = classes_of(read_fleet_hosts(args.hosts, catalog))
    places = read_places(args, console)
    checked = []
    for name in names:
        labels = find_subject(name, places).labels
        plan, cut = plan_of(labels, name), cut_of(labels, name)
        checked.append(check_image(name, plan, classes, driver, catalog, cut))
    if args.json:
        print_json(checks_to_json(checked, classes, driver))
    else:
        print_result(describe_checks(checked, classes, driver))
    if any(one.breaks for one in checked):
        return Exit.UNFIT
    nowhere = any(not any(verdict.runs for verdict in one.now) for one in checked)
    return Exit.NOTHING_COMPATIBLE if nowhere else Exit.DONE


def checks_to_json(
    checked: Sequence[CheckedImage], classes: Sequence[NodeClass], driver: str | None
) -> dict[str, Any]:
    """The result of the command; docs/json.md has the format."""

    def rows(verdicts: Sequence[HostVerdict]) -> list[dict[str, Any]]:
        return [
            {"class": number, "runs": one.runs, "how": one.how, "message": one.message or None}
            for number, one in enumerate(verdicts)
        ]

    return {
        "schema": 1,
        "classes": [class_to_json(one) for one in classes],
        "if_driver": driver,
        "images": [
            {
                "image": one.name,
                "framework": {"name": one.plan.framework, "version": one.plan.framework_version},
                "cuda": one.plan.cuda,
                "now": rows(one.now),
                "then": None if one.then is None else rows(one.then),
                "breaks": list(one.breaks),
                "gains": list(one.gains),
            }
            for one in checked
        ],
        "error": None,
    }


def describe_checks(
    checked: Sequence[CheckedImage], classes: Sequence[NodeClass], driver: str | None
) -> str:
    """Each image: the nodes that it runs on, those that it does not run on, what would change."""
    lines: list[str] = []
    for one in checked:
        plan = one.plan
        title = f"{TITLES[plan.framework]} {plan.framework_version}, CUDA {plan.cuda}"
        lines += row("image", one.name) + row("", title)
        for runs, label in _LABELS.items():
            lines += _rows(label, one.now, classes, runs)
        if driver is not None:
            lines += _changes(one, classes, driver)
        lines.append("")
    return "\n".join(lines).rstrip("\n")


def _rows(
    label: str, verdicts: Sequence[HostVerdict], classes: Sequence[NodeClass], runs: object
) -> Iterator[str]:
    for one, verdict in zip(classes, verdicts, strict=True):
        if verdict.runs is runs:
            why = verdict.message.removesuffix(".") or verdict.how
            yield from row(label, f"{several(one.nodes, _NODES)} ({one.words}): {why}")
            label = ""


def _changes(one: CheckedImage, classes: Sequence[NodeClass], driver: str) -> Iterator[str]:
    then = one.then or ()
    for number in one.breaks:
        why = then[number].message.removesuffix(".")
        yield from row("breaks", f"{several(classes[number].nodes, _NODES)}, with {driver}: {why}")
    for number in one.gains:
        yield from row("then runs", f"{several(classes[number].nodes, _NODES)}, with {driver}")
    if not one.breaks and not one.gains:
        yield from row("driver", f"{driver} changes nothing for it")
