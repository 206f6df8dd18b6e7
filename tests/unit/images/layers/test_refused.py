"""Wheels that no layer is made of: each is refused in one sentence, before the last byte."""

from __future__ import annotations

import os
import random
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from images.layers.errors import WheelRefusedError
from images.layers.transcode import wheel_layer
from images.layers.wheel_file import WheelFile
from tests.kit.cases import cases
from tests.kit.layer_maker import (
    PLACE,
    Piece,
    change,
    collect,
    craft,
    deflated,
    files_of,
    locked,
    pieces_of,
    row,
    stream_of,
)

NOISE = random.Random(7).randbytes(5000)
GOOD = Piece(name="example/it.py", content=b"it = 1\n" * 99)
INFO = "example-1.0.dist-info"


def refusal(data: bytes, directory: Path) -> str:
    """The sentence of a refusal, which every reading gives."""
    with pytest.raises(WheelRefusedError) as caught:
        collect(stream_of(data, directory))
    assert caught.value.exit_code == 6
    assert "--builder docker" in caught.value.fix
    assert caught.value.message.startswith("example-1.0-py3-none-any.whl ")
    assert caught.value.message.isprintable()
    return caught.value.message


def wide(size: int, packed: int) -> bytes:
    return struct.pack("<HHQQ", 1, 16, size, packed)


BAD_MEMBERS = [
    ("a name that climbs", Piece(name="../evil.py"), "leads elsewhere"),
    ("a name that climbs later", Piece(name="example/../../x"), "leads elsewhere"),
    ("a name with a dot", Piece(name="example/./x"), "leads elsewhere"),
    ("a name with an empty part", Piece(name="example//x"), "leads elsewhere"),
    ("an absolute name", Piece(name="/etc/passwd"), "absolute"),
    ("a drive letter", Piece(name="C:/x"), "absolute"),
    ("a backslash", Piece(name="example\\x"), "backslash"),
    ("a zero byte in a name", Piece(name=b"example/x\0.py"), "cannot be shown"),
    ("a new line in a name", Piece(name=b"example/x\n.py"), "cannot be shown"),
    ("a name written backwards", Piece(name="example/\u202egnp.py"), "cannot be shown"),
    ("a name that is not the UTF-8 it says it is",
     Piece(name=b"\xff\xfe", said={"flags": 1 << 11}, said_before={"flags": 1 << 11}),
     "cannot be shown"),
    ("no name", Piece(name=b""), "absolute|leads"),
    ("a whiteout", Piece(name="example/.wh.x"), "would delete files"),
    ("an opaque whiteout", Piece(name="example/.wh..wh..opq"), "would delete files"),
    ("a name too long for a file system", Piece(name="n" * 256), "longer"),
    ("a path too long for a system call", Piece(name="n/" * 2100 + "n"), "longer"),
    ("a symbolic link", Piece(name="example/l", content=b"/etc/passwd", attributes=0o120777 << 16),
     "link or a device"),
    ("a device", Piece(name="d", attributes=0o20666 << 16), "link or a device"),
    ("a pipe", Piece(name="p", attributes=0o10666 << 16), "link or a device"),
    ("a file that says it is a directory", Piece(name="example/d", attributes=0o40755 << 16),
     "a file and a directory"),
    ("a directory with a content", Piece(name="example/d/", content=b"x"), "with a content"),
    ("an encrypted member", Piece(name="x", said={"flags": 1}, said_before={"flags": 1}),
     "encrypted"),
    ("a strongly encrypted member",
     Piece(name="x", said={"flags": 1 << 6 | 1}, said_before={"flags": 1 << 6 | 1}), "encrypted"),
    ("patch data", Piece(name="x", said={"flags": 1 << 5}, said_before={"flags": 1 << 5}),
     "encrypted or patched"),
    ("bzip2", Piece(name="x", content=b"x" * 99, method=12, data=b"BZh9"), "method 12"),
    ("zstd", Piece(name="x", content=b"x" * 99, method=93, data=b"(\xb5/\xfd"), "method 93"),
    ("a stored member with two sizes",
     Piece(name="x", content=b"1234", method=0, said={"size": 3}, said_before={"size": 3}),
     "two sizes"),
    ("a bomb by its directory",
     Piece(name="x", content=bytes(4000), said={"size": 4 << 30 - 1}, said_before={}),
     "which cannot be"),
    ("a wrong checksum",
     Piece(name="x", content=b"1" * 500, said={"crc": 1}, said_before={"crc": 1}), "checksum"),
    ("more bytes than it says",
     Piece(name="x", content=b"1" * 500, said={"size": 499}, said_before={"size": 499}),
     "more than the 499 bytes"),
    ("fewer bytes than it says",
     Piece(name="x", content=b"1" * 500, said={"size": 501}, said_before={"size": 501}),
     "500 bytes, not the 501"),
    ("a stream that is cut off", Piece(name="x", content=NOISE, data=deflated(NOISE)[:-9]),
     "middle of its compressed form|cannot be inflated"),
    ("something behind the stream's end",
     Piece(name="x", content=NOISE, data=deflated(NOISE) + b"more"), "behind its end"),
    ("no deflate", Piece(name="x", content=NOISE, data=b"\xff" * 5000), "cannot be inflated"),
    ("two checksums", Piece(name="x", said_before={"crc": 5}), "other sizes"),
    ("two sizes", Piece(name="x", said_before={"size": 5}), "other sizes"),
    ("two packed sizes", Piece(name="x", said_before={"packed": 5}), "other sizes"),
    ("two names", Piece(name="x", said_before={"name": b"y"}), "other things"),
    ("two methods", Piece(name="x", said_before={"method": 0}), "other things"),
    ("two sets of flags", Piece(name="x", said_before={"flags": 8}), "other things"),
    ("another name in a field", Piece(name="x", extra=struct.pack("<HHBI", 0x7075, 6, 1, 0) + b"y"),
     "two names"),
    ("a zip64 field that is too short", Piece(name="x", content=b"x" * 9, said={"size": 0xFFFFFFFF,
     "packed": 0xFFFFFFFF}, extra=wide(9, 3)[:10]), "zip64"),
    ("zip64 sizes that differ", Piece(name="x", content=b"x" * 9, said_before={"size": 0xFFFFFFFF,
     "packed": 0xFFFFFFFF}, extra_before=wide(8, len(deflated(b"x" * 9)))), "other sizes"),
    ("a descriptor that differs", Piece(name="x", content=b"x" * 9, said={"flags": 8},
     said_before={"flags": 8, "crc": 0, "size": 0, "packed": 0},
     behind=b"PK\x07\x08" + struct.pack("<III", 1, 2, 3)), "sizes behind"),
    ("an offset inside", Piece(name="x", said={"offset": 1}), "other things|no x where|reaches"),
    ("a member into the next", Piece(name="x", said={"packed": 1 << 20}), "overlaps what"),
]  # fmt: skip


@cases("piece why", *BAD_MEMBERS)
def test_members_that_are_refused(piece: Piece, why: str, tmp_path: Path) -> None:
    name = piece.name if isinstance(piece.name, bytes) else piece.name.encode()
    pieces = pieces_of(GOOD)
    listing = pieces[-1].content
    if not name.endswith(b"/"):
        try:
            without_size = row(name.decode(), piece.content).rpartition(",")[0]
            listing += f"{without_size},\n".encode()
        except UnicodeDecodeError:
            listing += b"x,,\n"
    pieces = [piece, *change(pieces, "/RECORD", content=listing)]
    said = refusal(craft(pieces), tmp_path)
    assert re.search(why, said), said


def rows(change_rows: Callable[[list[str]], list[str]]) -> bytes:
    return craft(pieces_of(GOOD, record=change_rows))


WHEELS = [
    ("RECORD has a file twice", rows(lambda r: [*r, r[0]]), "twice"),
    ("RECORD has a row of two", rows(lambda r: [*r, "a,b"]), "cannot be read"),
    ("RECORD is not UTF-8", craft(change(pieces_of(GOOD), "/RECORD", content=b"\xff\xff")),
     "cannot be read"),
    ("RECORD has a field without an end",
     craft(change(pieces_of(GOOD), "/RECORD", content=b'"' + b"x" * 200_000)), "cannot be read"),
    ("RECORD is huge", craft(change(pieces_of(GOOD), "/RECORD", content=bytes(17 << 20))),
     "are allowed"),
    *(
        (
            f"no {name}",
            craft([p for p in pieces_of(GOOD) if not str(p.name).endswith(f"/{name}")]),
            rf"has no .*/{name}|not there",
        )
        for name in ("METADATA", "WHEEL", "RECORD")
    ),
    ("no dist-info", craft([GOOD]), "must have one .dist-info directory; it has none"),
    ("two dist-info directories",
     craft([*pieces_of(GOOD), Piece(name="other-1.0.dist-info/METADATA")]),
     "must have one .dist-info directory"),
    ("two spellings of one dist-info directory",
     craft([*pieces_of(GOOD), Piece(name="Example-1.0.DIST-INFO/METADATA")]),
     "must have one .dist-info directory"),
    ("a name twice", craft([*pieces_of(GOOD), GOOD]), "two members example/it.py"),
    ("another package", craft(pieces_of(GOOD, name="other")), "is locked as example 1.0"),
    ("another version", craft(pieces_of(GOOD, version="1.1")), "is locked as example 1.0"),
    ("METADATA of another package", craft(pieces_of(GOOD, metadata="Name: other\nVersion: 1.0\n")),
     "has a METADATA"),
    ("METADATA of no version", craft(pieces_of(GOOD, metadata="Name: example\nVersion: not one\n")),
     "has a METADATA"),
    ("a later wheel format", craft(pieces_of(GOOD, wheel="Wheel-Version: 2.0\n")),
     "wheel format '2.0'"),
    ("no wheel format", craft(pieces_of(GOOD, wheel="Tag: py3-none-any\n")), "wheel format ''"),
    ("a wheel format without an end",
     craft(pieces_of(GOOD, wheel="Wheel-Version: " + "1" * 5000 + "\n")), "wheel format"),
    ("an unknown scheme of data", craft(pieces_of(Piece(name="example-1.0.data/rootfs/x"))),
     "no place"),
    ("other data", craft(pieces_of(Piece(name="other-1.0.data/data/x"))), "no place"),
    ("a file called data", craft(pieces_of(Piece(name="x.data"))), "no place"),
    ("a script that replaces Python",
     craft(pieces_of(Piece(name="example-1.0.data/scripts/python3.11"))), "environment's own"),
    ("data that replaces pyvenv.cfg",
     craft(pieces_of(Piece(name="example-1.0.data/data/pyvenv.cfg"))), "environment's own"),
    ("one place from two schemes",
     craft(pieces_of(GOOD, Piece(name="example-1.0.data/purelib/example/it.py"))), "two files as"),
    ("a file that is also a directory", craft(pieces_of(GOOD, Piece(name="example/it.py/x"))),
     "which is a file"),
    *(
        (
            f"a command that {what}",
            craft(
                pieces_of(
                    GOOD, Piece(name=f"{INFO}/entry_points.txt", content=text.encode("latin"))
                )
            ),
            why,
        )
        for what, text, why in (
            ("climbs", "[console_scripts]\n../x = a:b\n", "not a valid file name"),
            ("is absolute", "[console_scripts]\n/bin/x = a:b\n", "not a valid file name"),
            ("is called ..", "[gui_scripts]\n.. = a:b\n", "not a valid file name"),
            ("has blanks", "[console_scripts]\na b = a:b\n", "not a valid file name"),
            ("calls code", "[console_scripts]\nx = os;evil():b\n", "not a function"),
            ("calls a module", "[console_scripts]\nx = a\n", "not a function"),
            ("calls with arguments", "[console_scripts]\nx = a:b(1)\n", "not a function"),
            ("replaces Python", "[console_scripts]\npython = a:b\n", "environment's own"),
            ("stands in no section", "x = a:b\n", "cannot be read"),
            ("is not UTF-8", "[console_scripts]\n\xff = a:b\n", "not UTF-8"),
        )
    ),
    ("an empty file", b"", "no zip"),
    ("a cut-off end", b"PK\x05\x06", "no zip"),
    ("a page of a web server", b"<html>not found</html>" * 9, "no zip"),
    ("a truncated download", craft(pieces_of(GOOD))[:-40], "no zip"),
    ("a lost beginning", craft(pieces_of(GOOD))[500:], "not at byte"),
    ("a program in front", b"#!/bin/sh\n" + craft(pieces_of(GOOD)), "not at byte"),
    ("an empty zip", craft([]), "must have one"),
]  # fmt: skip


@cases("data why", *WHEELS)
def test_wheels_that_are_refused(data: bytes, why: str, tmp_path: Path) -> None:
    said = refusal(data, tmp_path)
    assert re.search(why, said), said


def test_what_is_built_of_those_pieces_is_accepted_when_nothing_is_wrong(tmp_path: Path) -> None:
    descriptor = Piece(
        name="x",
        content=b"x" * 9,
        said={"flags": 8},
        said_before={"flags": 8, "crc": 0, "size": 0, "packed": 0},
        behind=b"PK\x07\x08"
        + struct.pack("<III", zlib.crc32(b"x" * 9), len(deflated(b"x" * 9)), 9),
    )
    large = Piece(
        name="y",
        content=b"y" * 9,
        said={"size": 0xFFFFFFFF, "packed": 0xFFFFFFFF},
        extra=wide(9, len(deflated(b"y" * 9))),
        said_before={"size": 0xFFFFFFFF, "packed": 0xFFFFFFFF},
        extra_before=wide(9, len(deflated(b"y" * 9))),
    )
    renamed = Piece(name="z", extra=struct.pack("<HHBI", 0x7075, 6, 1, 0) + b"z")
    directory = Piece(name="example/", attributes=0o40755 << 16)
    data = craft(
        [directory, *pieces_of(GOOD, descriptor, large, renamed)], comment=b"PK\x05\x06" * 9
    )
    files = files_of(collect(stream_of(data, tmp_path))[0])
    assert len(files) == 4 + 3 + 1


@pytest.mark.parametrize("known", [False, True])
def test_headers_are_compared_on_the_known_way_too(tmp_path: Path, *, known: bool) -> None:
    good = craft(pieces_of(GOOD))
    _, unpacked = collect(stream_of(good, tmp_path))
    bad = craft([Piece(name="example/it.py", content=GOOD.content, said_before={"size": 1}),
                 *pieces_of(GOOD)[1:]])  # fmt: skip
    with pytest.raises(WheelRefusedError, match="other sizes"):
        collect(stream_of(bad, tmp_path, unpacked if known else None))


def test_a_bomb_is_stopped_where_it_says_too_little(tmp_path: Path) -> None:
    """Thirty megabytes that say they are 40 000 bytes are never held."""
    bomb = deflated(bytes(30 << 20))
    piece = Piece(name="x", content=bytes(40_000), data=bomb)
    pieces = pieces_of(piece)
    with pytest.raises(WheelRefusedError, match="more than the 40000 bytes"):
        collect(stream_of(craft(pieces), tmp_path))


@cases(
    "make why",
    ("a directory", lambda path: path.mkdir(), "not a regular file"),
    ("a pipe", os.mkfifo, "not a regular file"),
    ("nothing", lambda _: None, "No such file"),
    ("a link to itself", lambda path: path.symlink_to(path), "cannot be read"),
)
def test_what_is_no_file_is_refused(
    make: Callable[[Path], object], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "it.whl"
    make(path)
    source = wheel_layer([locked()], **PLACE, exclude_unneeded=False, fetch=lambda _: path)  # type: ignore[arg-type]
    with pytest.raises(WheelRefusedError, match=why):
        collect(source.stream(None))


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(4_000_000)
    stream = stream_of(craft(pieces_of(Piece(name="noise", content=noise))), tmp_path)
    next(stream)
    os.truncate(tmp_path / "it.whl", 2_000_000)
    with pytest.raises(WheelRefusedError, match="too early"):
        list(stream)


def test_too_many_members_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    pieces = [Piece(name=f"{number}") for number in range(60_000)]
    small = craft(pieces)
    path = tmp_path / "it.whl"
    path.write_bytes(small)
    with WheelFile(path) as wheel:
        assert len(wheel.members) == 60_000
    end = small.rfind(b"PK\x05\x06")
    counts = struct.pack("<HH", 60_000, 60_000)
    path.write_bytes(small[:end] + small[end:].replace(counts, b"\xff" * 4))
    with pytest.raises(WheelRefusedError, match="not a readable wheel"):
        WheelFile(path)
