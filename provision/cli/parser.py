"""`provision`: the commands and their options."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from images.text.printable import printable
from provision.cli.arguments import (
    advanced_options,
    base_options,
    build_options,
    doctor_options,
    file_options,
    host_options,
    image_argument,
    lock_output,
    measure_options,
    network_options,
    page_options,
    plan_options,
    project_argument,
    record_options,
    refresh_options,
    request_options,
    run_options,
    show_arguments,
    suite_options,
    wheel_options,
)
from provision.cli.commands import do_build, do_detect, do_lock, do_plan, do_verify
from provision.cli.examples import examples_of
from provision.errors import BadInputError
from provision.output.console import Console
from provision.output.stdout import print_result
from provision.version import VERSION

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from provision.model.frozen import dataclass


def _later(module: str, name: str) -> Callable[..., Any]:
    """A function whose module is imported when it is called: `plan` does not need it."""

    def call(*given: object) -> Any:  # noqa: ANN401  whatever that function gives
        return getattr(import_module(f"provision.cli.{module}"), name)(*given)

    return call


do_show, do_refresh, do_measure, do_page = (
    _later("catalog", name) for name in ("do_show", "do_refresh", "do_measure", "do_page")
)
do_doctor = _later("doctor", "do_doctor")
do_inspect, inspect_options = (
    _later("inspect", name) for name in ("do_inspect", "inspect_options")
)
do_wheel = _later("wheel", "do_wheel")
do_bundle, bundle_options = (_later("bundle", name) for name in ("do_bundle", "bundle_options"))
do_gate, gate_options = (_later("gate", name) for name in ("do_gate", "gate_options"))
do_fleet_detect, fleet_detect_options, do_fleet_plan, fleet_plan_options = (
    _later("fleet", name)
    for name in ("do_fleet_detect", "fleet_detect_options", "do_fleet_plan", "fleet_plan_options")
)
do_fleet_build, fleet_build_options = (
    _later("fleet_build", name) for name in ("do_fleet_build", "fleet_build_options")
)
do_fleet_verify, fleet_verify_options = (
    _later("fleet_verify", name) for name in ("do_fleet_verify", "fleet_verify_options")
)
do_export = _later("export", "do_export")
do_completion, completion_options = (
    _later("completion", name) for name in ("do_completion", "completion_options")
)
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
    _later("store", name) for name in ("do_du", "do_gc", "gc_options", "do_verify")
)
# The options that decide the plan, and how what it needs is fetched.
PLANNED = (request_options, host_options, network_options, base_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: what it does, which options it takes beside --json, and the function."""

    name: str
    help: str
    options: tuple[Callable[[argparse.ArgumentParser], None], ...]
    run: Callable[[argparse.Namespace, Console], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A command with subcommands."""

    name: str
    help: str
    commands: tuple[Command, ...]


class _Parser(argparse.ArgumentParser):
    """argparse, but wrong usage raises an error with a fix."""

    def error(self, message: str) -> NoReturn:
        raise BadInputError(
            f"{printable(message, limit=300)}.",
            fix=f"See {self.prog} --help",
        )

    def _print_message(self, message: str, file: object = None) -> None:
        # Only --help and --version come here: results, so a pipe may be closed as for any other.
        del file
        print_result(message.rstrip("\n"))


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The command line. Given the first words typed, it defines only their command: the others
    would cost a plan ten milliseconds.
    """
    parser = _Parser(
        prog="provision",
        description="Find a compatible combination of driver, CUDA, framework and base image,\n"
        "explain why, build the image, and test it on this machine.",
        allow_abbrev=False,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=_width()),
        epilog=examples_of(""),
    )
    parser.add_argument("--version", action="version", version=f"gpu-provision {VERSION}")
    # with `prog` argparse need not format a usage line here, for which it imports shutil
    verbs = parser.add_subparsers(metavar="COMMAND", required=True, prog=parser.prog)
    known = {one.name for one in (*COMMANDS, *GROUPS)}
    typed = known.intersection((words or ())[:1])
    for command in COMMANDS:
        if not typed or command.name in typed:
            _add_verb(verbs, command, words)
    for group in GROUPS:
        if typed and group.name not in typed:
            continue
        verb = verbs.add_parser(
            group.name,
            help=group.help,
            description=_sentence(group.help),
            allow_abbrev=False,
            formatter_class=partial(argparse.HelpFormatter, width=_width()),
        )
        actions = verb.add_subparsers(metavar="ACTION", required=True, prog=verb.prog)
        for command in group.commands:
            _add_verb(actions, command, words, group.name)
    return parser


def _width() -> int:
    """The columns of a help text. argparse, which makes a formatter for each option, would import
    shutil for that.
    """
    columns = 0
    with contextlib.suppress(KeyError, ValueError):
        columns = int(os.environ["COLUMNS"])
    if columns <= 0:
        with contextlib.suppress(OSError):
            columns = os.get_terminal_size(1).columns
    return (columns if columns > 0 else 80) - 2


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _add_verb(
    verbs: Any,  # noqa: ANN401  argparse names no such type
    command: Command,
    words: Sequence[str] | None,
    group: str = "",
) -> None:
    verb = verbs.add_parser(
        command.name,
        help=command.help,
        description=_sentence(command.help),
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=_width()),
        allow_abbrev=False,
        epilog=examples_of(f"{group} {command.name}".strip()),
    )
    verb.set_defaults(command=command)
    verb.add_argument("--json", action="store_true", help="print the result as JSON")
    verb.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show more detail, including the output of tools",
    )
    for add in command.options if words is None or command.name in words else ():
        add(verb)


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
        options=(_later("fleet_check", "fleet_check_options"), network_options),
        run=_later("fleet_check", "do_fleet_check"),
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
        options=(_later("fleet_drain", "undrain_options"),),
        run=_later("fleet_drain", "do_fleet_undrain"),
    ),
)
EXPORT_COMMANDS = tuple(
    Command(
        name=name,
        help=text,
        options=(_later("export", f"{name}_options"), network_options),
        run=do_export,
    )
    for name, text in EXPORTS.items()
)
GROUPS = (
    Group(
        name="export",
        help="write the file that runs an image with Slurm, Kubernetes, Ray or others",
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
COMMANDS = (
    Command(
        name="detect",
        help="show the driver, GPUs, system and container engines of this machine",
        options=(),
        run=do_detect,
    ),
    Command(
        name="plan",
        help="find a compatible combination and explain why",
        options=(project_argument, plan_options, request_options, host_options, network_options),
        run=do_plan,
    ),
    Command(
        name="lock",
        help="write a lock (pylock.toml) with the exact wheels and the base image",
        options=(project_argument, *PLANNED, lock_output),
        run=do_lock,
    ),
    Command(
        name="build",
        help="plan, lock and build an image, then test it on this machine",
        options=(
            project_argument,
            *PLANNED,
            build_options,
            suite_options,
            advanced_options,
        ),
        run=do_build,
    ),
    Command(
        name="bundle",
        help="pack everything that a build needs into one file, for a machine without a network",
        options=(project_argument, *PLANNED, bundle_options),
        run=do_bundle,
    ),
    Command(
        name="wheel",
        help="build packages that an index has only the source of, for the plan of an image",
        options=(wheel_options, *PLANNED),
        run=do_wheel,
    ),
    Command(
        name="inspect",
        help="show what is in an image or a wheel and where it runs, without running it",
        options=(inspect_options,),
        run=do_inspect,
    ),
    Command(
        name="verify",
        help="test an image on this machine",
        options=(image_argument, suite_options, run_options, file_options, record_options),
        run=do_verify,
    ),
    Command(
        name="gate",
        help="decide whether a job with this image may start on this node",
        options=(gate_options,),
        run=do_gate,
    ),
    Command(
        name="doctor",
        help="find problems in this machine, a log, an image or a file, and their fixes",
        options=(doctor_options,),
        run=do_doctor,
    ),
    Command(
        name="completion",
        help="print what completes commands in bash, zsh or fish",
        options=(completion_options,),
        run=do_completion,
    ),
)
