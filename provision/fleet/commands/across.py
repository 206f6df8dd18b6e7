"""`provision fleet verify --across`: then all nodes together, and which of them spoil it."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from provision.cli.option import option
from provision.errors import BadInputError, Exit
from provision.fleet.across.groups import OTHER_WAYS, AcrossOrder, RoundRun
from provision.fleet.across.result import verify_across
from provision.fleet.commands.across_text import round_line
from provision.fleet.commands.nodes import job_wait_s, read_calls
from provision.fleet.nodes.in_image import MARGIN_S
from provision.fleet.nodes.slurm import SlurmJob
from provision.model.request import quoted
from provision.output.console import Console

_OPTIONS = ("interface", "master_address", "sizes")
_ADDRESS = re.compile(r"[A-Za-z0-9._:%{}-]{1,255}", re.ASCII)
_INTERFACE = re.compile(r"[A-Za-z0-9._:^=,-]{1,100}", re.ASCII)
_SIZES = re.compile(r"[0-9]{1,10}[KMG]?(?:,[0-9]{1,10}[KMG]?){0,40}", re.ASCII)
_WORSE = (Exit.UNFIT, Exit.UNREACHABLE, Exit.NO_VERDICT, Exit.DONE)


def across_options(verb: argparse.ArgumentParser) -> None:
    """Whether, and over which network."""
    option(
        verb,
        "--across",
        None,
        "then run collectives over all nodes that are not unfit, and find what spoils them",
    )
    for name, metavar, says in (
        (
            "--interface",
            "NAME",
            "network interface for NCCL and gloo (default: their own choice)",
        ),
        (
            "--master-address",
            "ADDRESS",
            "the first node's address for the others, for example {node}-ib (default: its name)",
        ),
        ("--sizes", "LIST", "message sizes, for example 64K,16M,1G"),
    ):
        option(verb, name, metavar, f"with --across: {says}", rare=True, requires=("--across",))


def check_across(args: argparse.Namespace) -> None:
    """BadInputError: an option is malformed, or what runs the image runs only the suite."""
    if args.across and args.on.partition(":")[0] == "kubernetes":
        raise BadInputError(
            "--across cannot be used with --on kubernetes.",
            fix="Remove --across, or run an Indexed Job over the nodes: provision export "
            "kubernetes IMAGE --nodes N",
        )
    if args.across and args.way == "provision":
        raise BadInputError(
            "--across cannot run with --way provision.",
            fix="Choose another program that runs the image on the nodes: --way docker",
        )
    for name, form in zip(_OPTIONS, (_INTERFACE, _ADDRESS, _SIZES), strict=True):
        given, text = f"--{name.replace('_', '-')}", getattr(args, name)
        if text is not None and not form.fullmatch(text):
            examples = {"interface": "eth0", "master_address": "{node}-ib", "sizes": "64K,16M"}
            raise BadInputError(
                f"{given} {quoted(text)} is malformed.", fix=f"For example: {examples[name]}"
            )


def run_across(
    args: argparse.Namespace,
    console: Console,
    image: str,
    ways: Sequence[str],
    nodes: Sequence[Mapping[str, Any]],
    timeout_s: float,
) -> dict[str, Any] | None:
    """The result for the nodes that are not unfit, by their results in the suite; None if fewer
    than two are left.
    """
    usable = {one["name"] for one in nodes if one["standing"] not in ("unfit", "not-tested")}
    if len(usable) < 2:
        return None
    limit_s = min(timeout_s, _MOST_S)
    order = AcrossOrder(
        image=image,
        ways=tuple(way for way in ways if way in OTHER_WAYS),
        master=args.master_address or "{node}",
        interface=args.interface,
        sizes=args.sizes,
        join_s=limit_s,
        timeout_s=limit_s,
        wait_s=job_wait_s(args.on, timeout_s),
    )
    job = SlurmJob(wait_s=order.wait_s, run_s=order.limit_s + MARGIN_S, whole=True)

    def tell(done: RoundRun) -> None:
        console.say(round_line(done))

    with contextlib.ExitStack() as held:
        calls = [
            call
            for call in read_calls(args, job, order.limit_s + 2 * MARGIN_S + order.wait_s, held)
            if call.name in usable
        ]
        with console.step("across", f"{len(calls)} nodes together", named=True):
            return verify_across(calls, order, tell)


_MOST_S = 300.0
"""The longest time that nodes wait for each other, and that a run over them may take."""


def worse(first: int, second: int) -> Exit:
    """The exit code of two results."""
    return next((code for code in _WORSE if code in (first, second)), Exit(first))
