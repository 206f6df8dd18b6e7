"""`provision export kubernetes`: a Job, an Indexed Job or a JobSet for Kubernetes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from provision.cli.commands.export.deployment import (
    DEFAULT_USER,
    container_options,
    export,
    nodes_options,
    shm_option,
)
from provision.cli.hosts import gpu_names
from provision.cli.option import option
from provision.errors import BadInputError
from provision.output.console import Console

if TYPE_CHECKING:
    from provision.output.export.kubernetes import JobKind

EXAMPLES = ("provision export kubernetes registry.example/team/app:1 --gpus 8 --output job.yaml",)


def options(verb: argparse.ArgumentParser) -> None:
    """A job, and which kind."""
    container_options(verb)
    nodes_options(verb)
    shm_option(verb)
    option(
        verb,
        "--gpu",
        "NAME",
        "only nodes with this GPU (repeatable; default: the GPUs of the lock)",
        several=True,
        complete=gpu_names,
    )
    verb.add_argument(
        "--user", metavar="UID", help=f"numeric user, 0 for root (default: {DEFAULT_USER})"
    )
    kind = verb.add_mutually_exclusive_group()
    for name, what in (
        ("job", "a Job (default for one node)"),
        ("indexed", "an Indexed Job and its Service (default for several)"),
        ("jobset", "a JobSet, which the cluster must know"),
    ):
        kind.add_argument(
            f"--{name}", dest="kind", action="store_const", const=name, help=f"write {what}"
        )


def run(args: argparse.Namespace, console: Console) -> int:
    """Write it."""
    from provision.output.export.kubernetes import to_manifest

    def kind(nodes: int) -> JobKind:
        if args.kind == "job" and nodes > 1:
            raise BadInputError(
                "--job is for one node.", fix="Remove --job, or use --indexed or --jobset."
            )
        chosen: JobKind | None = args.kind
        return chosen or ("job" if nodes == 1 else "indexed")

    file = "" if args.output is None else Path(args.output).name
    return export(args, console, lambda one: to_manifest(one, kind(one.nodes), file))
