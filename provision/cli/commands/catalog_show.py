"""`provision catalog show`: the rows of the catalog that a query matches."""

from __future__ import annotations

import argparse

from provision.cli.settings import read_catalog
from provision.errors import BadInputError, Exit
from provision.model.request import quoted
from provision.output.console import Console
from provision.output.stdout import print_either

EXAMPLES = ("provision catalog show gpu 'RTX 4090'",)


def options(verb: argparse.ArgumentParser) -> None:
    """Which rows of the catalog."""
    verb.add_argument(
        "kind",
        metavar="KIND",
        nargs="?",
        default="",
        help="torch, tensorflow, tensorflow-gpu, jax, cuda, driver, gpu, cudnn, nccl, image, "
        "conflicts",
    )
    verb.add_argument("name", metavar="NAME", nargs="*", help="version, tag or GPU name")


def run(args: argparse.Namespace, console: Console) -> int:
    """The rows of the catalog that a query matches."""
    from provision.cli.render.catalog import describe, find, to_json

    if len(args.name) > 1 and args.kind != "gpu":
        raise BadInputError(
            f"catalog show {quoted(args.kind)} takes one name.",
            fix="For example: provision catalog show torch 2.0.1",
        )
    found = find(read_catalog(console), args.kind, " ".join(args.name) or None)
    print_either(args.json, to_json(found), lambda: describe(found))
    return Exit.DONE
