"""`provision export apptainer`, `enroot` and `ray`: files that take the options of every job."""

from __future__ import annotations

import argparse

from provision.cli.commands.export.deployment import container_options, export
from provision.output.console import Console


def options(verb: argparse.ArgumentParser) -> None:
    """A container."""
    container_options(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write it."""
    from provision.output.export.apptainer import to_definition
    from provision.output.export.enroot import to_script
    from provision.output.export.ray import to_runtime_env

    writers = {"apptainer": to_definition, "enroot": to_script, "ray": to_runtime_env}
    return export(args, console, writers[args.command.name])
