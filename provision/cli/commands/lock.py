"""`provision lock`: the exact wheels and the base image, in a file."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from provision.cli.hosts import host_options, read_hosts
from provision.cli.option import option
from provision.cli.project import project_argument, read_project_option
from provision.cli.request import read_request_for, request_options
from provision.cli.settings import base_options, network_options, read_catalog, read_settings
from provision.errors import BadInputError, Exit
from provision.model.planfile import plan_to_json
from provision.model.request import quoted
from provision.output.console import Console
from provision.output.stdout import print_json, print_result

if TYPE_CHECKING:
    from provision.build.maker import LockedImage
    from provision.sources.find import Project

EXAMPLES = (
    "provision lock --cuda 12.8 --with transformers",
    "provision lock . --gpu H100 --driver 580.95.05 --output pylock.h100.toml",
)


def options(verb: argparse.ArgumentParser) -> None:
    """The plan, and where the lock goes."""
    plan_options(verb)
    option(verb, "--output", "PATH", "file to write (default: pylock.toml)", default="pylock.toml")


def plan_options(verb: argparse.ArgumentParser, *, with_project: bool = True) -> None:
    """What decides a plan, and how what it needs is fetched."""
    if with_project:
        project_argument(verb)
    request_options(verb)
    host_options(verb)
    network_options(verb)
    base_options(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """Plan, pin the base, choose the wheels, write the file."""
    from pathlib import Path

    from provision.lock.lockfile import write_lock
    from provision.output.files import refuse_unwritable

    output = Path(args.output)

    def refuse(project: Project | None) -> None:
        _check_lock_name(output.name, console)
        if project is not None:
            project.refuse_to_replace(output)
        refuse_unwritable("--output", output)

    lock = make_lock(args, console, refuse=refuse).lock
    write_lock(lock, output)
    result = {
        "schema": 1,
        "path": str(output),
        "sha256": lock.sha256,
        "packages": len(lock.wheels),
        "download_bytes": lock.download_bytes,
        "plan": plan_to_json(lock.plan),
        "error": None,
    }
    where = "" if args.project is None else f"{shlex.quote(args.project)} "
    if args.json:
        print_json(result)
    else:
        print_result(
            f"{output}: {len(lock.wheels)} wheels, sha256:{lock.sha256}\n"
            f"next: provision build {where}--lock {shlex.quote(str(output))}"
        )
    return Exit.DONE


def make_lock(
    args: argparse.Namespace, console: Console, *, refuse: Callable[[Project | None], None]
) -> LockedImage:
    """Plan, pin the base and choose the wheels. `refuse` is called before the network is used."""
    from provision.build.base import (
        PlanInputs,
        pin_base,
        pinned,
        refuse_missing_places,
        require_plan,
    )
    from provision.build.maker import LockedImage
    from provision.build.pipeline import choose_packages, lock_for, show_remarks
    from provision.build.project.pins import check_hashes, naming_pins

    catalog = read_catalog(console)
    read = cache(lambda: read_hosts(args, catalog))
    project = read_project_option(args)
    request = read_request_for(project, args, catalog, read)
    refuse(project)
    refuse_missing_places(request.base)
    inputs = PlanInputs(read(), request, catalog, read_settings(args), console)
    with naming_pins(project, inputs.hosts, request, catalog):
        plan, packages = choose_packages(require_plan(inputs.plan()), inputs, lambda: None)
        show_remarks(plan, console)
        with console.step("base", "pinning the base image"):
            plan, archive = pin_base(plan, packages.inputs, None, packages.choose_on_bootstrap)
        with console.step("lock", "resolving the wheels"):
            lock = lock_for(plan, packages)
        check_hashes(project, lock)
    return LockedImage(lock=lock, base=pinned(plan, archive))


def _check_lock_name(name: str, console: Console) -> None:
    """Warn of a name that installers do not take for a lock, before the network is used.
    BadInputError: it is not that of a TOML file.
    """
    from provision.lock.lockfile import LOCK_NAME

    if not name.endswith(".toml"):
        raise BadInputError(
            f"--output {quoted(name)}: a lock must be named pylock.toml or pylock.NAME.toml.",
            fix="Choose such a name (PEP 751: installers look for it).",
        )
    if not LOCK_NAME.fullmatch(name):
        console.warn(
            f"--output {quoted(name)}: pip and uv take a lock only if it is named pylock.toml or "
            "pylock.NAME.toml (PEP 751).",
            "provision build --lock takes it as it is; for other installers, rename it.",
        )
