"""`provision store ...`: show, check and shrink the store."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.cli.paths import image_home, state_directory, wheel_home
from provision.cli.sizes import LIMIT_VARIABLE, parse_size, store_limit
from provision.errors import Exit
from provision.output.console import Console
from provision.output.stdout import print_json, print_result
from provision.output.text import listed, row, table

if TYPE_CHECKING:
    from images.store import Storage, StoreItem, Usage

_SHOWN = 20


def gc_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--max-size",
        metavar="SIZE",
        help="size to keep, e.g. 20GB or 500MB "
        f"(default: {LIMIT_VARIABLE}, else a fifth of the disk, at most 20GB)",
    )
    verb.add_argument(
        "--all", action="store_true", help="remove everything that no running build uses"
    )


def do_du(args: argparse.Namespace, console: Console) -> int:
    """What is in the store, and how much disk it uses."""
    with _rooms(console) as rooms:
        usage = [one for room in rooms for one in room.du()]
        limit, free = _limit(), _free()
    if args.json:
        print_json(
            {
                "schema": 1,
                "store": str(_directory()),
                "bytes": sum(one.size for one in usage),
                "limit_bytes": limit,
                "free_bytes": free,
                "usage": [{"kind": u.kind, "count": u.count, "bytes": u.size} for u in usage],
            }
        )
    else:
        print_result(describe_usage(str(_directory()), usage, limit=limit, free=free))
    return Exit.DONE


def do_verify(args: argparse.Namespace, console: Console) -> int:
    """Check everything in the store; remove and report what is damaged."""
    with _rooms(console) as rooms:
        total = sum(one.size for room in rooms for one in room.du())
        with console.step("verify", f"reading {_units(total)} in {_directory()}"):
            reports = [room.verify(_teller(console)) for room in rooms]
    damaged = [one for report in reports for one in report.damaged]
    strangers = [name for report in reports for name in report.strangers]
    count, size = sum(r.count for r in reports), sum(r.size for r in reports)
    if args.json:
        print_json(
            {
                "schema": 1,
                "store": str(_directory()),
                "checked": count,
                "bytes": size,
                "damaged": _to_json(damaged),
                "strangers": strangers,
            }
        )
    else:
        found = f"{count} files, {_units(size)}"
        lines = row("store", "damaged files were removed" if damaged else "intact")
        lines += row("checked", found)
        lines += listed("removed", _described(damaged))
        lines += listed("unknown", [f"{name} (not touched)" for name in strangers[:_SHOWN]])
        print_result("\n".join(lines))
    return Exit.UNFIT if damaged else Exit.DONE


def do_gc(args: argparse.Namespace, console: Console) -> int:
    """Remove the least recently used files, and what killed builds left behind."""
    limit = parse_size("--max-size", args.max_size) if args.max_size is not None else None
    with _rooms(console) as rooms:
        # images with a name are data: no limit of the store removes them
        reports = [room.gc(limit_bytes=limit, everything=args.all) for room in rooms]
    removed = [one for report in reports for one in report.removed]
    freed, kept = sum(r.freed for r in reports), sum(r.kept for r in reports)
    in_use = sum(r.in_use for r in reports)
    if args.json:
        print_json(
            {
                "schema": 1,
                "store": str(_directory()),
                "freed_bytes": freed,
                "kept_bytes": kept,
                "in_use_bytes": in_use,
                "limit_bytes": _limit() if limit is None else limit,
                "removed": _to_json(removed),
            }
        )
    else:
        used = f", {_units(in_use)} of it in use by running builds" if in_use else ""
        lines = row("freed", _units(freed))
        lines += row("kept", f"{_units(kept)}{used}")
        lines += listed("removed", _described(removed))
        print_result("\n".join(lines))
    return Exit.DONE


def describe_usage(place: str, usage: Sequence[Usage], *, limit: int, free: int) -> str:
    """A table of the disk usage, with the limit."""
    total = sum(one.size for one in usage)
    lines = [f"store       {place}"]  # a path that can be copied
    if usage:
        cells = [(one.kind, f"{one.count}", _units(one.size)) for one in usage]
        lines += table([("kind", "files", "size"), *cells])
    lines += row("total", f"{_units(total)}; builds keep at most {_units(limit)}")
    lines += row("disk", f"{_units(free)} free")
    lines += row("free space", "provision store gc --max-size SIZE") if total else []
    return "\n".join(lines)


@contextlib.contextmanager
def _rooms(console: Console) -> Iterator[Sequence[Storage]]:
    """All storage that remains between runs; empty if there is none."""
    from images.bootstrap.room import BasesRoom
    from images.engines.sandbox.roots_room import RootsRoom
    from images.store import Store
    from images.store.built import BuiltWheels
    from images.store.layout_room import LayoutRoom

    images = image_home()
    own: list[Storage] = [LayoutRoom(images)] if (images / "oci-layout").exists() else []
    own += [BuiltWheels(wheel_home())] if wheel_home().is_dir() else []
    roots = state_directory() / "roots"
    own += [RootsRoom(roots)] if roots.is_dir() else []
    own += [BasesRoom(state_directory())] if (state_directory() / "bases").is_dir() else []
    if not _directory().is_dir():
        yield own
        return
    limit = store_limit(os.environ)
    with Store.open(state_directory(), limit_bytes=limit, on_note=console.note) as store:
        yield [store, *own]


def _directory() -> Path:
    from images.store import store_directory

    return store_directory(state_directory())


def _limit() -> int:
    from images.store import default_limit

    limit = store_limit(os.environ)
    return default_limit(_existing()) if limit is None else limit


def _free() -> int:
    from images.store import free_bytes

    return free_bytes(_existing())


def _existing() -> Path:
    """The store, or the nearest directory above it that is there: the disk that it is on."""
    place = _directory()
    return next(one for one in (place, *place.parents) if one.is_dir())


def _teller(console: Console) -> Callable[[str, int], None]:
    """Report each file once, with --verbose."""
    told: set[str] = set()

    def tell(title: str, _: int) -> None:
        if title not in told:
            told.add(title)
            console.detail(title)

    return tell


def _units(count: int) -> str:
    from images.store import in_units

    return in_units(count)


def _described(found: Sequence[StoreItem]) -> list[str]:
    lines = [f"{one.title} ({_units(one.size)}): {one.why}" for one in found[:_SHOWN]]
    return lines + ([f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])


def _to_json(found: Sequence[StoreItem]) -> list[dict[str, Any]]:
    return [
        {"kind": one.kind, "title": one.title, "bytes": one.size, "why": one.why} for one in found
    ]
