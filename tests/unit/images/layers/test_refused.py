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
    pytest.param(Piece(name="../evil.py"), "leads elsewhere", id="a name that climbs"),
    pytest.param(Piece(name="example/../../x"), "leads elsewhere", id="a name that climbs later"),
    pytest.param(Piece(name="example/./x"), "leads elsewhere", id="a name with a dot"),
    pytest.param(Piece(name="example//x"), "leads elsewhere", id="a name with an empty part"),
    pytest.param(Piece(name="/etc/passwd"), "absolute", id="an absolute name"),
    pytest.param(Piece(name="C:/x"), "absolute", id="a drive letter"),
    pytest.param(Piece(name="example\\x"), "backslash", id="a backslash"),
    pytest.param(Piece(name=b"example/x\0.py"), "cannot be shown", id="a zero byte in a name"),
    pytest.param(Piece(name=b"example/x\n.py"), "cannot be shown", id="a new line in a name"),
    pytest.param(
        Piece(name="example/\u202egnp.py"), "cannot be shown", id="a name written backwards"
    ),
    pytest.param(
        Piece(name=b"\xff\xfe", said={"flags": 1 << 11}, said_before={"flags": 1 << 11}),
        "cannot be shown",
        id="a name that is not the UTF-8 it says it is",
    ),
    pytest.param(Piece(name=b""), "absolute|leads", id="no name"),
    pytest.param(Piece(name="example/.wh.x"), "would delete files", id="a whiteout"),
    pytest.param(Piece(name="example/.wh..wh..opq"), "would delete files", id="an opaque whiteout"),
    pytest.param(Piece(name="n" * 256), "longer", id="a name too long for a file system"),
    pytest.param(Piece(name="n/" * 2100 + "n"), "longer", id="a path too long for a system call"),
    pytest.param(
        Piece(name="example/l", content=b"/etc/passwd", attributes=0o120777 << 16),
        "link or a device",
        id="a symbolic link",
    ),
    pytest.param(Piece(name="d", attributes=0o20666 << 16), "link or a device", id="a device"),
    pytest.param(Piece(name="p", attributes=0o10666 << 16), "link or a device", id="a pipe"),
    pytest.param(
        Piece(name="example/d", attributes=0o40755 << 16),
        "a file and a directory",
        id="a file that says it is a directory",
    ),
    pytest.param(
        Piece(name="example/d/", content=b"x"), "with a content", id="a directory with a content"
    ),
    pytest.param(
        Piece(name="x", said={"flags": 1}, said_before={"flags": 1}),
        "encrypted",
        id="an encrypted member",
    ),
    pytest.param(
        Piece(name="x", said={"flags": 1 << 6 | 1}, said_before={"flags": 1 << 6 | 1}),
        "encrypted",
        id="a strongly encrypted member",
    ),
    pytest.param(
        Piece(name="x", said={"flags": 1 << 5}, said_before={"flags": 1 << 5}),
        "encrypted or patched",
        id="patch data",
    ),
    pytest.param(
        Piece(name="x", content=b"x" * 99, method=12, data=b"BZh9"), "method 12", id="bzip2"
    ),
    pytest.param(
        Piece(name="x", content=b"x" * 99, method=93, data=b"(\xb5/\xfd"), "method 93", id="zstd"
    ),
    pytest.param(
        Piece(name="x", content=b"1234", method=0, said={"size": 3}, said_before={"size": 3}),
        "two sizes",
        id="a stored member with two sizes",
    ),
    pytest.param(
        Piece(name="x", content=bytes(4000), said={"size": 4 << 30 - 1}, said_before={}),
        "which cannot be",
        id="a bomb by its directory",
    ),
    pytest.param(
        Piece(name="x", content=b"1" * 500, said={"crc": 1}, said_before={"crc": 1}),
        "checksum",
        id="a wrong checksum",
    ),
    pytest.param(
        Piece(name="x", content=b"1" * 500, said={"size": 499}, said_before={"size": 499}),
        "more than the 499 bytes",
        id="more bytes than it says",
    ),
    pytest.param(
        Piece(name="x", content=b"1" * 500, said={"size": 501}, said_before={"size": 501}),
        "500 bytes, not the 501",
        id="fewer bytes than it says",
    ),
    pytest.param(
        Piece(name="x", content=NOISE, data=deflated(NOISE)[:-9]),
        "middle of its compressed form|cannot be inflated",
        id="a stream that is cut off",
    ),
    pytest.param(
        Piece(name="x", content=NOISE, data=deflated(NOISE) + b"more"),
        "behind its end",
        id="something behind the stream's end",
    ),
    pytest.param(
        Piece(name="x", content=NOISE, data=b"\xff" * 5000), "cannot be inflated", id="no deflate"
    ),
    pytest.param(Piece(name="x", said_before={"crc": 5}), "other sizes", id="two checksums"),
    pytest.param(Piece(name="x", said_before={"size": 5}), "other sizes", id="two sizes"),
    pytest.param(Piece(name="x", said_before={"packed": 5}), "other sizes", id="two packed sizes"),
    pytest.param(Piece(name="x", said_before={"name": b"y"}), "other things", id="two names"),
    pytest.param(Piece(name="x", said_before={"method": 0}), "other things", id="two methods"),
    pytest.param(Piece(name="x", said_before={"flags": 8}), "other things", id="two sets of flags"),
    pytest.param(
        Piece(name="x", extra=struct.pack("<HHBI", 0x7075, 6, 1, 0) + b"y"),
        "two names",
        id="another name in a field",
    ),
    pytest.param(
        Piece(
            name="x",
            content=b"x" * 9,
            said={"size": 0xFFFFFFFF, "packed": 0xFFFFFFFF},
            extra=wide(9, 3)[:10],
        ),
        "zip64",
        id="a zip64 field that is too short",
    ),
    pytest.param(
        Piece(
            name="x",
            content=b"x" * 9,
            said_before={"size": 0xFFFFFFFF, "packed": 0xFFFFFFFF},
            extra_before=wide(8, len(deflated(b"x" * 9))),
        ),
        "other sizes",
        id="zip64 sizes that differ",
    ),
    pytest.param(
        Piece(
            name="x",
            content=b"x" * 9,
            said={"flags": 8},
            said_before={"flags": 8, "crc": 0, "size": 0, "packed": 0},
            behind=b"PK\x07\x08" + struct.pack("<III", 1, 2, 3),
        ),
        "sizes behind",
        id="a descriptor that differs",
    ),
    pytest.param(
        Piece(name="x", said={"offset": 1}),
        "other things|no x where|reaches",
        id="an offset inside",
    ),
    pytest.param(
        Piece(name="x", said={"packed": 1 << 20}), "overlaps what", id="a member into the next"
    ),
]


@pytest.mark.parametrize(("piece", "why"), BAD_MEMBERS)
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
    pytest.param(rows(lambda r: [*r, r[0]]), "twice", id="RECORD has a file twice"),
    pytest.param(rows(lambda r: [*r, "a,b"]), "cannot be read", id="RECORD has a row of two"),
    pytest.param(
        craft(change(pieces_of(GOOD), "/RECORD", content=b"\xff\xff")),
        "cannot be read",
        id="RECORD is not UTF-8",
    ),
    pytest.param(
        craft(change(pieces_of(GOOD), "/RECORD", content=b'"' + b"x" * 200_000)),
        "cannot be read",
        id="RECORD has a field without an end",
    ),
    pytest.param(
        craft(change(pieces_of(GOOD), "/RECORD", content=bytes(17 << 20))),
        "are allowed",
        id="RECORD is huge",
    ),
    *(
        pytest.param(
            craft([p for p in pieces_of(GOOD) if not str(p.name).endswith(f"/{name}")]),
            rf"has no .*/{name}|not there",
            id=f"no {name}",
        )
        for name in ("METADATA", "WHEEL", "RECORD")
    ),
    pytest.param(
        craft([GOOD]), "must have one .dist-info directory; it has none", id="no dist-info"
    ),
    pytest.param(
        craft([*pieces_of(GOOD), Piece(name="other-1.0.dist-info/METADATA")]),
        "must have one .dist-info directory",
        id="two dist-info directories",
    ),
    pytest.param(
        craft([*pieces_of(GOOD), Piece(name="Example-1.0.DIST-INFO/METADATA")]),
        "must have one .dist-info directory",
        id="two spellings of one dist-info directory",
    ),
    pytest.param(craft([*pieces_of(GOOD), GOOD]), "two members example/it.py", id="a name twice"),
    pytest.param(
        craft(pieces_of(GOOD, name="other")), "is locked as example 1.0", id="another package"
    ),
    pytest.param(
        craft(pieces_of(GOOD, version="1.1")), "is locked as example 1.0", id="another version"
    ),
    pytest.param(
        craft(pieces_of(GOOD, metadata="Name: other\nVersion: 1.0\n")),
        "has a METADATA",
        id="METADATA of another package",
    ),
    pytest.param(
        craft(pieces_of(GOOD, metadata="Name: example\nVersion: not one\n")),
        "has a METADATA",
        id="METADATA of no version",
    ),
    pytest.param(
        craft(pieces_of(GOOD, wheel="Wheel-Version: 2.0\n")),
        "wheel format '2.0'",
        id="a later wheel format",
    ),
    pytest.param(
        craft(pieces_of(GOOD, wheel="Tag: py3-none-any\n")), "wheel format ''", id="no wheel format"
    ),
    pytest.param(
        craft(pieces_of(GOOD, wheel="Wheel-Version: " + "1" * 5000 + "\n")),
        "wheel format",
        id="a wheel format without an end",
    ),
    pytest.param(
        craft(pieces_of(Piece(name="example-1.0.data/rootfs/x"))),
        "no place",
        id="an unknown scheme of data",
    ),
    pytest.param(
        craft(pieces_of(Piece(name="other-1.0.data/data/x"))), "no place", id="other data"
    ),
    pytest.param(craft(pieces_of(Piece(name="x.data"))), "no place", id="a file called data"),
    pytest.param(
        craft(pieces_of(Piece(name="example-1.0.data/scripts/python3.11"))),
        "environment's own",
        id="a script that replaces Python",
    ),
    pytest.param(
        craft(pieces_of(Piece(name="example-1.0.data/data/pyvenv.cfg"))),
        "environment's own",
        id="data that replaces pyvenv.cfg",
    ),
    pytest.param(
        craft(pieces_of(GOOD, Piece(name="example-1.0.data/purelib/example/it.py"))),
        "two files as",
        id="one place from two schemes",
    ),
    pytest.param(
        craft(pieces_of(GOOD, Piece(name="example/it.py/x"))),
        "which is a file",
        id="a file that is also a directory",
    ),
    *(
        pytest.param(
            craft(
                pieces_of(
                    GOOD, Piece(name=f"{INFO}/entry_points.txt", content=text.encode("latin"))
                )
            ),
            why,
            id=f"a command that {what}",
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
    pytest.param(b"", "no zip", id="an empty file"),
    pytest.param(b"PK\x05\x06", "no zip", id="a cut-off end"),
    pytest.param(b"<html>not found</html>" * 9, "no zip", id="a page of a web server"),
    pytest.param(craft(pieces_of(GOOD))[:-40], "no zip", id="a truncated download"),
    pytest.param(craft(pieces_of(GOOD))[500:], "not at byte", id="a lost beginning"),
    pytest.param(b"#!/bin/sh\n" + craft(pieces_of(GOOD)), "not at byte", id="a program in front"),
    pytest.param(craft([]), "must have one", id="an empty zip"),
]


@pytest.mark.parametrize(("data", "why"), WHEELS)
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
