"""A table of contents that says something else than the tar is found out by reading the layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from images.errors import Failure
from images.layers.lazy import formats
from images.layers.lazy.checking import checked
from images.layers.lazy.formats import FORMATS, FormatName
from images.layers.tar import TarEntry
from images.oci.model import Descriptor, digest_of
from images.oci.sources import ImageLayer
from images.oci.tarstream import layer_members
from tests.kit.layer_maker import collect
from tests.unit.images.layers.lazy.test_layer import NAMES, files_layer, lazy

Rows = list[dict[str, Any]]


def written(name: FormatName) -> ImageLayer:
    link = TarEntry(path="a/link", kind="symlink", target="b")
    hard = TarEntry(path="a/hard", kind="hardlink", target="a/b")
    layer = lazy(name, files_layer({"a/b": b"1" * 200, "a/c": b""}, link, hard), first=("a/b",))
    blob, unpacked = collect(layer.stream(None))

    def stream() -> Generator[bytes, None, None]:
        for at in range(0, len(blob), 100):
            yield blob[at : at + 100]

    return ImageLayer(
        blob=Descriptor(
            media_type=FORMATS[name].media_type,
            digest=digest_of(blob),
            size=len(blob),
            annotations=unpacked.annotations,
        ),
        diff_id=unpacked.diff_id,
        stream=stream,
    )


def names_in(layer: ImageLayer) -> list[str]:
    return [member.name for member, _ in layer_members(checked(layer))]


@pytest.mark.parametrize("name", NAMES)
def test_what_we_write_agrees(name: FormatName) -> None:
    assert {"a", "a/b", "a/c", "a/link", "a/hard"} < set(names_in(written(name)))


def test_a_layer_without_annotations_is_not_looked_at() -> None:
    layer = written("zstd")
    layer = replace(layer, blob=replace(layer.blob, annotations={"other": "x"}))
    assert checked(layer) is layer


def without(path: str) -> Callable[[Rows], Rows]:
    return lambda rows: [row for row in rows if row["name"] != path]


def but(path: str, **more: object) -> Callable[[Rows], Rows]:
    return lambda rows: [{**row, **more} if row["name"] == path else row for row in rows]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "change",
    [
        without("a/c"),
        without("a/link"),
        but("a/c", name="a/d"),
        but("a/link", linkName="c"),
        but("a/c", type="symlink", linkName="b"),
        lambda rows: [*rows, {"name": "a/more", "type": "dir"}],
    ],
    ids=["less", "no link", "another name", "another target", "another kind", "more"],
)
def test_another_table_is_refused(
    name: FormatName, change: Callable[[Rows], Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lies(rows: Rows) -> bytes:
        return json.dumps({"version": 1, "entries": change(rows)}).encode()

    monkeypatch.setattr(formats, "write_table", lies)
    layer = written(name)
    with pytest.raises(Failure, match="see other files"):
        names_in(layer)
