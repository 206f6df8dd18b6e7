"""Layers that are known before they are built here: the large ones of widely used wheels.

A layer's bytes depend only on its key, so a result from one machine is valid on all. A row has
digest, size and diffID. The diffID is trusted only if the bytes that were written have the row's
digest, and then they are the bytes that were measured. So a wrong row costs only time.

    python -m images.layers.shared 3.11 WHEEL...  > images/layers/data/known_layers.json

regenerates the rows from wheels; do that when `transcode.FORMAT` is raised: a test reminds you.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from images.layers.order import wheel_sources
from images.layers.project import sha256_of
from images.layers.transcode import FORMAT
from images.oci.blobfiles import take
from images.oci.sources import KnownLayer, LayerSource, Unpacked
from images.wheels.remote_file import Wheel

TABLE = Path(__file__).parent / "data" / "known_layers.json"
_LEAST_BYTES = 5_000_000  # smaller ones are quickly measured again


def shared_layer(key: str) -> KnownLayer | None:
    """The table's row for the layer with this key, if any."""
    return _table().get(key)


@cache
def _table() -> dict[str, KnownLayer]:
    document = json.loads(TABLE.read_bytes())
    if document["format"] != FORMAT:
        return {}
    return {
        row["key"]: KnownLayer(
            digest=row["digest"],
            size=row["size"],
            unpacked=Unpacked(diff_id=row["diff_id"], size=row["unpacked"]),
        )
        for row in document["layers"]
    }


def rows_of(python: str, files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Generate each large layer, and yield its row."""
    paths = {wheel.sha256: path for wheel, path in map(_wheel, files)}
    sources = wheel_sources(
        [wheel for wheel, _ in map(_wheel, files)],
        python=python,
        framework=(),
        own=(),
        exclude_unneeded=False,
        fetch=lambda wheel: paths[wheel.sha256],
    )
    for source in sources:
        if len(source.wheels) == 1 and source.about_bytes >= _LEAST_BYTES:
            yield _row(source, python)


def _row(source: LayerSource, python: str) -> dict[str, Any]:
    with Path(os.devnull).open("wb") as nowhere:
        made = take(source.stream(None), nowhere, None, lambda _: None)
    return {
        "title": source.title,
        "python": python,
        "wheel": source.wheels[0].sha256,
        "key": source.key,
        "digest": made.digest,
        "size": made.size,
        "diff_id": made.unpacked.diff_id,
        "unpacked": made.unpacked.size,
    }


@cache
def _wheel(path: Path) -> tuple[Wheel, Path]:
    name, version, _, _ = parse_wheel_filename(path.name)
    sha256, size = sha256_of(path)
    url = path.absolute().as_uri()
    return Wheel(name=name, version=str(version), url=url, size=size, sha256=sha256), path


def main(words: Sequence[str]) -> int:
    """Print the table for some wheels, installed for one Python or several."""
    pythons = [word for word in words if word[:1].isdigit() and not word.endswith(".whl")]
    files = [Path(word) for word in words if word not in pythons]
    if not pythons or not files:
        sys.stderr.write("usage: python -m images.layers.shared X.Y ... WHEEL ...\n")
        return 2
    rows = [row for python in pythons for row in rows_of(python, files)]
    text = ",\n".join(json.dumps(row) for row in rows)
    sys.stdout.write(f'{{"format": {FORMAT}, "layers": [\n{text}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
