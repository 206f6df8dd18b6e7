"""`provision store gc`: removes what was not used for the longest time."""

from __future__ import annotations

import argparse

from images.store.errors import in_units
from provision.cli.commands.store.storages import (
    described,
    directory,
    items_json,
    limit_bytes,
    storages,
)
from provision.cli.sizes import LIMIT_VARIABLE, parse_size
from provision.errors import Exit
from provision.output.console import Console
from provision.output.stdout import print_either
from provision.output.text import listed, row

EXAMPLES = ("provision store gc",)


def options(verb: argparse.ArgumentParser) -> None:
    """How much is kept."""
    verb.add_argument(
        "--max-size",
        metavar="SIZE",
        help="size to keep, e.g. 20GB or 500MB "
        f"(default: {LIMIT_VARIABLE}, else a fifth of the disk, at most 20GB)",
    )
    verb.add_argument(
        "--all", action="store_true", help="remove everything that no running build uses"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Remove the least recently used files, and what killed builds left behind."""
    limit = parse_size("--max-size", args.max_size) if args.max_size is not None else None
    with storages(console) as found:
        # images with a name are data: no limit of the store removes them
        reports = [room.gc(limit_bytes=limit, everything=args.all) for room in found]
    removed = [one for report in reports for one in report.removed]
    freed, kept = sum(r.freed for r in reports), sum(r.kept for r in reports)
    in_use = sum(r.in_use for r in reports)
    result = {
        "schema": 1,
        "store": str(directory()),
        "freed_bytes": freed,
        "kept_bytes": kept,
        "in_use_bytes": in_use,
        "limit_bytes": limit_bytes() if limit is None else limit,
        "removed": items_json(removed),
    }
    used = f", {in_units(in_use)} of it in use by running builds" if in_use else ""
    lines = row("freed", in_units(freed))
    lines += row("kept", f"{in_units(kept)}{used}")
    lines += listed("removed", described(removed))
    print_either(args.json, result, lambda: "\n".join(lines))
    return Exit.DONE
