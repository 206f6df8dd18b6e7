"""`provision export slurm`: a batch script for Slurm."""

from __future__ import annotations

import argparse

from provision.cli.commands.export.deployment import (
    container_options,
    export,
    mount_option,
    nodes_options,
    shm_option,
)
from provision.cli.option import option
from provision.output.console import Console

EXAMPLES = ("provision export slurm registry.example/team/app:1 --output train.sbatch",)


def options(verb: argparse.ArgumentParser) -> None:
    """A job, and what runs it."""
    container_options(verb)
    nodes_options(verb)
    shm_option(verb)
    mount_option(verb)
    option(
        verb,
        "--with",
        "TOOL",
        "what runs containers on the nodes: pyxis (default), apptainer, enroot or docker",
        dest="tool",
        choices=("pyxis", "apptainer", "enroot", "docker"),
        default="pyxis",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Write it."""
    from provision.output.export.slurm import to_sbatch

    return export(args, console, lambda one: to_sbatch(one, args.tool, mount=not args.no_mount))
