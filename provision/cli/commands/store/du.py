"""`provision store du`: what is in the store, and how much disk it uses."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from images.store.errors import in_units
from provision.cli.commands.store.storages import (
    directory,
    existing,
    limit_bytes,
    storages,
)
from provision.errors import Exit
from provision.output.console import Console
from provision.output.stdout import print_either
from provision.output.text import row, table

if TYPE_CHECKING:
    from images.store.upkeep import Usage

EXAMPLES = ("provision store du",)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the usage by kind, and the limit."""
    from images.store.incoming import free_bytes

    with storages(console) as found:
        usage = [one for room in found for one in room.du()]
        limit, free = limit_bytes(), free_bytes(existing())
    result = {
        "schema": 1,
        "store": str(directory()),
        "bytes": sum(one.size for one in usage),
        "limit_bytes": limit,
        "free_bytes": free,
        "usage": [{"kind": u.kind, "count": u.count, "bytes": u.size} for u in usage],
    }
    print_either(
        args.json, result, lambda: describe_usage(str(directory()), usage, limit=limit, free=free)
    )
    return Exit.DONE


def describe_usage(place: str, usage: Sequence[Usage], *, limit: int, free: int) -> str:
    """A table of the disk usage, with the limit."""
    total = sum(one.size for one in usage)
    lines = [f"store       {place}"]  # a path that can be copied
    if usage:
        cells = [(one.kind, f"{one.count}", in_units(one.size)) for one in usage]
        lines += table([("kind", "files", "size"), *cells])
    lines += row("total", f"{in_units(total)}; builds keep at most {in_units(limit)}")
    lines += row("disk", f"{in_units(free)} free")
    lines += row("free space", "provision store gc --max-size SIZE") if total else []
    return "\n".join(lines)
