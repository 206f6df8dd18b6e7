"""Libraries: what counts in them, and files that are none."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.inspect.library import read_library
from images.inspect.model import LibraryCode
from images.wheels.errors import WheelUnreadableError
from tests.kit.cases import cases
from tests.kit.wheel_maker import AARCH64, entry, fatbin, library, recorded, targets

NAME = "pkg/lib.so"


def cut(data: bytes, step: int) -> Iterator[bytes]:
    return (data[at : at + step] for at in range(0, len(data), step))


def read(data: bytes, step: int = 1 << 20) -> LibraryCode:
    return read_library(NAME, len(data), cut(data, step))[0]


@pytest.mark.parametrize("step", [1, 100, 1 << 20])
def test_a_library_that_gcc_linked_is_counted(step: int) -> None:
    assert read(recorded("linked.so"), step) == LibraryCode(
        name=NAME, fatbins=2, sass={"sm_80": 2, "sm_120": 2}, ptx={"compute_120": 1}
    )


def test_linked_code_counts_and_the_code_that_was_linked_does_not() -> None:
    assert read(recorded("relocatable.so")) == LibraryCode(
        name=NAME, fatbins=1, sass={"sm_80": 1}, ptx={}
    )


@cases(
    "sections expected",
    ("code to be linked where there is no other",
     {"__nv_relfatbin": targets("sm_80", "compute_80")},
     LibraryCode(name=NAME, fatbins=1, sass={"sm_80": 1}, ptx={"compute_80": 1})),
    ("what is data to the loader is not counted in",
     {".nv_fatbin": targets("sm_80") * 3, ".lrodata": targets("sm_100") * 2},
     LibraryCode(name=NAME, fatbins=3, sass={"sm_80": 3}, outside=2)),
    ("unless it is all there is", {".data": targets("sm_80") * 2},
     LibraryCode(name=NAME, fatbins=2, sass={"sm_80": 2})),
    ("code that looks for the magic", {".text": b"\xb8\x50\xed\x55\xba" * 40},
     LibraryCode(name=NAME, fatbins=0)),
    ("no device code", {".text": b"x"}, LibraryCode(name=NAME, fatbins=0)),
    ("targets in the order of their numbers",
     {".nv_fatbin": targets("sm_120", "sm_80", "sm_90a", "sm_100f")},
     LibraryCode(name=NAME, fatbins=1, sass={"sm_80": 1, "sm_90a": 1, "sm_100f": 1, "sm_120": 1})),
)  # fmt: skip
def test_what_counts_is_what_the_loader_sees(
    sections: dict[str, bytes], expected: LibraryCode
) -> None:
    found = read(library(sections))
    assert found == expected
    assert list(found.sass) == list(expected.sass)


def test_without_a_section_table_everything_counts() -> None:
    data = library({".nv_fatbin": targets("sm_80"), ".data": targets("sm_90")}, table=False)
    assert read(data) == LibraryCode(
        name=NAME, fatbins=2, sass={"sm_80": 1, "sm_90": 1}, outside=None
    )


def test_a_section_without_bytes_in_the_file_is_nowhere() -> None:
    """In a file of debug symbols the section is named, and other bytes stand at its place."""
    data = library({".nv_fatbin": fatbin(b"\xff" * 80)}, kind=8)
    assert read(data) == LibraryCode(name=NAME, fatbins=0)


def test_the_machine_is_told() -> None:
    data = library({".nv_fatbin": targets("sm_80")}, machine=AARCH64)
    assert read_library(NAME, len(data), [data])[1] == "aarch64"


@cases(
    "data said",
    ("nothing", b"", "not an ELF library: it begins with nothing"),
    ("the magic alone", b"\x7fELF", "not an ELF library"),
    ("a linker script", b"/* GNU ld script */" * 9, "begins with 2f 2a 20 47"),
    ("32 bit", library({}, bits=1), "32-bit little-endian"),
    ("the other byte order", library({}, order=2), "64-bit big-endian"),
    ("no width", library({}, bits=7), "unknown-width"),
    ("another machine", library({}, machine=21), "machine 21"),
    ("no fatbin there", library({".nv_fatbin": fatbin(b"\xff" * 80)}), "damaged, or newer"),
    ("a newer fatbin", library({"__nv_relfatbin": b"\x50\xed\x55\xba" + b"\2\0" * 40}),
     "damaged, or newer"),
    ("a fatbin whose size lies", library({".nv_fatbin": targets("sm_80", "sm_90")[:-70]}),
     "damaged, or newer"),
)  # fmt: skip
def test_what_cannot_be_read_is_named(data: bytes, said: str) -> None:
    with pytest.raises(WheelUnreadableError, match=said) as caught:
        read(data)
    assert NAME in caught.value.message
    assert caught.value.fix
    assert caught.value.code == "wheel-unreadable"


def survives(data: bytes, step: int) -> None:
    started, message = time.process_time(), ""
    try:
        read(data, step)
    except WheelUnreadableError as error:
        message = error.message
    assert message.isprintable()
    assert time.process_time() - started < 10


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 63), st.integers(0, 255)), max_size=6),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    st.integers(64, 20000),
)
def test_any_damage_to_a_real_library_is_survived(
    head: list[tuple[int, int]], rest: list[tuple[float, int]], step: int
) -> None:
    data = bytearray(recorded("relocatable.so"))
    for at, value in head:
        data[at] = value
    for place, value in rest:
        data[int(place * len(data))] = value
    survives(bytes(data), step)


@given(st.lists(st.binary(min_size=64, max_size=64), max_size=6), st.binary(max_size=500))
def test_any_section_table_is_survived(rows: list[bytes], names: bytes) -> None:
    data = bytearray(library({".nv_fatbin": targets("sm_80")}))
    at = struct.unpack_from("<Q", data, 40)[0]
    struct.pack_into("<HH", data, 60, len(rows), max(0, len(rows) - 1))
    survives(bytes(data[:at]) + b"".join(rows) + names, 1 << 20)


def test_a_large_library_needs_little_memory() -> None:
    """A hundred megabytes in pieces, a tenth of it in one fatbin; the pieces are not counted."""
    piece = bytes(1 << 20)
    large = fatbin(b"".join([targets("sm_80")[16:], entry(2, 90, payload=b"\x01" * (10 << 20))]))
    start = library({".data": b""}, table=False)
    start += b"\0" * (-len(start) % 8)
    size = len(start) + 90 * len(piece) + len(large)

    def pieces() -> Iterator[bytes]:
        yield start
        for _ in range(90):
            yield piece
        yield from cut(large, 1 << 20)

    tracemalloc.start()
    found, _ = read_library(NAME, size, pieces())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.sass == {"sm_80": 1, "sm_90": 1}
    assert peak < 8 << 20
