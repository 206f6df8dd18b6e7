"""`provision wheel`: build packages that an index has only the source of."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from provision.cli.commands.lock import plan_options
from provision.cli.hosts import read_hosts
from provision.cli.paths import image_home, record_home, wheel_home
from provision.cli.request import read_request
from provision.cli.settings import builder_option, read_catalog, read_settings
from provision.cli.sizes import store_limit
from provision.errors import Exit
from provision.output.console import Console
from provision.output.stdout import print_json, print_result

if TYPE_CHECKING:
    from provision.build.source.command import WheelOrder
    from provision.catalog.catalog import Catalog


EXAMPLES = ("provision wheel flash-attn --output wheels/",)


def options(verb: argparse.ArgumentParser) -> None:
    """Which packages are built, and where copies of the wheels go."""
    verb.add_argument(
        "requirements",
        metavar="REQUIREMENT",
        nargs="+",
        help="package to build: torch-scatter or 'flash-attn>=2.8'",
    )
    verb.add_argument("--output", metavar="DIR", help="copy the wheels to this directory")
    builder_option(verb, "how the devel image is built: docker, oci or auto (default)")
    plan_options(verb, with_project=False)


def run(args: argparse.Namespace, console: Console) -> int:
    """Build the wheels, or find the ones that were built before."""
    from images.store.locks import present
    from provision.build.source.command import build_wheels

    catalog = read_catalog(console)
    order = _read_order(args, catalog)
    with present(order.job.settings.state):
        result = build_wheels(order, hosts=lambda: read_hosts(args, catalog), console=console)
    if args.json:
        print_json(result)
    else:
        job = order.job
        print_result(describe_wheels(result["wheels"], job.request.companions, job.settings.typed))
    return Exit.DONE


def describe_wheels(
    wheels: Sequence[Mapping[str, Any]], companions: Sequence[str], typed: str
) -> str:
    """Each wheel in a paragraph, and what to type next: `companions` are the packages of --with,
    `typed` the other options of the plan.
    """
    from provision.resolve.packages import name_of

    lines = []
    for one in wheels:
        gpus = ", ".join(one["key"]["capabilities"])
        how = "built" if one["built"] else "built before"
        lines += [
            f"{one['name']} {one['version']}: {how}, for compute capability {gpus}",
            f"  {one['output'] or one['path']}",
            f"  sha256:{one['sha256']}",
        ]
    built = {one["name"]: f"{one['name']}=={one['version']}" for one in wheels}
    named = [*built.values(), *(line for line in companions if name_of(line) not in built)]
    words = " ".join(f"--with {shlex.quote(line)}" for line in named)
    return "\n".join([*lines, f"next: provision lock {words} {typed}".rstrip()])


def _read_order(args: argparse.Namespace, catalog: Catalog) -> WheelOrder:
    from pathlib import Path

    from provision.build.documents import Documenting
    from provision.build.packing import Making
    from provision.build.source.command import WheelOrder
    from provision.build.work import BuildJob
    from provision.verification.suite import SuiteRequest

    job = BuildJob(
        request=read_request(args, catalog),
        catalog=catalog,
        settings=read_settings(args),
        suite=SuiteRequest(),
        making=Making(store_limit=store_limit(os.environ)),
        images=image_home(),
        documenting=Documenting(home=record_home(), enabled=False),
        builder=args.builder,
        verify=False,
    )
    return WheelOrder(
        requirements=tuple(args.requirements),
        job=job,
        wheels=wheel_home(),
        output=None if args.output is None else Path(args.output),
    )
