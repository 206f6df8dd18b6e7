"""`provision catalog measure`: what a wheel was compiled for, read from the wheel."""

from __future__ import annotations

import argparse
import os

from provision.cli.paths import today
from provision.cli.settings import ca_option, read_catalog
from provision.errors import BadInputError, Exit
from provision.output.console import Console
from provision.output.stdout import print_either


def options(verb: argparse.ArgumentParser) -> None:
    """Which wheel is read, and how."""
    verb.add_argument("wheel", metavar="WHEEL|URL", help="path or URL of a .whl file")
    verb.add_argument(
        "--deep", action="store_true", help="read the compiled code instead of the wheel's metadata"
    )
    verb.add_argument(
        "--write", action="store_true", help="save the result in your copy of the catalog"
    )
    ca_option(verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """What a wheel was compiled for, read from the wheel; 0 also if the catalog disagrees."""
    from images.inspect.measuring import measure
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
        write_overlay(path, kept(code, found, read_overlay(path), today()))
        written = str(path)
    print_either(args.json, to_json(code, found, written), lambda: describe(code, found, written))
    return Exit.DONE
