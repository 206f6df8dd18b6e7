"""The file of an offline bundle: what is written is read, and nothing else is."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.errors import DiskFullError, Failure
from provision.build.offline.bundlefile import (
    LIST,
    BundledFile,
    BundleReader,
    PackedPart,
    write_bundle,
)
from provision.build.offline.errors import BadBundleError, NotPackableError

LONG = f"wheels/{'long' * 40}-1-py3-none-any.whl"  # longer than a plain tar header has room for


def part(path: str, content: bytes, *, program: bool = False) -> PackedPart:
    digest = hashlib.sha256(content).hexdigest()
    file = BundledFile(path=path, size=len(content), sha256=digest, program=program)
    return PackedPart(file=file, content=content)


PARTS = (
    part("pylock.toml", b"the lock"),
    part("gpu-provision/run", b"#!/bin/sh\n", program=True),
    part("wheels/a-1-py3-none-any.whl", bytes(range(256)) * 7),
    part(LONG, b""),
)


def written(path: Path, *parts: PackedPart) -> Path:
    write_bundle(path, parts or PARTS, lambda *_: None)
    return path


def read(path: Path) -> dict[str, bytes]:
    with BundleReader(path) as bundle:
        bundle.check(lambda *_: None)
        return {file.path: bundle.content(file) for file in bundle.files}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.bundle"
    size, sha256 = write_bundle(path, PARTS, lambda *_: None)
    assert read(path) == {one.file.path: one.content for one in PARTS}
    assert (size, sha256) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    assert os.listdir(tmp_path) == ["x.bundle"]  # noqa: PTH208


def test_the_same_parts_give_the_same_bytes(tmp_path: Path) -> None:
    on_disk = tmp_path / "a.whl"
    on_disk.write_bytes(bytes(range(256)) * 7)
    other = (*PARTS[:2], PackedPart(file=PARTS[2].file, content=on_disk), PARTS[3])
    assert written(tmp_path / "1").read_bytes() == written(tmp_path / "2", *other).read_bytes()


def test_tar_unpacks_it(tmp_path: Path) -> None:
    path = written(tmp_path / "x.bundle")
    with tarfile.open(path) as archive:
        assert archive.getnames() == [LIST, *(one.file.path for one in PARTS)]
        assert archive.getmember("gpu-provision/run").mode == 0o755
        assert all(member.isreg() and member.mtime == 0 for member in archive)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_refused_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = written(tmp_path_factory.mktemp("changed") / "x.bundle")
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(BadBundleError):
        read(path)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_truncated_file_is_refused_wherever_it_ends(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = written(tmp_path_factory.mktemp("short") / "x.bundle")
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(BadBundleError):
        BundleReader(path)


def tar_of(listed: Any, *members: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    """A tar as another program may write it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        text = listed if isinstance(listed, bytes) else json.dumps(listed).encode()
        for member in ((LIST, text), *members):
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            archive.addfile(info, io.BytesIO(member[1]))
    whole = out.getvalue().rstrip(b"\0")
    return whole + bytes(-len(whole) % 512 + 1024)


def row(path: object = "a", size: object = 1, sha256: object = "0" * 64) -> dict[str, object]:
    return {"path": path, "size": size, "sha256": sha256}


def listing(*rows: object, **more: object) -> dict[str, object]:
    return {"schema": 1, "made-by": "gpu-provision 0", "files": list(rows), **more}


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


HOSTILE: dict[str, bytes] = {
    "it is empty": b"",
    "it is text": b"hello\n" * 1000,
    "it is compressed": b"\x1f\x8b" + bytes(2000),
    "its list is not JSON": tar_of(b"{"),
    "its list is deep": tar_of(b"[" * 100_000),
    "its list is a list": tar_of([]),
    "its list is of a later schema": tar_of(listing(schema=2)),
    "its list has no files": tar_of({"schema": 1, "made-by": "x"}),
    "its list has a row of another shape": tar_of(listing("a")),
    "made-by has an escape sequence": tar_of({**listing(), "made-by": "\x1b[2J"}),
    "a path goes up": tar_of(listing(row("../a")), ("../a", b"x")),
    "a path goes up inside": tar_of(listing(row("a/../../b")), ("a/../../b", b"x")),
    "a path is absolute": tar_of(listing(row("/etc/passwd")), ("/etc/passwd", b"x")),
    "a path is empty": tar_of(listing(row("")), ("", b"x")),
    "a path has an empty part": tar_of(listing(row("a//b")), ("a//b", b"x")),
    "a path has a line break": tar_of(listing(row("a\nb")), ("a\nb", b"x")),
    "a path has a backslash": tar_of(listing(row("a\\b")), ("a\\b", b"x")),
    "a path is hidden": tar_of(listing(row(".bashrc")), (".bashrc", b"x")),
    "a path is a number": tar_of(listing(row(7))),
    "a path is too long": tar_of(listing(row("a" * 300)), ("a" * 300, b"x")),
    "a path is there twice": tar_of(listing(row(), row()), ("a", b"x"), ("a", b"y")),
    "a path is the list's": tar_of(listing(row(LIST)), (LIST, b"x")),
    "a path is a file and a directory": tar_of(
        listing(row("a"), row("a/b")), ("a", b"x"), ("a/b", b"x")
    ),
    "a size is negative": tar_of(listing(row(size=-512))),
    "a size is a truth value": tar_of(listing(row(size=True)), ("a", b"x")),
    "a size is a fraction": tar_of(listing(row(size=1.0)), ("a", b"x")),
    "a size is huge": tar_of(listing(row(size=1 << 49)), ("a", b"x")),
    "a size is beyond any file": tar_of(listing(row(size=1 << 200)), ("a", b"x")),
    "a digest is none": tar_of(listing(row(sha256="x" * 64)), ("a", b"x")),
    "a digest differs": tar_of(listing(row()), ("a", b"x")),
    "a file is missing": tar_of(listing(row())),
    "a file is not listed": tar_of(listing(), ("a", b"x")),
    "a symbolic link": tar_of(listing(row(size=0)), link("a", "/etc/passwd")),
    "a hard link": tar_of(listing(row(size=0)), link("a", LIST, tarfile.LNKTYPE)),
    "a device": tar_of(listing(row(size=0)), link("a", "", tarfile.CHRTYPE)),
    "a directory": tar_of(listing(row(size=0)), link("a", "", tarfile.DIRTYPE)),
    "the order differs": tar_of(listing(row("a"), row("b")), ("b", b"x"), ("a", b"x")),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_bundle_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.bundle"
    path.write_bytes(content)
    with pytest.raises(BadBundleError) as caught:
        read(path)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 600
    assert os.listdir(tmp_path) == ["x.bundle"]  # noqa: PTH208


def test_the_hostile_bundles_differ_from_good_ones_in_one_thing(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    good = tmp_path / "x.bundle"
    good.write_bytes(tar_of(listing(row(sha256=digest)), ("a", b"x")))
    assert read(good) == {"a": b"x"}


NOT_A_FILE: dict[str, Callable[[Path], object]] = {
    "it is missing": lambda _: None,
    "it is a directory": lambda path: path.mkdir(),
    "it is a named pipe": os.mkfifo,
    "its name is too long": lambda _: None,
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", NOT_A_FILE)
def test_what_is_not_a_file_is_refused_at_once(name: str, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300 if "too long" in name else "x.bundle")
    NOT_A_FILE[name](path)
    with pytest.raises(Failure) as caught:
        BundleReader(path)
    assert caught.value.exit_code == 2


def test_a_part_that_was_damaged_here_is_not_packed(tmp_path: Path) -> None:
    place = tmp_path / "a.whl"
    place.write_bytes(b"other")
    out = tmp_path / "out"
    out.mkdir()
    wrong = PackedPart(file=part("wheels/a.whl", b"right").file, content=place)
    with pytest.raises(BadBundleError, match="damaged or changed on this machine"):
        write_bundle(out / "x.bundle", (wrong,), lambda *_: None)
    assert list(out.iterdir()) == []


def test_a_name_that_no_reader_takes_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(NotPackableError, match="not allowed"):
        written(tmp_path / "x.bundle", part("wheels/a b.whl", b""))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_said_before_anything_is_written(tmp_path: Path) -> None:
    huge = BundledFile(path="wheels/a.whl", size=1 << 49, sha256="0" * 64)
    with pytest.raises(DiskFullError, match="needs 562949"):
        write_bundle(
            tmp_path / "x.bundle",
            (PackedPart(file=huge, content=tmp_path / "a.whl"),),
            lambda *_: None,
        )
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_bundle_leaves_the_one_before(tmp_path: Path) -> None:
    path, place = written(tmp_path / "x.bundle"), tmp_path / "a.whl"
    before = path.read_bytes()
    place.write_bytes(b"content")
    again = PackedPart(file=part("wheels/a.whl", b"content").file, content=place)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_bundle(path, (again,), interrupt)
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.whl", "x.bundle"]
