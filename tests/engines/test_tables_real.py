"""Tables of contents by the tools that people use, and what their readers make of changed ones."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.layers.lazy.formats import FormatName
from images.oci.layout_reader import open_layout
from images.oci.sources import ImageLayer
from tests import need
from tests.engines.lazy_place import built
from tests.kit.lazy_maker import Rows, layer_of, lazy_tar
from tests.kit.programs import run_program
from tests.unit.images.layers.lazy.test_checking import (
    CHUNK,
    FILES,
    TAR,
    accepted,
    member,
    read,
    tar_of,
)
from tests.unit.images.layers.lazy.test_layer import NAMES
from tests.unit.images.oci.test_layout import put

LARGE = random.Random(1).randbytes(1 << 20) + bytes(1 << 20) + random.Random(2).randbytes(1 << 18)
MORE = (
    *FILES,
    (member("lib/zeros"), bytes(300_000)),
    (member("lib/large.so"), LARGE),
    (member("lib/", tarfile.DIRTYPE, mode=0o750), b""),
)


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("go"), "converter")


def converted(converter: Path, tar: bytes, *words: str) -> ImageLayer:
    done = subprocess.run(
        [converter, *words, "write"], input=tar, capture_output=True, check=True, timeout=60
    )
    said = json.loads(done.stderr)
    return layer_of(done.stdout, said["diffID"], said["annotations"])


@pytest.mark.parametrize("words", [(), ("-chunk", "50000"), ("-first", "bin/su")], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_what_stargz_snapshotter_converts_agrees(
    name: FormatName, words: tuple[str, ...], converter: Path
) -> None:
    found = read(converted(converter, tar_of(*MORE), "-format", name, *words))
    assert {"bin/ping", "dev/null", "lib/large.so", "lib/.wh.gone"} < set(found)


def test_what_podman_s_library_converts_agrees(tmp_path: Path) -> None:
    skopeo = need.program("skopeo")
    tar = tar_of(*MORE).rstrip(b"\0")  # this skopeo drops the padding to whole records
    tar += bytes(-len(tar) % 512 + 1024)
    put(tmp_path / "plain", tars=[tar, bytes(1024)])
    argv = [skopeo, "copy", "--dest-compress", "--dest-compress-format", "zstd:chunked"]
    done = run_program([*argv, f"oci:{tmp_path}/plain", f"oci:{tmp_path}/lazy:a"])
    assert done.returncode == 0, done.stderr
    image = open_layout(tmp_path / "lazy")
    assert image.is_lazy
    first, second = map(read, image.layers)
    assert {"bin/ping", "dev/null", "lib/large.so", "lib/.wh.gone"} < set(first)
    assert second == []


def shown(converter: Path, blobs: list[bytes]) -> Iterator[Any]:
    """What the snapshotter's library would show of layers, or why it refuses them."""
    sized = b"".join(struct.pack("<I", len(blob)) + blob for blob in blobs)
    done = subprocess.run(
        [converter, "show"], input=sized, capture_output=True, check=True, timeout=300
    )
    return map(json.loads, done.stdout.splitlines())


def test_what_is_accepted_looks_the_same_to_stargz_snapshotter(
    converter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lazy_tar(TAR, "zstd", chunk=CHUNK, podman=False)

    def blob(rows: Rows) -> bytes:
        return b"".join(made.layer(rows).stream())

    tried = list(accepted(made, monkeypatch))
    good, *found = shown(converter, [blob(made.rows), *(blob(rows) for *_, rows in tried)])
    assert good["/bin/su"][1] == "urwxr-xr-x"
    differ = [
        change
        for (*change, _), one in zip(tried, found, strict=True)
        # refused: the node pulls the layer; no time is shown as the year 1, also by an honest table
        if not isinstance(one, str) and one != good and change[:2] != ["bin/empty", "modtime"]
    ]
    assert differ == []
    assert len(tried) > 1000
