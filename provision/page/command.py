"""`provision catalog page`: the page with the answers for all GPUs of the catalog, in one file."""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

from provision.cli.paths import output_folder
from provision.cli.settings import read_catalog
from provision.errors import Exit
from provision.output.console import Console
from provision.output.stdout import print_json, print_result
from provision.page.changes import read_page

EXAMPLES = (
    "provision catalog page --output site    # then open site/index.html",
    "provision catalog page --output site --since site/index.html",
)


def options(verb: argparse.ArgumentParser) -> None:
    """Where the page goes."""
    verb.add_argument(
        "--output",
        metavar="DIR",
        required=True,
        help="write index.html to this directory; it is created if missing",
    )
    verb.add_argument(
        "--since",
        metavar="OLD.html",
        help="show what changed since this earlier page (it may be the one in --output)",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """The page with the answers for all GPUs of the catalog, in one file."""
    from provision.output.files import refuse_unwritable, write_named
    from provision.page.site import page

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
