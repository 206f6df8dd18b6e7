"""`provision catalog refresh`: what the indexes and NVIDIA have beyond the catalog."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from provision.cli.option import option
from provision.cli.paths import today
from provision.cli.settings import network_options
from provision.output.console import Console
from provision.output.stdout import print_json, print_result

EXAMPLES = ("provision catalog refresh",)


def options(verb: argparse.ArgumentParser) -> None:
    """Which sources are queried."""
    option(
        verb,
        "--from",
        "SOURCE",
        "query only this source: pypi, pytorch or nvidia (repeatable)",
        dest="sources",
        several=True,
    )
    verb.add_argument("--index", metavar="URL", help="package index (default: the one pip uses)")
    verb.add_argument("--pytorch-index", metavar="URL", help="mirror of the PyTorch index")
    verb.add_argument("--nvidia", metavar="URL", help="mirror of NVIDIA's manifests")
    verb.add_argument("--dry-run", action="store_true", help="show changes without saving them")
    network_options(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """Query them, show what is new, and keep it."""
    from provision.catalog.loading import load
    from provision.catalog.overlay import OverlayError, overlay_path, read_overlay, write_overlay
    from provision.catalog.refresh import SOURCES, refresh, to_overlay
    from provision.catalog.refresh.render import describe_changes, refreshed_to_json
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
        today=today(),
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
