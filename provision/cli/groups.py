"""The commands that have subcommands, such as `provision fleet`, and what a command is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from provision.cli.arguments import (
    base_options,
    measure_options,
    network_options,
    page_options,
    refresh_options,
    request_options,
    show_arguments,
)
from provision.output.console import Console


def later(module: str, name: str) -> Callable[..., Any]:
    """A function whose module is imported when it is called: `plan` does not need it."""

    def call(*given: object) -> Any:  # noqa: ANN401  whatever that function gives
        return getattr(import_module(f"provision.cli.{module}"), name)(*given)

    return call


class Command(NamedTuple):
    """One command: what it does, which options it takes beside --json, and the function.
    `is_program`: words after -- are a command, whose output is ours: without --json, and -v is not
    short for --verbose. `is_hidden`: the list of commands leaves it out.
    """

    name: str
    help: str
    options: tuple[Callable[[argparse.ArgumentParser], None], ...]
    run: Callable[[argparse.Namespace, Console], int]
    is_program: bool = False
    is_hidden: bool = False
    aliases: tuple[str, ...] = ()


class Group(NamedTuple):
    """A command with subcommands."""

    name: str
    help: str
    commands: tuple[Command, ...]


do_show, do_refresh, do_measure, do_page = (
    later("catalog", name) for name in ("do_show", "do_refresh", "do_measure", "do_page")
)
do_fleet_detect, fleet_detect_options, do_fleet_plan, fleet_plan_options = (
    later("fleet", name)
    for name in ("do_fleet_detect", "fleet_detect_options", "do_fleet_plan", "fleet_plan_options")
)
do_fleet_build, fleet_build_options = (
    later("fleet_build", name) for name in ("do_fleet_build", "fleet_build_options")
)
do_fleet_verify, fleet_verify_options = (
    later("fleet_verify", name) for name in ("do_fleet_verify", "fleet_verify_options")
)
do_export = later("export", "do_export")
EXPORTS = {
    "slurm": "write a batch script for Slurm",
    "kubernetes": "write a Job, an Indexed Job or a JobSet for Kubernetes",
    "ray": "write a runtime environment for Ray",
    "compose": "write a service for Docker Compose",
    "devcontainer": "write a devcontainer.json",
    "apptainer": "write a definition file for Apptainer",
    "enroot": "write a script that runs the image with enroot",
}
do_du, do_gc, gc_options, do_store_verify = (
    later("store", name) for name in ("do_du", "do_gc", "gc_options", "do_verify")
)
CATALOG_COMMANDS = (
    Command(
        name="show",
        help="show catalog entries, e.g. provision catalog show torch 2.0.1",
        options=(show_arguments,),
        run=do_show,
    ),
    Command(
        name="refresh",
        help="update your copy of the catalog from package indexes and registries",
        options=(refresh_options,),
        run=do_refresh,
    ),
    Command(
        name="measure",
        help="list the GPU architectures that a wheel was compiled for",
        options=(measure_options,),
        run=do_measure,
        is_hidden=True,
    ),
    Command(
        name="page",
        help="write a web page that says which build fits a GPU and a driver",
        options=(page_options,),
        run=do_page,
    ),
)
STORE_COMMANDS = (
    Command(
        name="du",
        help="show disk usage of the store",
        options=(),
        run=do_du,
    ),
    Command(
        name="verify",
        help="check all files in the store and remove damaged ones",
        options=(),
        run=do_store_verify,
    ),
    Command(
        name="gc",
        help="free disk space, removing the least recently used files first",
        options=(gc_options,),
        run=do_gc,
    ),
)
FLEET_COMMANDS = (
    Command(
        name="detect",
        help="read many machines (SSH, Slurm, Ray, Kubernetes), and write a host file for each",
        options=(fleet_detect_options,),
        run=do_fleet_detect,
    ),
    Command(
        name="plan",
        help="find the fewest images that serve all machines, and which gets which",
        options=(fleet_plan_options, request_options),
        run=do_fleet_plan,
    ),
    Command(
        name="check",
        help="show which images run on which machines, and what another driver would break",
        options=(later("fleet_check", "fleet_check_options"), network_options),
        run=later("fleet_check", "do_fleet_check"),
    ),
    Command(
        name="build",
        help="build each of these images once, in a registry or a shared directory",
        options=(fleet_build_options, request_options, network_options, base_options),
        run=do_fleet_build,
    ),
    Command(
        name="verify",
        help="test every machine in its image, and find those that are slower than their twins",
        options=(fleet_verify_options, network_options),
        run=do_fleet_verify,
    ),
    Command(
        name="undrain",
        help="return nodes to service that fleet verify or the gate has drained in Slurm",
        options=(later("fleet_drain", "undrain_options"),),
        run=later("fleet_drain", "do_fleet_undrain"),
    ),
)
EXPORT_COMMANDS = tuple(
    Command(
        name=name,
        help=text,
        options=(later("export", f"{name}_options"), network_options),
        run=do_export,
        aliases=("k8s",) if name == "kubernetes" else (),
    )
    for name, text in EXPORTS.items()
)
GROUPS = (
    Group(
        name="export",
        help="write the file that runs an image with Slurm, Kubernetes and others",
        commands=EXPORT_COMMANDS,
    ),
    Group(
        name="fleet",
        help="read many machines, plan their images, build them, and test all",
        commands=FLEET_COMMANDS,
    ),
    Group(
        name="catalog",
        help="show or update the data on versions, drivers and GPUs",
        commands=CATALOG_COMMANDS,
    ),
    Group(
        name="store",
        help="manage the wheels, bases and images kept on this machine",
        commands=STORE_COMMANDS,
    ),
)
