"""The zip around a wheel: every shape that is allowed, and every way to lie."""

from __future__ import annotations

import io
import os
import re
import struct
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.inspect.archive import WheelArchive
from images.inspect.source import open_file
from images.wheels.errors import WheelUnreadableError
from tests.kit.cases import cases
from tests.kit.wheel_maker import InMemory, wheel

BIG = bytes(range(256)) * 20_000
FILES = {"a.txt": b"first", "b/c.bin": BIG, "empty": b"", "päckchen.txt": b"named"}


def opened(data: bytes) -> WheelArchive:
    return WheelArchive(InMemory(data))


def refusal(data: bytes, name: str = "b/c.bin") -> str:
    """Why a wheel, or a member of it, cannot be read."""
    with pytest.raises(WheelUnreadableError) as caught:
        opened(data).read(name, 1 << 30)
    assert caught.value.message.isprintable()
    return caught.value.message


def zipped(**options: int) -> bytes:
    return wheel(FILES, **options)  # type: ignore[arg-type]


def central(data: bytes, name: bytes) -> int:
    """Where the directory's entry for a member begins."""
    return data.rindex(b"PK\x01\x02", 0, data.rindex(name))


def changed(data: bytes, at: int, layout: str, *values: int) -> bytes:
    copy = bytearray(data)
    struct.pack_into(layout, copy, at, *values)
    return bytes(copy)


def streamed() -> bytes:
    """A zip written to a pipe: sizes stand behind the data, and in the directory."""

    class Pipe(io.RawIOBase):
        data = b""

        def write(self, part: Any) -> int:
            self.data += bytes(part)
            return len(part)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    return pipe.data


@cases(
    "data",
    ("deflated", zipped()),
    ("stored", zipped(compression=zipfile.ZIP_STORED)),
    ("the longest comment", wheel(FILES, comment=b"x" * 0xFFFF)),
    ("a comment full of magic", wheel(FILES, comment=b"PK\x05\x06" * 30)),
    ("zip64", wheel(FILES, wide=True)),
    ("sizes behind the data", streamed()),
)
def test_members_are_read(data: bytes) -> None:
    archive = opened(data)
    assert {name: archive.read(name, 1 << 30) for name in FILES} == FILES


def test_a_member_comes_in_pieces_and_says_how_far_it_is() -> None:
    archive = opened(zipped())
    member = archive.members["b/c.bin"]
    heard: list[int] = []
    pieces = list(archive.stream(member, heard.append))
    assert b"".join(pieces) == BIG
    assert max(map(len, pieces)) <= 1 << 20
    assert heard == sorted(heard)
    assert heard[-1] == member.compressed


def test_only_what_is_needed_is_read() -> None:
    source = InMemory(wheel({"large": BIG, "small": b"1"}, compression=zipfile.ZIP_STORED))
    archive = WheelArchive(source)
    archive.read("small", 10)
    assert source.bytes_read < 70_000
    archive.read("large", 1 << 30)
    assert source.bytes_read > len(BIG)


@cases(
    "data said",
    ("nothing", b"", "no zip directory"),
    ("the magic alone", b"PK\x05\x06", "no zip directory"),
    ("a web page", b"<html>" * 50_000, "no zip directory"),
    ("the last byte is missing", zipped()[:-1], "no zip directory"),
    ("cut in half", zipped()[: len(zipped()) // 2], "no zip directory"),
    ("something in front of it", b"PK" + zipped(), "is not at byte"),
    ("count", changed(zipped(), len(zipped()) - 12, "<H", 60_000), "multi-volume|claims"),
    ("more members than fit", changed(zipped(), len(zipped()) - 14, "<HH", 60_000, 60_000),
     "claims 60000 members"),
    ("one too many", changed(zipped(), len(zipped()) - 14, "<HH", 7, 7), "damaged|early"),
    ("huge", changed(zipped(), len(zipped()) - 10, "<I", 0x7FFFFFFF), "claims"),
    ("a second disk", changed(zipped(), len(zipped()) - 18, "<H", 1), "multi-volume"),
)  # fmt: skip
def test_what_is_no_archive_is_named(data: bytes, said: str) -> None:
    assert re.search(said, refusal(data))


def lies() -> dict[str, tuple[bytes, str]]:
    good = zipped()
    entry = central(good, b"b/c.bin")
    local = good.index(b"PK\x03\x04", 10)
    packed = struct.unpack_from("<I", good, entry + 20)[0]
    other = wheel(FILES | {"b/c.bin": BIG[::-1]})
    same = zipped(compression=zipfile.ZIP_STORED)
    place = central(same, b"b/c.bin")
    return {
        "a larger size": (changed(good, entry + 24, "<I", len(BIG) + 1), "not the"),
        "a smaller size": (changed(good, entry + 24, "<I", len(BIG) - 1), "more than"),
        "a size beyond deflate": (changed(good, entry + 24, "<I", 0xFFFFFFF0), "cannot be"),
        "a stored size": (changed(same, place + 24, "<I", len(BIG) * 2), "cannot be"),
        "another checksum": (changed(good, entry + 16, "<I", 1), "checksum"),
        "a shorter form": (changed(good, entry + 20, "<I", packed - 9), "middle|inflated"),
        "a longer form": (changed(good, entry + 20, "<I", packed + 400), "what follows it"),
        "another place": (
            changed(good, entry + 42, "<I", local + 2),
            "not where|behind|what follows",
        ),
        "the place of another": (
            changed(good, entry + 42, "<I", 0),
            "behind|differs from|what follows",
        ),
        "a place outside": (changed(good, entry + 42, "<I", 0x7FFFFFFF), "what follows it"),
        "encrypted": (changed(good, entry + 8, "<H", 1), "encrypted"),
        "another method": (changed(good, entry + 10, "<H", 12), "method 12"),
        "zip64 without its field": (changed(good, entry + 24, "<I", 0xFFFFFFFF), "zip64"),
        "another name in front": (changed(good, local + 30, "<B", 0x41), "differs from"),
        "an extra field beyond it": (changed(good, local + 28, "<H", 0xFFFF), "what follows it"),
        "no deflate at all": (changed(good, local + 37, "<I", 0xFFFFFFFF), "inflated"),
        "other content": (
            good[: local + 40] + other[local + 40 : local + 90] + good[local + 90 :],
            "inflated|checksum|more than|not the|middle",
        ),
    }


@pytest.mark.parametrize(("data", "said"), lies().values(), ids=lies())
def test_a_directory_that_lies_is_caught(data: bytes, said: str) -> None:
    assert re.search(said, refusal(data))


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    """A hundred members that share one megabyte of nothing."""
    inner = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = inner.compress(bytes(1 << 20)) + inner.flush()
    local = struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 20, 0, 8, 0, 0, 0, len(data), 1 << 20, 1, 0)
    body = local + b"n" + data
    rows = b"".join(
        struct.pack(
            "<4sHHHHHHIIIHHHHHII", b"PK\x01\x02", 20, 20, 0, 8, 0, 0, 0, len(data), 1 << 20, 1,
            0, 0, 0, 0, 0, 0,
        )
        + b"n"
        for _ in range(100)
    )  # fmt: skip
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 100, 100, len(rows), len(body), 0)
    assert "what follows it" in refusal(body + rows + end)


def test_a_small_member_may_not_be_large() -> None:
    with pytest.raises(WheelUnreadableError, match="100 are allowed"):
        opened(zipped()).read("b/c.bin", 100)


def test_names_cannot_write_on_the_terminal() -> None:
    assert next(iter(opened(wheel({"\x1b[2Ja": b""})).members)) == "?[2Ja"


@cases(
    "name",
    ("not there", "missing.whl"),
    ("no name", ""),
    ("a directory", "."),
    ("a zero byte", "a\0b"),
    ("a name that is too long", "x" * 5000),
    ("a pipe, which nobody writes to", "pipe"),
)
def test_what_is_no_file_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WheelUnreadableError, match=r"cannot be read|There is no wheel") as caught:
        open_file(name)
    assert ".whl" in caught.value.fix


def test_a_file_that_shrinks_meanwhile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "it.whl"
    path.write_bytes(zipped())
    source = open_file(str(path))
    archive = WheelArchive(source)
    path.write_bytes(b"")
    archive._tail, archive._tail_at = b"", source.size
    with pytest.raises(WheelUnreadableError, match="it ends at byte"):
        archive.read("a.txt", 100)
    source.close()


def survives(data: bytes) -> None:
    started, message = time.process_time(), ""
    try:
        archive = opened(data)
        for member in archive.members.values():
            for _ in archive.stream(member):
                pass
    except WheelUnreadableError as error:
        message = error.message
    assert message.isprintable()
    assert time.process_time() - started < 10


@given(st.binary(max_size=400))
def test_any_bytes_are_survived(data: bytes) -> None:
    survives(data)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), min_size=1, max_size=6),
    st.booleans(),
)
def test_any_damage_is_survived(changes: list[tuple[int, int]], wide: bool) -> None:  # noqa: FBT001
    small = {"a.txt": b"first", "b/c.bin": BIG[:3000], "d": b""}
    data = bytearray(wheel(small, wide=wide))
    for from_end, value in changes:
        data[-1 - from_end % len(data)] = value
    survives(bytes(data))
