"""Our tar: read back by Python's tarfile, whatever the names and sizes."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.layers.tar import BLOCK, END, MTIME, TarEntry, file_layer, header, padding, sort_key
from tests.kit.cases import cases
from tests.kit.layer_maker import Read, collect, unpack

_part = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=60)
_parts = _part.filter(lambda part: part not in {".", ".."} and not part.endswith("\n"))
paths = st.lists(_parts, min_size=1, max_size=9).map("/".join)


def one(path: str, **fields: object) -> tarfile.TarInfo:
    """The only member of a tar of one header."""
    data = header(path, **fields)  # type: ignore[arg-type]
    assert len(data) % BLOCK == 0
    with tarfile.open(fileobj=io.BytesIO(data + END)) as archive:
        return archive.next() or tarfile.TarInfo()


@given(path=paths, mode=st.sampled_from([0o644, 0o755, 0o1777]), size=st.integers(0, 1 << 45))
def test_tarfile_reads_any_name_and_size(path: str, mode: int, size: int) -> None:
    found = one(path, kind="file", mode=mode, size=size)
    assert (found.name, found.mode, found.size, found.mtime) == (path, mode, size, MTIME)


@given(path=paths, target=paths)
def test_tarfile_reads_any_link(path: str, target: str) -> None:
    found = one(path, kind="symlink", mode=0o777, target=target)
    assert (found.name, found.linkname, found.issym()) == (path, target, True)


@pytest.mark.parametrize("length", [99, 100, 101, 155, 156, 254, 255, 256, 257, 300])
@pytest.mark.parametrize("kind", ["file", "dir"])
def test_names_come_back_around_the_limits_of_ustar(length: int, kind: str) -> None:
    for step in (7, 99, 110):
        name = "".join("/" if i % step == step - 1 else "n" for i in range(length)).rstrip("/")
        assert one(name, kind=kind, mode=0o755).name == name


def test_most_names_need_one_block() -> None:
    assert len(header("a/" * 60 + "b" * 99, kind="file", mode=0o644)) == BLOCK
    assert len(header("é", kind="file", mode=0o644)) == 3 * BLOCK


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513])
def test_contents_end_at_a_block(size: int) -> None:
    assert (size + len(padding(size))) % BLOCK == 0


@settings(max_examples=50)
@given(names=st.sets(paths, max_size=6), repeats=st.sampled_from([0, 1, 30, 600, 3000]))
def test_a_layer_of_entries_comes_back_whole(names: set[str], repeats: int) -> None:
    content = b"def f(): pass\n" * repeats
    kept = [n for n in names if not any(o.startswith(f"{n}/") for o in names)]
    entries = [TarEntry(path=name, content=content) for name in sorted(kept, key=sort_key)]
    layer, unpacked = collect(file_layer(entries))
    found = unpack(layer)
    assert {n for n, read in found.items() if read.kind == "file"} == set(kept)
    assert all(read.content == content for read in found.values() if read.kind == "file")
    plain = gzip.decompress(layer)
    assert unpacked.diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    assert unpacked.size == len(plain)


def test_kinds_and_modes() -> None:
    entries = [
        TarEntry(path="a", kind="dir", mode=0o1777),
        TarEntry(path="a/b/c", content=b"1", mode=0o755),
        TarEntry(path="a/link", kind="symlink", target="b/c"),
    ]
    layer, _ = collect(file_layer(entries))
    assert unpack(layer) == {
        "a": Read("dir", 0o1777),
        "a/b": Read("dir", 0o755),
        "a/b/c": Read("file", 0o755, b"1"),
        "a/link": Read("symlink", 0o777, b"b/c"),
    }


@cases(
    "paths_",
    ("out of order", ["b", "a"]),
    ("twice", ["a", "a"]),
    ("a directory before a longer name", ["a-b", "a/b"]),
    ("absolute", ["/a"]),
    ("an empty part", ["a//b"]),
)
def test_entries_that_would_not_be_the_same_everywhere_are_our_own_fault(paths_: list[str]) -> None:
    with pytest.raises(ValueError, match="not in order"):
        collect(file_layer(TarEntry(path=path) for path in paths_))


def test_the_bytes_are_those_of_the_first_day() -> None:
    """A change here changes every layer: then transcode.FORMAT is raised, and this digest."""
    entries = [
        TarEntry(path="a/" + "long" * 80, content=b"text\n" * 999),
        TarEntry(path="opt/x", kind="symlink", target="t" * 120),
        TarEntry(path="opt/é", content=bytes(range(256)) * 5, mode=0o755),
    ]
    layer, _ = collect(file_layer(entries))
    assert hashlib.sha256(layer).hexdigest() == GOLDEN


GOLDEN = "25e6be7bd6aa9739ae9073ef608e12f0112e4e7db2e77e5ceb9787d82103842e"
