"""What the loader reads of an ELF file: held against pyelftools, and against files that lie."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.inspect.dynamic import MAGIC, DynamicReader, ElfFile, read_dynamic
from images.inspect.segments import DamagedElf
from images.inspect.symbols import Symbols, Wanted, symbol_hash
from images.inspect.windows import NotKept, OutsideFile, Windows
from tests.kit.cases import cases
from tests.kit.elf_maker import AARCH64, elf
from tests.kit.wheel_maker import recorded


def read(data: bytes, *, step: int = 1 << 16, head: int | None = None) -> tuple[ElfFile, int]:
    """What is read, and how often the file had to come."""
    reader = DynamicReader(len(data), head=head)
    for times in range(1, 10):
        for at in range(0, len(data), step):
            reader.feed(data[at : at + step])
        found = reader.finish()
        if found is not None:
            return found, times
    raise AssertionError("it never ends")


FULL: dict[str, Any] = {
    "needed": ["libc.so.6", "libfoo.so.1"],
    "soname": "libbar.so.2",
    "rpath": "$ORIGIN/../lib:/opt/x",
    "versions": {"libc.so.6": ["GLIBC_2.17", "GLIBC_2.3"], "libfoo.so.1": ["FOO_1"]},
    "weak": {"libc.so.6": ["GLIBC_2.99"]},
    "provides": ["libbar.so.2", "BAR_1.0"],
    "wants": ["data", "stat@GLIBC_2.17"],
    "calls": ["call@FOO_1"],
    "weak_wants": ["__gmon_start__"],
    "unused": ["never_looked_up"],
    "defines": ["bar@@BAR_1.0", "plain"],
}
EXPECTED = ElfFile(
    machine="x86_64",
    kind="library",
    soname="libbar.so.2",
    needed=("libc.so.6", "libfoo.so.1"),
    rpath=("$ORIGIN/../lib", "/opt/x"),
    versions={"libc.so.6": ("GLIBC_2.17", "GLIBC_2.3"), "libfoo.so.1": ("FOO_1",)},
    provides=("libbar.so.2", "BAR_1.0"),
    symbols=Symbols(
        wanted=(
            Wanted(b"data", None, lazy=False),
            Wanted(b"stat", b"GLIBC_2.17", lazy=False),
            Wanted(b"call", b"FOO_1", lazy=True),
        ),
        exported=frozenset({symbol_hash(b"plain")}),
        others=frozenset({symbol_hash(b"bar"), symbol_hash(b"bar@BAR_1.0")}),
    ),
)


@pytest.mark.parametrize("step", [1, 7, 1 << 16])
@pytest.mark.parametrize("behind", [False, True])
def test_a_file_is_read_whatever_the_pieces_and_wherever_its_names_lie(
    step: int,
    behind: bool,  # noqa: FBT001  pytest gives it by name
) -> None:
    assert read(elf(**FULL, behind=behind), step=step) == (EXPECTED, 1)


def test_what_lies_behind_the_head_is_kept_as_it_comes() -> None:
    assert read(elf(**FULL, filling=100_000, behind=True), head=1000) == (EXPECTED, 1)


def test_what_has_gone_by_makes_the_file_come_again() -> None:
    # the names lie before the part that tells where they are, and behind what is kept
    data = elf(**FULL, filling=100_000)
    assert read(data, head=200)[0] == EXPECTED
    assert 1 < read(data, head=200)[1] < 5


def test_what_follows_a_segment_in_its_last_page_is_mapped() -> None:
    # patchelf makes such files: the dynamic part is behind the end of the segment
    data = elf(**FULL)
    sizes = struct.pack("<QQ", 200, 200)
    assert read(data[:96] + sizes + data[112:])[0] == EXPECTED
    cleared = struct.pack("<QQ", 200, 5000)
    with pytest.raises(DamagedElf):
        read(data[:96] + cleared + data[112:])


@cases(
    "made told",
    ("another machine of ours", elf(machine=AARCH64), ("aarch64", "library")),
    ("a machine that is not supported", elf(machine=21), (None, "other")),
    ("an object file", elf(kind=1), ("x86_64", "other")),
    ("a program at a fixed place", elf(kind=2), ("x86_64", "program")),
)
def test_kinds_and_machines(made: bytes, told: tuple[str | None, str]) -> None:
    found, _ = read(made)
    assert (found.machine, found.kind) == told


def test_a_program_names_its_loader() -> None:
    found, _ = read(elf(interpreter="/lib64/ld-linux-x86-64.so.2", no_default=True))
    assert found.interpreter == "/lib64/ld-linux-x86-64.so.2"
    assert found.is_program
    assert not found.default_directories


@cases(
    "damaged",
    ("nothing but the magic", b"\x7fELF"),
    ("cut off", elf(**FULL)[:200]),
    ("headers far away", elf(**FULL)[:32] + b"\xff" * 8 + elf(**FULL)[40:]),
    ("65535 headers", elf(**FULL)[:56] + b"\xff\xff" + elf(**FULL)[58:]),
    ("a name of 5000 bytes", elf(soname="x" * 5000)),
    ("5000 needs", elf(needed=["x"] * 5000)),
    ("5000 versions", elf(provides=["x"] * 5000)),
)
def test_what_does_not_hold_is_damaged(damaged: bytes) -> None:
    with pytest.raises(DamagedElf):
        read(damaged)


@settings(max_examples=300)
@given(
    st.sampled_from([elf(**FULL), elf(**FULL, behind=True), recorded("linked.so")]),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=8)), max_size=6),
    st.sampled_from([64, 300, 1 << 20]),
)
def test_no_mutation_brings_anything_but_a_result_or_a_damaged_file(
    made: bytes, changes: list[tuple[int, bytes]], head: int
) -> None:
    data = bytearray(made)
    for at, change in changes:
        place = at % len(data)
        data[place : place + len(change)] = change[: len(data) - place]
    began = time.process_time()
    try:
        found, _ = read(bytes(data), head=head)
    except DamagedElf:
        pass
    else:
        assert len(found.needed) <= 4096
    assert time.process_time() - began < 5


def test_a_library_that_is_all_versions_costs_no_time() -> None:
    data = elf(needed=["x"] * 4000, provides=["y"] * 4000, versions={"x": ["z"] * 4000})
    began = time.process_time()
    read(data)
    assert time.process_time() - began < 5


def test_windows_bound_what_is_kept() -> None:
    windows = Windows(1 << 40)
    with pytest.raises(OutsideFile):
        windows.want(NotKept(1 << 30, (1 << 30) + (1 << 30)))


def begins(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def system_libraries() -> list[Path]:
    """Fifty of this machine's own, spread over what there is."""
    places = [Path("/usr/lib"), Path("/usr/bin")]
    found = sorted(
        path
        for place in places
        for path in (*place.glob("*-linux-gnu/*.so*"), *place.glob("[a-z]*"))
        if path.is_file() and not path.is_symlink() and begins(path) == MAGIC
    )
    return found[:: max(1, len(found) // 50)]


@pytest.mark.parametrize("path", system_libraries(), ids=lambda path: path.name)
def test_the_machines_own_files_read_as_pyelftools_reads_them(path: Path) -> None:
    from elftools.elf.elffile import ELFFile

    def at(begin: int, end: int) -> bytes:
        data = os.pread(file.fileno(), end - begin, begin)
        assert len(data) == end - begin
        return data

    with path.open("rb") as file:
        found, _ = read(path.read_bytes())
        assert replace(found, symbols=None) == read_dynamic(at)
        theirs: Any = ELFFile(file)
        dynamic: Any = theirs.get_section_by_name(".dynamic")
        tags = list(dynamic.iter_tags()) if dynamic else []
        assert found.needed == tuple(t.needed for t in tags if t.entry.d_tag == "DT_NEEDED")
        assert found.soname == next((t.soname for t in tags if t.entry.d_tag == "DT_SONAME"), None)
        asked = theirs.get_section_by_name(".gnu.version_r")
        assert found.versions == {
            library.name: tuple(v.name for v in versions if not v.entry.vna_flags & 2)
            for library, versions in (asked.iter_versions() if asked else ())
        }
        defined = theirs.get_section_by_name(".gnu.version_d")
        versions = (next(names).name for _, names in (defined.iter_versions() if defined else ()))
        assert found.provides == tuple(dict.fromkeys(versions))  # some files name one twice
        assert found.symbols is not None
        table: Any = theirs.get_section_by_name(".dynsym")
        numbers: Any = theirs.get_section_by_name(".gnu.version")
        undefined = set()
        for number, one in enumerate(table.iter_symbols() if table else ()):
            name, binding = one.name.encode(), one.entry.st_info.bind
            if one.entry.st_shndx == "SHN_UNDEF":
                undefined |= {name} if binding == "STB_GLOBAL" else set()
            elif binding != "STB_LOCAL" and one.entry.st_other.visibility == "STV_DEFAULT":
                version = numbers.get_symbol(number).entry.ndx if numbers else 0
                if isinstance(version, str) or not version & 0x8000:  # it is not hidden
                    assert found.symbols.defines(Wanted(name, None, lazy=False)), name
        assert {want.name for want in found.symbols.wanted} <= undefined
