"""The symbols that are read from a file, the loader's rules for versions, and files that lie."""

from __future__ import annotations

import struct
import time

import pytest

from images.inspect.dynamic import DynamicReader, ElfFile
from images.inspect.symbols import Symbols, Wanted
from tests.kit.cases import cases
from tests.kit.elf_maker import elf

SYMTAB, STRSZ, VERSYM, RELA, RELASZ, RELACOUNT = 6, 10, 0x6FFFFFF0, 7, 8, 0x6FFFFFF9
HASH, GNU_HASH = 4, 0x6FFFFEF5


def read(data: bytes) -> ElfFile:
    reader = DynamicReader(len(data))
    reader.feed(data)
    found = reader.finish()
    assert found is not None
    return found


def symbols(data: bytes) -> Symbols:
    found = read(data).symbols
    assert found is not None
    return found


def want(text: str) -> Wanted:
    name, at, version = text.partition("@")
    return Wanted(name.encode(), version.encode() if at else None, lazy=False)


@pytest.mark.parametrize("sysv_hash", [False, True])
def test_relocations_say_what_is_looked_up(
    sysv_hash: bool,  # noqa: FBT001  pytest gives it by name
) -> None:
    found = symbols(
        elf(
            versions={"libc.so.6": ["GLIBC_2.34"]},
            wants=["data", "of_libc@GLIBC_2.34", ".own"],
            calls=["call"],
            weak_wants=["weak"],
            unused=["unused"],
            defines=["defined"],
            sysv_hash=sysv_hash,
        )
    )
    assert found.wanted == (
        Wanted(b"data", None, lazy=False),
        Wanted(b"of_libc", b"GLIBC_2.34", lazy=False),
        Wanted(b"call", None, lazy=True),
    )
    assert found.defines(want("defined"))


def test_calls_are_looked_up_at_once_in_a_file_that_binds_now() -> None:
    assert not symbols(elf(calls=["call"], binds_now=True)).wanted[0].lazy


def test_a_file_without_a_symbol_table_has_no_symbols() -> None:
    assert symbols(elf(soname="libx.so.1")) == Symbols()


@cases(
    "provides defined wanted expected",
    ("neither has a version", [], "f", "f", True),
    ("another name", [], "f", "g", False),
    ("a definition only for the file itself", [], ".f", "f", False),
    ("a library without versions serves all", [], "f", "f@V_1", True),
    ("the same version", ["l", "V_1"], "f@@V_1", "f@V_1", True),
    ("the same version, hidden", ["l", "V_1"], "f@V_1", "f@V_1", True),
    ("another version", ["l", "V_1", "V_2"], "f@@V_1", "f@V_2", False),
    ("any version: the default", ["l", "V_1", "V_2"], "f@@V_2", "f", True),
    ("any version: not a hidden one", ["l", "V_1", "V_2"], "f@V_2", "f", False),
    ("the first version is for old programs", ["l", "V_1"], "f@V_1", "f", True),
    ("a definition without a version", ["l", "V_1"], "f", "f@V_1", True),
)
@pytest.mark.parametrize("more", [[], ["a", "b"], ["a@@V_1", "b@@V_1"]])
def test_the_loaders_rules_for_versions(
    provides: list[str],
    defined: str,
    wanted: str,
    expected: bool,  # noqa: FBT001  pytest gives it by name
    more: list[str],
) -> None:
    others = [one for one in more if provides or "@" not in one]
    found = symbols(elf(provides=provides, defines=[defined, *others]))
    assert found.defines(want(wanted)) is expected
    assert bool(found.without([want(wanted)])) is not expected
    assert not expected or not (found.exported | found.others).isdisjoint(want(wanted).keys)


def place(data: bytes, tag: int) -> int:
    """The offset of the value of a tag of its dynamic part."""
    at = next(
        struct.unpack_from("<Q", data, header + 8)[0]
        for header in range(64, 64 + 3 * 56, 56)
        if struct.unpack_from("<I", data, header)[0] == 2
    )
    while struct.unpack_from("<q", data, at)[0] != tag:
        at += 16
    return int(at) + 8


def with_tag(data: bytes, tag: int, value: int) -> bytes:
    at = place(data, tag)
    return data[:at] + struct.pack("<Q", value) + data[at + 8 :]


def with_table(data: bytes, tag: int, content: bytes, offset: int = 0) -> bytes:
    """The file with other content in the table to which a tag points."""
    at = struct.unpack_from("<Q", data, place(data, tag))[0] + offset
    return data[:at] + content + data[at + len(content) :]


FULL = elf(soname="libx.so.1", provides=["libx.so.1", "V_1"], wants=["a"], defines=["b", "c@@V_1"])
LAST = elf(defines=["b"], behind=True)  # nothing but zeros is behind its hash table
SYSV = elf(wants=["a"], defines=["b"], sysv_hash=True)


@cases(
    "unreadable",
    ("no symbols where they should be", with_tag(FULL, SYMTAB, 1 << 40)),
    ("version numbers beyond the end", with_tag(FULL, VERSYM, len(FULL) - 2)),
    ("relocations at no address", with_tag(FULL, RELA, 1 << 63)),
    ("more relocations than the file has", with_tag(FULL, RELASZ, 24 << 10)),
    ("a symbol beyond the table", with_table(FULL, RELA, b"\xff\xff", 12)),
    ("a name beyond the names", with_table(FULL, SYMTAB, b"\xff\xff\xff", 24)),
    ("buckets beyond the end", with_table(FULL, GNU_HASH, b"\0\1\0\0")),
    ("a chain without an end", with_table(LAST, GNU_HASH, bytes(4), 28)),
    ("more hashes than symbols", with_table(SYSV, HASH, b"\0\0\1\0", 4)),
    ("far too many relocations", with_tag(FULL, RELASZ, 24 << 40)),
    ("far too many names", with_tag(FULL, STRSZ, 1 << 40)),
    ("far too many buckets", with_table(FULL, GNU_HASH, b"\xff" * 4)),
    ("far too many symbols", with_table(FULL, GNU_HASH, b"\xff" * 4, 24)),
    ("a symbol far beyond the table", with_table(FULL, RELA, b"\xff" * 4, 12)),
    ("far too many hashes", with_table(SYSV, HASH, b"\xff" * 4, 4)),
)
def test_damaged_tables_are_not_read_and_the_rest_of_the_file_is(unreadable: bytes) -> None:
    found = read(unreadable)
    assert found.symbols is None
    assert found.machine == "x86_64"


def test_relative_relocations_are_skipped() -> None:
    assert symbols(elf(wants=["a", "b"])).wanted
    skipped = with_tag(elf(wants=["a", "b"]), RELACOUNT, 1)
    assert [one.name for one in symbols(skipped).wanted] == [b"b"]


def test_names_that_overlap_cost_no_time() -> None:
    """Every symbol's name is the end of one long name: together they have gigabytes."""
    count = 30_000
    data = elf(defines=["x" * 1_000_000, *["d"] * (count - 1)])
    rows = b"".join(struct.pack("<IBBHQQ", 1 + number, 0x12, 0, 7, 1, 0) for number in range(count))
    began = time.process_time()
    assert read(with_table(data, SYMTAB, rows, 24)).symbols is None
    assert time.process_time() - began < 5
