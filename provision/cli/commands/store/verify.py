"""`provision store verify`: everything in the store is read and compared with its digest."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from images.store.errors import in_units
from provision.cli.commands.store.storages import (
    SHOWN,
    described,
    directory,
    items_json,
    storages,
)
from provision.errors import Exit
from provision.output.console import Console
from provision.output.stdout import print_either
from provision.output.text import listed, row


def run(args: argparse.Namespace, console: Console) -> int:
    """Check everything in the store; remove and report what is damaged."""
    with storages(console) as found:
        total = sum(one.size for room in found for one in room.du())
        with console.step("verify", f"reading {in_units(total)} in {directory()}"):
            reports = [room.verify(_teller(console)) for room in found]
    damaged = [one for report in reports for one in report.damaged]
    unknown = [name for report in reports for name in report.unknown_files]
    count, size = sum(r.count for r in reports), sum(r.size for r in reports)
    result = {
        "schema": 1,
        "store": str(directory()),
        "checked": count,
        "bytes": size,
        "damaged": items_json(damaged),
        "strangers": unknown,
    }
    lines = row("store", "damaged files were removed" if damaged else "intact")
    lines += row("checked", f"{count} files, {in_units(size)}")
    lines += listed("removed", described(damaged))
    lines += listed("unknown", [f"{name} (not touched)" for name in unknown[:SHOWN]])
    print_either(args.json, result, lambda: "\n".join(lines))
    return Exit.UNFIT if damaged else Exit.DONE


def _teller(console: Console) -> Callable[[str, int], None]:
    """Report each file once, with --verbose."""
    told: set[str] = set()

    def tell(title: str, _: int) -> None:
        if title not in told:
            told.add(title)
            console.detail(title)

    return tell
