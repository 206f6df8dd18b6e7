"""`provision catalog ...`: query the catalog, update it, measure wheels."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from provision.cli.options import read_catalog
from provision.errors import BadInputError, Exit
from provision.model.request import quoted
from provision.output.console import Console
from provision.output.stdout import print_json, print_result


def do_show(args: argparse.Namespace, console: Console) -> int:
    """The rows of the catalog that a query matches."""
    from provision.cli.render.catalog import describe, find, to_json

    if len(args.name) > 1 and args.kind != "gpu":
        raise BadInputError(
            f"catalog show {quoted(args.kind)} takes one name.",
            fix="For example: provision catalog show torch 2.0.1",
        )
    found = find(read_catalog(console), args.kind, " ".join(args.name) or None)
    if args.json:
        print_json(to_json(found))
    else:
        print_result(describe(found))
    return Exit.DONE


def do_measure(args: argparse.Namespace, console: Console) -> int:
    """What a wheel was compiled for, read from the wheel; 0 also if the catalog disagrees."""
    from images.inspect import measure
    from provision.catalog.measured import compare, describe, kept, to_json
    from provision.catalog.overlay import overlay_path, read_overlay, write_overlay
    from provision.lock.network import ca_bundle

    catalog = read_catalog(console)
    code = measure(
        args.wheel,
        ca_bundle=ca_bundle(args.ca_bundle, os.environ),
        deep=args.deep,
        on_progress=lambda name, done, total: console.detail(f"{name}: {done} of {total} bytes"),
    )
    found = compare(code, catalog)
    written: str | None = None
    if args.write:
        if found.table is None:
            raise BadInputError(
                f"{found.sentence} There is no row to save the measurement in.",
                fix="Update the catalog first: provision catalog refresh",
            )
        path = overlay_path(os.environ)
        write_overlay(path, kept(code, found, read_overlay(path), _today()))
        written = str(path)
    if args.json:
        print_json(to_json(code, found, written))
    else:
        print_result(describe(code, found, written))
    return Exit.DONE


def do_refresh(args: argparse.Namespace, console: Console) -> int:
    """What the indexes and NVIDIA have beyond the catalog, shown and kept."""
    from provision.catalog.loading import load
    from provision.catalog.overlay import OverlayError, overlay_path, read_overlay, write_overlay
    from provision.catalog.refresh import SOURCES, refresh
    from provision.catalog.refresh.store import to_overlay
    from provision.catalog.refresh.words import describe_changes, refreshed_to_json
    from provision.lock.network import ca_bundle

    path = overlay_path(os.environ)
    try:
        previous = read_overlay(path)
    except OverlayError as error:
        console.note(f"{error.message} It will be replaced.")
        previous = None
    found = refresh(
        load(overlay=previous),
        sources=tuple(args.sources),
        index=args.index,
        pytorch_index=args.pytorch_index,
        nvidia=args.nvidia,
        ca_bundle=ca_bundle(args.ca_bundle, os.environ),
        offline=args.offline,
        today=_today(),
        on_progress=console.detail,
    )
    written: Path | None = None
    if found.rows and not args.dry_run:
        write_overlay(path, to_overlay(found, previous))
        written = path
    if args.json:
        print_json({**refreshed_to_json(found), "written": str(written) if written else None})
    else:
        print_result(describe_changes(found, SOURCES))
        if written:
            print_result(f"written: {written}")
    return found.exit_code


def do_page(args: argparse.Namespace, console: Console) -> int:
    """The page with the answers for all GPUs of the catalog, in one file."""
    import gzip

    from provision.cli.fleet_nodes import output_folder
    from provision.cli.page.changes import read_page
    from provision.cli.page.site import page
    from provision.output.files import refuse_unwritable, write_named

    path = output_folder(args.output) / "index.html"
    refuse_unwritable("--output", path)
    earlier = read_page(Path(args.since)) if args.since else None
    catalog = read_catalog(console)
    console.pulse_s = 10.0
    with console.step("page", "the answers for all GPUs"):
        content = page(catalog, console.progress, earlier)
        write_named("--output", path, content)
    compressed = len(gzip.compress(content, mtime=0))
    if args.json:
        sizes = {"bytes": len(content), "gzip_bytes": compressed}
        print_json({"schema": 1, "path": str(path), **sizes, "error": None})
    else:
        print_result(
            f"written: {path} ({len(content) / 1e6:.1f} MB, {compressed / 1e6:.1f} MB with gzip)"
        )
    return Exit.DONE


def _today() -> str:
    from datetime import datetime, timezone

    return datetime.now(timezone.utc).date().isoformat()
