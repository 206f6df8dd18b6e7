"""Tables of contents that lie: each is refused, soon and in little memory."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.errors import Failure
from images.layers.lazy import table_reader
from images.layers.lazy.formats import (
    FORMATS,
    SKIPPABLE,
    SKIPPABLE_MAGIC,
    TABLE_NAME,
    ZSTD_FOOTER,
    ZSTD_MAGIC,
    FormatName,
    gzip_footer,
)
from images.layers.lazy.table_reader import read_table
from images.oci.inflate import zstd_library
from images.oci.model import CHUNKED_DIGEST, CHUNKED_POSITION, TABLE_DIGEST, digest_of
from tests.kit.layer_maker import collect
from tests.unit.images.layers.lazy.test_layer import NAMES, content, files_layer, lazy, reader

TEXT = b"the content"
MB = 1 << 20


def chunked(packed: bytes, **said: int) -> bytes:
    """A blob with one content and this compressed table."""
    data: bytes = zstd_library().compress(TEXT)
    true = {"offset": len(data) + 8, "length": len(packed), "plain": 0, "kind": 1, **said}
    footer = ZSTD_FOOTER.pack(*true.values(), ZSTD_MAGIC)
    frames = [SKIPPABLE.pack(SKIPPABLE_MAGIC, len(one)) + one for one in (packed, footer)]
    return data + b"".join(frames)


def blob_of(table: bytes, **said: int) -> bytes:
    return chunked(zstd_library().compress(table), **{"plain": len(table), **said})


def rows(*found: object, **more: object) -> bytes:
    return json.dumps({"version": 1, "entries": list(found), **more}).encode()


def file(**more: object) -> dict[str, Any]:
    true = {"name": "a", "type": "reg", "size": len(TEXT), "chunkDigest": digest_of(TEXT)}
    return {**true, **more}


def chunk(**more: object) -> dict[str, Any]:
    return {"name": "a", "type": "chunk", "chunkDigest": digest_of(TEXT), **more}


@contextmanager
def little_memory(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_the_blob_of_these_tests_is_read() -> None:
    blob = blob_of(rows(file()))
    table = read_table(reader(blob), len(blob), {})
    assert content(blob, table, table.files["a"]) == TEXT


def test_several_files_in_one_compressed_part_are_read() -> None:
    blob = blob_of(rows(file(), file(name="b", innerOffset=len(TEXT))))
    assert read_table(reader(blob), len(blob), {}).files.keys() == {"a", "b"}


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version":1}',
        rows(version=2),
        b"[" * 100_000,
        rows(1),
        rows({"name": "a"}),
        rows({"name": "a", "type": []}),
        rows({"name": "a", "type": {}}),
        rows({"name": [], "type": "dir"}),
        rows(file(xattrs=[])),
        rows(file(xattrs={"user.a": "no base64"})),
        rows({"name": "d", "type": "dir", "chunkSize": "1"}),
        rows(file(type="door")),
        rows(file(name="../a")),
        rows(file(name="a/../../b")),
        rows(file(name="")),
        rows(file(name="/")),
        rows(file(name="/a"), file(offset=1)),
        rows(file(name="./a//b"), file(name="a/./b", offset=1)),
        rows(file(name="a\0")),
        rows(file(name="a" * 5000)),
        rows(file(name=1)),
        rows(file(), file(offset=1)),
        rows(file(), file(name="b")),
        rows(file(), {"name": "a/b", "type": "dir"}),
        rows(file(), {"name": "a/b/c", "type": "dir"}),
        rows(file(offset=-1)),
        rows(file(offset=1 << 40)),
        rows(file(offset=1.5)),
        rows(file(offset=True)),
        rows(file(size=-1)),
        rows(file(size="1")),
        rows(file(size=1 << 60)),
        rows(file(chunkSize=-1)),
        rows(file(chunkSize=1)),
        rows(file(chunkOffset=1)),
        rows(file(chunkDigest="md5:1")),
        rows(file(chunkDigest=None)),
        rows(file(chunkSize=5), chunk(offset=5, chunkOffset=4)),
        rows(file(chunkSize=5), chunk(offset=5, chunkOffset=6)),
        rows(file(chunkSize=5), chunk(chunkOffset=5)),
        rows(file(chunkSize=5), chunk(offset=5, chunkOffset=5, chunkSize=99)),
        rows(file(size=0), chunk(offset=5)),
        rows(chunk()),
        rows({"name": "d", "type": "dir"}, chunk()),
        rows({"name": "l", "type": "symlink"}),
        rows({"name": "l", "type": "hardlink", "linkName": "../a"}),
        rows({"name": "l", "type": "hardlink", "linkName": "gone"}),
        rows({"name": "l", "type": "hardlink", "linkName": "l"}),
        rows({"name": "d", "type": "dir", "mode": -1}),
    ],
    ids=lambda table: digest_of(table)[7:11] + table[:60].decode().replace("\0", "0"),
)
def test_a_table_that_lies_is_refused(table: bytes) -> None:
    blob = blob_of(table)
    with pytest.raises(Failure, match="table of contents"):
        read_table(reader(blob), len(blob), {})


@pytest.mark.parametrize(
    "said",
    [
        {"offset": 0},
        {"offset": 7},
        {"offset": 1 << 60},
        {"length": 1 << 60},
        {"length": 0},
        {"plain": 0},
        {"plain": 1 << 60},
        {"plain": 1},
        {"plain": 5000},
        {"kind": 2},
    ],
    ids=str,
)
def test_a_footer_that_lies_is_refused(said: dict[str, int]) -> None:
    blob = blob_of(rows(file()), **said)
    with pytest.raises(Failure, match="table of contents"):
        read_table(reader(blob), len(blob), {})


@pytest.mark.parametrize("offset", [0, 1, 1 << 30, (1 << 64) - 1], ids=str)
def test_a_footer_of_gzip_that_lies_is_refused(offset: int) -> None:
    blob = gzip.compress(b"x" * 100) + gzip_footer(offset)
    with pytest.raises(Failure, match="table of contents"):
        read_table(reader(blob), len(blob), {})


@pytest.mark.parametrize("blob", [b"", b"1", bytes(51), bytes(500)], ids=len)
def test_a_layer_without_a_table_is_refused(blob: bytes) -> None:
    with pytest.raises(Failure, match="no footer"):
        read_table(reader(blob), len(blob), {})


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        (TABLE_DIGEST, digest_of(b""), "digest-mismatch"),
        (CHUNKED_DIGEST, digest_of(b""), "digest-mismatch"),
        (CHUNKED_POSITION, "1:2:3:1", "image-unreadable"),
        (CHUNKED_POSITION, "x", "image-unreadable"),
    ],
    ids=str,
)
def test_a_table_that_the_manifest_does_not_mean_is_refused(
    key: str, value: str, code: str
) -> None:
    blob = blob_of(rows(file()))
    with pytest.raises(Failure) as caught:
        read_table(reader(blob), len(blob), {key: value})
    assert caught.value.code == code


def test_a_table_of_a_gigabyte_is_not_inflated() -> None:
    packer = zstd_library().ZstdCompressor()
    piece = b" " * MB
    packed = b"".join(packer.compress(piece) for _ in range(1024)) + packer.flush()
    for plain in (1 << 30, table_reader.MOST_TABLE_BYTES):
        blob = chunked(packed, plain=plain)
        with little_memory(200 * MB), pytest.raises(Failure, match="table of contents"):
            read_table(reader(blob), len(blob), {})


def test_a_table_of_a_gigabyte_in_gzip_is_not_inflated() -> None:
    head = tarfile.TarInfo(TABLE_NAME)
    head.size = 1 << 30
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1) as archive:
        archive.write(head.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(100):
            archive.write(b" " * MB)
    blob = buffer.getvalue() + gzip_footer(0)
    with little_memory(400 * MB), pytest.raises(Failure):
        read_table(reader(blob), len(blob), {})


def test_many_small_rows_are_not_parsed() -> None:
    table = b'{"version":1,"entries":[' + b"{}," * 2_000_000 + b"{}]}"
    blob = blob_of(table)
    with little_memory(100 * MB), pytest.raises(Failure, match="rows"):
        read_table(reader(blob), len(blob), {})


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_no_change_of_a_blob_is_a_traceback(name: FormatName, data: st.DataObject) -> None:
    blob, _ = collect(lazy(name, files_layer({"a/b": b"1", "a/c": b"2"})).stream(None))
    at = data.draw(st.integers(0, len(blob) - 1))
    wrong = blob[:at] + data.draw(st.binary(min_size=0, max_size=9)) + blob[at + 1 :]
    with suppress(Failure):
        read_table(reader(wrong), len(wrong), {})


def test_the_formats_have_one_name_each() -> None:
    assert set(FORMATS) == set(NAMES)
