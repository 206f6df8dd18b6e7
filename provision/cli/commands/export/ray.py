"""`provision export ray`: a runtime environment for Ray."""

from __future__ import annotations

import argparse

from provision.cli.commands.export.deployment import (
    command_option,
    export,
    gpus_option,
    job_options,
)
from provision.output.console import Console


def options(verb: argparse.ArgumentParser) -> None:
    """A job."""
    job_options(verb)
    command_option(verb)
    gpus_option(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write it."""
    from provision.output.export.ray import to_runtime_env

    return export(args, console, to_runtime_env)
