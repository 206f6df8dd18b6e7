"""The commands, a line each, and the modules that have them.

A module of a command has `run(args, console)`, which returns the exit code, and perhaps
`options(verb)`, which adds its options, and EXAMPLES, the lines at the end of its help. It is
imported when its command is typed. The houses (provision.fleet, provision.doctor, provision.page) are known here
by name alone: without one of them its commands are missing and everything else works.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

HOUSES = ("doctor", "fleet", "page")


class Command(NamedTuple):
    """A command: the words that are typed, its module in `provision`, and its help. `is_program`:
    words after -- are a command, whose output is ours: without --json, and -v is not short for
    --verbose. `is_ours`: its options are read here, not by the program that it starts.
    """

    words: str
    module: str
    help: str
    is_program: bool = False
    is_ours: bool = True
    is_hidden: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The last word."""
        return self.words.rpartition(" ")[2]

    @property
    def group(self) -> str:
        """The first of two words; "" for a command of one."""
        return self.words.rpartition(" ")[0]

    @property
    def examples(self) -> tuple[str, ...]:
        """What can be typed."""
        return getattr(self._imported(), "EXAMPLES", ())

    @property
    def options(self) -> Callable[[argparse.ArgumentParser], None]:
        """Adds the options."""
        return getattr(self._imported(), "options", lambda _: None)

    @property
    def run(self) -> Callable[..., int]:
        """Does it with the parsed options and a console, and returns the exit code."""
        found: Callable[..., int] = self._imported().run
        return found

    def _imported(self) -> Any:  # noqa: ANN401  a module of this form
        return import_module(f"provision.{self.module}")


GROUPS: Mapping[str, str] = {
    "export": "write the file that runs an image with Slurm, Kubernetes and others",
    "fleet": "read many machines, plan their images, build them, and test all",
    "catalog": "show or update the data on versions, drivers and GPUs",
    "store": "manage the wheels, bases and images kept on this machine",
}
"""The commands that have subcommands, and their help."""

SECTIONS = (
    ("start", ("plan", "doctor", "build", "run")),
    ("test", ("verify", "inspect", "monitor", "batch", "compare")),
    ("share", ("lock", "bundle", "wheel", "export")),
    ("cluster", ("fleet", "gate")),
    ("care", ("detect", "ls", "rm", "store", "catalog", "clean")),
)
"""The commands as the first help groups them."""

# fmt: off
_ALL = (
    Command("detect", "cli.commands.detect", "show the driver, GPUs, system and container engines of this machine"),
    Command("plan", "cli.commands.plan", "find a compatible combination and explain why"),
    Command("lock", "cli.commands.lock", "write a lock (pylock.toml) with the exact wheels and the base image"),
    Command("build", "cli.commands.build", "plan, lock and build an image, then test it on this machine"),
    Command("run", "cli.commands.run", "run a command in an image, with the GPUs of this machine", is_program=True),
    Command("bundle", "cli.commands.bundle", "pack what a build needs into a file, for a machine without network"),
    Command("wheel", "cli.commands.wheel", "build packages of which an index has only the source"),
    Command("inspect", "cli.commands.inspect", "show what is in an image or a wheel, and where it would run"),
    Command("verify", "cli.commands.verify", "test an image on this machine"),
    Command("ls", "cli.commands.ls", "list the images on this machine that were built by gpu-provision"),
    Command("rm", "cli.commands.rm", "remove images on this machine that were built by gpu-provision"),
    Command("clean", "cli.commands.clean", "remove all that gpu-provision keeps on this machine, except itself"),
    Command("gate", "cli.commands.gate", "decide whether a job with this image may start on this node"),
    Command("doctor", "doctor.commands.doctor", "find problems in this machine, a log, an image or a file; fix them"),
    Command("monitor", "cli.commands.suite", "watch the GPUs while a command runs, and name the likely bottleneck", is_ours=False),
    Command("batch", "cli.commands.suite", "find the largest and the fastest batch size of a model, in an image", is_ours=False),
    Command("compare", "cli.commands.suite", "show what became worse between two reports of verify", is_ours=False),
    Command("completion", "cli.commands.completion", "print what completes commands in bash, zsh or fish"),
    Command("export slurm", "cli.commands.export.slurm", "write a batch script for Slurm"),
    Command("export kubernetes", "cli.commands.export.kubernetes", "write a Job, an Indexed Job or a JobSet for Kubernetes", aliases=("k8s",)),
    Command("export ray", "cli.commands.export.plain", "write a runtime environment for Ray"),
    Command("export compose", "cli.commands.export.compose", "write a service for Docker Compose"),
    Command("export devcontainer", "cli.commands.export.devcontainer", "write a devcontainer.json"),
    Command("export apptainer", "cli.commands.export.plain", "write a definition file for Apptainer"),
    Command("export enroot", "cli.commands.export.plain", "write a script that runs the image with enroot"),
    Command("fleet detect", "fleet.commands.detect", "read many machines (SSH, Slurm, Ray, Kubernetes), and write a host file for each"),
    Command("fleet plan", "fleet.commands.plan", "find the fewest images that serve all machines, and which gets which"),
    Command("fleet check", "fleet.commands.check", "show which images run on which machines, and what another driver would break"),
    Command("fleet build", "fleet.commands.build", "build each of these images once, in a registry or a shared directory"),
    Command("fleet verify", "fleet.commands.verify", "test every machine in its image, and find those that are slower than their twins"),
    Command("fleet undrain", "fleet.commands.undrain", "return nodes to service that fleet verify or the gate has drained in Slurm"),
    Command("catalog show", "cli.commands.catalog_show", "show catalog entries, e.g. provision catalog show torch 2.0.1"),
    Command("catalog refresh", "cli.commands.catalog_refresh", "update your copy of the catalog from package indexes and NVIDIA"),
    Command("catalog measure", "cli.commands.catalog_measure", "list the GPU architectures that a wheel was compiled for", is_hidden=True),
    Command("catalog page", "page.command", "write a web page that says which build fits a GPU and a driver"),
    Command("store du", "cli.commands.store.du", "show disk usage of the store"),
    Command("store verify", "cli.commands.store.verify", "check all files in the store and remove damaged ones"),
    Command("store gc", "cli.commands.store.gc", "free disk space, removing the least recently used files first"),
)
# fmt: on


@cache
def commands() -> tuple[Command, ...]:
    """Those whose house is there."""
    missing = {name for name in HOUSES if house(name) is None}
    return tuple(one for one in _ALL if one.module.partition(".")[0] not in missing)


def names() -> frozenset[str]:
    """The first words of all commands."""
    return frozenset(one.words.partition(" ")[0] for one in commands())


def house(name: str) -> str | None:
    """The package of a house; None where it is not there."""
    package = f"provision.{name}"
    return package if find_spec(package) is not None else None


def find(words: str) -> Command | None:
    """The command of these words; None: there is none."""
    return next((one for one in commands() if one.words == words), None)


def part_of(name: str, part: str) -> Any:  # noqa: ANN401  a module
    """A module of a house, for what the core does with it where it is there; None without it."""
    return None if house(name) is None else import_module(f"provision.{name}.{part}")


def of_group(name: str) -> Iterator[Command]:
    """The subcommands."""
    return (one for one in commands() if one.group == name)
