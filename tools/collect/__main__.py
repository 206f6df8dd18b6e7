"""`./run python -m tools.collect`."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import tools.collect
from images.errors import Failure
from provision.catalog.canonical import dump
from provision.catalog.data_files import DATA
from provision.catalog.index.fetch import FetchLimits
from provision.catalog.loading import load
from provision.catalog.refresh import SOURCES, refresh
from provision.catalog.refresh.model import CatalogSource
from provision.catalog.refresh.render import describe_changes
from provision.catalog.tables import FILES
from provision.lock.network import ca_bundle
from tools.checks import check
from tools.collect.dates import read_newest_drivers, read_toolkit_days
from tools.collect.images import read_cuda_images, read_python_images
from tools.collect.libraries import read_cudnn, read_nccl
from tools.collect.proposal import proposed, unlisted, without_newest

_PATIENT = FetchLimits(total_s=900.0)


def every_source(registry: str | None) -> Mapping[str, CatalogSource]:
    """Every source, those of users first."""
    cuda, python = (
        partial(read, registry=registry) for read in (read_cuda_images, read_python_images)
    )
    return {
        **SOURCES,
        "cudnn": CatalogSource("pypi", "cuDNN", read_cudnn),
        "nccl": CatalogSource("pypi", "NCCL", read_nccl),
        "cuda-images": CatalogSource("registry", "NVIDIA's images", cuda),
        "python-images": CatalogSource("registry", "Python's images", python),
        "driver-dates": CatalogSource("nvidia", "newest drivers", read_newest_drivers),
        "cuda-dates": CatalogSource("nvidia", "days of toolkits", read_toolkit_days),
    }


def patch(files: Mapping[str, str]) -> str:
    """A unified diff from the shipped data files to these texts, by name."""
    lines: list[str] = []
    for name, text in files.items():
        before = Path(DATA, name).read_text("utf-8").splitlines(keepends=True)
        path = f"provision/catalog/data/{name}"
        lines += difflib.unified_diff(
            before, text.splitlines(keepends=True), f"a/{path}", f"b/{path}", n=1
        )
    return "".join(lines)


def problems(files: Mapping[str, str]) -> list[str]:
    """What the catalog's checks say of the data files with these texts instead."""
    with tempfile.TemporaryDirectory() as folder:
        for name in FILES:
            text = files.get(name) or Path(DATA, name).read_text("utf-8")
            Path(folder, name).write_text(text, encoding="utf-8")
        return check(load(folder))


def main() -> int:
    """Print the patch, or write the files; say on standard error what was not read."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.collect",
        description=tools.collect.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--from", dest="sources", metavar="SOURCE", action="append", default=[])
    for option in ("--index", "--pytorch-index", "--registry", "--nvidia", "--ca-bundle"):
        parser.add_argument(option)
    parser.add_argument("--again", type=int, default=0, metavar="N")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    shipped, among = load(), every_source(args.registry)
    try:
        found = refresh(
            without_newest(shipped, args.again),
            among=among,
            sources=args.sources,
            index=args.index,
            pytorch_index=args.pytorch_index,
            nvidia=args.nvidia,
            ca_bundle=ca_bundle(args.ca_bundle, os.environ),
            today=datetime.now(timezone.utc).date().isoformat(),
            limits=_PATIENT,
        )
        files = {name: dump(raw) for name, raw in proposed(found)}
        findings = [*unlisted(found, shipped), *problems(files)]
    except Failure as failure:
        sys.stderr.write(f"error: {failure.message}\n  fix: {failure.fix}\n")
        return failure.exit_code
    sys.stderr.write(f"{describe_changes(found, among)}\n")
    sys.stderr.writelines(f"{line}\n" for line in findings)
    if args.write:
        for name, text in files.items():
            Path(DATA, name).write_text(text, encoding="utf-8")
            sys.stderr.write(f"written: provision/catalog/data/{name}\n")
    else:
        sys.stdout.write(patch(files))
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main())
