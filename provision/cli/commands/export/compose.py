"""`provision export compose`: a service for Docker Compose."""

from __future__ import annotations

import argparse

from provision.cli.commands.export.deployment import (
    command_option,
    export,
    job_options,
    mount_option,
    shm_option,
)
from provision.output.console import Console

EXAMPLES = ("provision export compose team/app:1 --output compose.yaml",)


def options(verb: argparse.ArgumentParser) -> None:
    """A service."""
    job_options(verb)
    command_option(verb)
    verb.add_argument("--gpus", metavar="N", help="number of GPUs (default: all)")
    shm_option(verb)
    mount_option(verb)
    verb.add_argument("--cdi", action="store_true", help="request the GPUs as CDI devices")


def run(args: argparse.Namespace, console: Console) -> int:
    """Write it."""
    from provision.output.export.compose import to_compose

    return export(args, console, lambda one: to_compose(one, cdi=args.cdi, mount=not args.no_mount))
