"""What is written is an ordinary layer to every reader, and the table says where its files are."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.assembly.build import known_from
from images.layers.lazy import layer as writing
from images.layers.lazy.formats import FORMATS, TABLE_NAME, FormatName
from images.layers.lazy.layer import LazyLayer
from images.layers.lazy.rows import TableFile
from images.layers.lazy.table import LANDMARK, NO_LANDMARK
from images.layers.lazy.table_reader import ReadTable, read_table
from images.layers.own import FilesLayer, ordered
from images.layers.tar import TarEntry
from images.oci.inflate import zstd_library
from images.oci.model import TABLE_ANNOTATIONS, digest_of
from images.oci.sources import KnownLayer, Unpacked
from images.store.memo import known_from_json, known_to_json
from tests import ROOT, need
from tests.kit.layer_maker import collect
from tests.kit.memory_target import DictMemory, TextLayer
from tests.kit.programs import run_program
from tests.unit.images.assembly.test_build import made

NAMES: tuple[FormatName, ...] = get_args(FormatName)
CHUNK = 64
LANDMARKS = frozenset({LANDMARK, NO_LANDMARK})

parts = st.text("abcé", min_size=1, max_size=3)
paths = st.lists(parts, min_size=2, max_size=3).map(lambda found: "/".join([*found[:-1], "f"]))
files = st.dictionaries(paths, st.binary(max_size=4 * CHUNK), max_size=8)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", CHUNK)


def files_layer(found: dict[str, bytes], *more: TarEntry) -> FilesLayer:
    entries = [TarEntry(path=path, content=text) for path, text in found.items()]
    return FilesLayer(title="files", created_by="a test", entries=ordered([*entries, *more]))


def lazy(
    name: FormatName, *sources: FilesLayer | TextLayer, first: tuple[str, ...] | None = None
) -> LazyLayer:
    return LazyLayer(sources=sources, format=FORMATS[name], first=first)


def reader(blob: bytes) -> Callable[[int, int], bytes]:
    def read(offset: int, size: int) -> bytes:
        assert 0 <= offset <= offset + size <= len(blob)
        return blob[offset : offset + size]

    return read


def table_of(blob: bytes, unpacked: Unpacked) -> ReadTable:
    return read_table(reader(blob), len(blob), unpacked.annotations)


def content(blob: bytes, table: ReadTable, file: TableFile) -> bytes:
    """A file's content, as a snapshotter reads it: each chunk by itself."""
    parts = []
    for chunk in file.chunks:
        rest = blob[chunk.offset :]
        gunzip, unzstd = zlib.decompressobj(31), zstd_library().ZstdDecompressor()
        plain = (
            gunzip.decompress(rest, chunk.size)
            if table.format == "gzip"
            else unzstd.decompress(rest, max_length=chunk.size)
        )
        assert digest_of(plain) == chunk.digest
        parts.append(plain)
    return b"".join(parts)


def plain_tar(name: FormatName, blob: bytes) -> bytes:
    """Inflated by a library that knows nothing of tables."""
    if name == "gzip":
        return gzip.decompress(blob)
    with zstd_library().ZstdFile(io.BytesIO(blob)) as file:
        tar: bytes = file.read()
        return tar


def members_of(tar: bytes) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            yield member, file.read() if file else b""


@pytest.mark.parametrize("name", NAMES)
@given(one=files, two=files, mark=st.sampled_from([LANDMARK, NO_LANDMARK]))
def test_both_readers_find_the_files_that_were_written(
    name: FormatName, one: dict[str, bytes], two: dict[str, bytes], mark: str
) -> None:
    expected = {**one, **two}
    first = tuple(sorted(two)) if mark == LANDMARK else None
    layer = lazy(name, files_layer(one), files_layer(two), first=first)
    blob, unpacked = collect(layer.stream(None))
    tar = plain_tar(name, blob)
    assert unpacked.diff_id == digest_of(tar)
    assert unpacked.size == len(tar)
    found = {member.name: text for member, text in members_of(tar) if member.isreg()}
    assert found.pop(mark) == b"\x0f"
    assert (TABLE_NAME in found) == (name == "gzip")
    found.pop(TABLE_NAME, None)
    assert found == expected
    table = table_of(blob, unpacked)
    listed = {
        path: content(blob, table, file)
        for path, file in table.files.items()
        if file.seen.kind == "reg"
    }
    assert listed.pop(mark) == b"\x0f"
    assert listed == expected
    digests = {path: digest_of(text) for path, text in expected.items() if text}
    assert {path: table.files[path].seen.digest for path in digests} == digests
    assert collect(layer.stream(unpacked)) == (blob, unpacked)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_start_reads_is_before_the_landmark(name: FormatName) -> None:
    texts = {f"opt/{letter}": letter.encode() * 3 * CHUNK for letter in "abcd"}
    layer = lazy(name, files_layer(texts), first=("opt/d", "opt/b", "not/here"))
    blob, unpacked = collect(layer.stream(None))
    table = table_of(blob, unpacked)
    landmark = table.files[LANDMARK].chunks[0].offset
    before = {path for path in texts if table.files[path].chunks[-1].offset < landmark}
    assert before == {"opt/b", "opt/d"}


def test_a_large_file_is_not_fetched_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_FIRST_BYTES", 100)
    source = files_layer({"a/large": bytes(100), "a/small": bytes(99)})
    layer = lazy("zstd", source, first=("a/large", "a/small"))
    blob, unpacked = collect(layer.stream(None))
    table = table_of(blob, unpacked)
    landmark = table.files[LANDMARK].chunks[0].offset
    assert table.files["a/small"].chunks[0].offset < landmark
    assert table.files["a/large"].chunks[0].offset > landmark


@pytest.mark.parametrize("name", NAMES)
def test_links_modes_and_owners_are_kept(name: FormatName) -> None:
    entries = (
        TarEntry(path="bin/su", content=b"su", mode=0o4755, owner=(0, 42), mtime=1700000000),
        TarEntry(path="bin/alias", kind="hardlink", target="bin/su"),
        TarEntry(path="lib", kind="symlink", target="usr/lib"),
        TarEntry(path="tmp", kind="dir", mode=0o1777),
        TarEntry(path="etc/empty"),
    )
    blob, unpacked = collect(lazy(name, files_layer({}, *entries)).stream(None))
    found = {member.name: member for member, _ in members_of(plain_tar(name, blob))}
    su = found["bin/su"]
    assert (su.mode, su.uid, su.gid, su.mtime) == (0o4755, 0, 42, 1700000000)
    assert found["bin/alias"].islnk()
    assert found["bin/alias"].linkname == "bin/su"
    assert found["tmp"].mode == 0o1777
    table = {path: file.seen for path, file in table_of(blob, unpacked).files.items()}
    assert (table["lib"].kind, table["lib"].link) == ("symlink", "usr/lib")
    assert (table["bin/alias"].kind, table["bin/alias"].link) == ("hardlink", "bin/su")
    assert (table["tmp"].mode, table["bin/su"].mode) == (0o1777, 0o4755)
    assert table["etc/empty"].size == 0


def test_a_later_file_replaces_a_directory() -> None:
    below, above = files_layer({"a/b/c": b"1", "a/d": b"2"}), files_layer({"a/b": b"3"})
    blob, unpacked = collect(lazy("zstd", below, above).stream(None))
    names = set(table_of(blob, unpacked).files) - LANDMARKS
    assert names == {"a", "a/b", "a/d"}


@pytest.mark.parametrize("name", NAMES)
def test_its_key_has_all_that_its_bytes_depend_on(
    name: FormatName, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = files_layer({"a/b": b"1"})
    keys = {
        lazy(name, source).key,
        lazy(name, source, first=()).key,
        lazy(name, source, first=("a/b",)).key,
        lazy(name, source, TextLayer("c")).key,
    }
    monkeypatch.setattr(type(FORMATS[name]), "version", "another compressor")
    assert len({*keys, lazy(name, source).key}) == 5


def test_formats_never_share_a_key() -> None:
    assert len({lazy(name, TextLayer("a")).key for name in NAMES}) == 2


@pytest.mark.parametrize("name", NAMES)
def test_another_process_user_place_and_time_give_the_same_bytes(
    name: FormatName, tmp_path: Path
) -> None:
    program = (
        "import hashlib, os, sys; os.umask(int(sys.argv[2], 8))\n"
        "from tests.unit.images.layers.lazy.test_layer import *\n"
        "layer = lazy(sys.argv[1], files_layer({'a/b': bytes(range(256)) * 999, 'é': b'1'}))\n"
        "print(layer.key, hashlib.sha256(collect(layer.stream(None))[0]).hexdigest())\n"
    )
    said = set()
    for umask, zone, hashes in (("077", "Asia/Tokyo", "1"), ("002", "UTC", "2")):
        place = tmp_path / umask
        place.mkdir()
        env = {"HOME": str(place), "TMPDIR": str(place), "TZ": zone, "PYTHONHASHSEED": hashes}
        done = run_program(
            [sys.executable, "-c", program, name, umask],
            cwd=place,
            env={**os.environ, **env, "PYTHONPATH": str(ROOT)},
            check=True,
        )
        said.add(done.stdout)
    assert len(said) == 1


def test_the_program_for_zstd_skips_the_table() -> None:
    blob, unpacked = collect(lazy("zstd", files_layer({"a/b": b"1" * 1000})).stream(None))
    argv = [need.program("zstd"), "-dc"]
    done = subprocess.run(argv, input=blob, capture_output=True, timeout=60, check=True)
    assert digest_of(done.stdout) == unpacked.diff_id


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_has_the_annotations_also_from_memory(name: FormatName) -> None:
    memory = DictMemory()
    layer = lazy(name, TextLayer("a"))
    built, target = made(layer, memory=memory)
    found = built.image.layers[-1].blob
    assert found.media_type == FORMATS[name].media_type
    assert found.of_table.keys() <= TABLE_ANNOTATIONS
    assert found.of_table
    blob = target.blobs[found.digest]
    read_table(reader(blob), len(blob), found.annotations)
    known = memory.found[layer.key]
    told = known_from([found], [known.unpacked.diff_id])[layer.key]  # --cache-from
    assert told.unpacked.annotations == found.of_table == known.unpacked.annotations
    assert known_from_json(known_to_json(known)) == known
    again, _ = made(layer, memory=memory, target=target)
    assert again.content == built.content


@pytest.mark.parametrize(
    "annotations",
    [[], {"other": "x"}, {"io.containers.zstd-chunked.manifest-checksum": 1}],
    ids=["a list", "an unknown one", "a number"],
)
def test_a_memory_with_other_annotations_is_not_used(annotations: object) -> None:
    known = KnownLayer(
        digest=digest_of(b"1"), size=1, unpacked=Unpacked(diff_id=digest_of(b"2"), size=1)
    )
    assert known_from_json(known_to_json(known)) == known
    assert known_from_json({**known_to_json(known), "annotations": annotations}) is None
