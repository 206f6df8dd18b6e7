"""`provision export enroot`: a script that runs the image with enroot."""

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
    """A container."""
    job_options(verb)
    command_option(verb)
    gpus_option(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write it."""
    from provision.output.export.enroot import to_script

    return export(args, console, to_script)
