"""`provision export devcontainer`: a devcontainer.json."""

from __future__ import annotations

import argparse

from provision.cli.commands.export.deployment import export, job_options, shm_option
from provision.output.console import Console


def options(verb: argparse.ArgumentParser) -> None:
    """A development container."""
    job_options(verb)
    shm_option(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write it."""
    from provision.output.export.devcontainer import to_devcontainer

    return export(args, console, to_devcontainer)
