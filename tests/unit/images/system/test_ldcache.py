"""The loader's cache: written and read back, in the order of glibc's search, held to damage."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.system.errors import LoaderCacheError
from images.system.ldcache import (
    FLAGS,
    CacheEntry,
    compare_names,
    read_cache,
    with_libraries,
    write_cache,
)
from tests.kit.cases import cases

X86 = FLAGS["x86_64"]


def entry(path: str, **fields: object) -> CacheEntry:
    given = {"name": path.rpartition("/")[2], "path": path, "flags": X86, **fields}
    return CacheEntry(**given)  # type: ignore[arg-type]


NAMES = st.from_regex(r"lib[a-z0-9._+-]{1,12}\.so(\.[0-9]{1,12}){0,3}", fullmatch=True)
ENTRIES = st.lists(
    st.builds(
        entry,
        st.builds("/lib/{}/{}".format, st.sampled_from("abc"), NAMES),
        flags=st.sampled_from([X86, 0x0303 | 0x0800, 3]),
        osversion=st.integers(0, 1 << 20),
        subdirectory=st.sampled_from(["", "", "x86-64-v2", "x86-64-v3"]),
    ),
    max_size=40,
)


@given(ENTRIES)
def test_what_was_written_is_read(entries: list[CacheEntry]) -> None:
    found = read_cache(write_cache(entries))
    assert found is not None
    assert sorted(found, key=repr) == sorted(entries, key=repr)
    assert write_cache(found) == write_cache(entries)


@given(ENTRIES)
def test_a_binary_search_as_the_loader_s_finds_every_library(entries: list[CacheEntry]) -> None:
    found = read_cache(write_cache(entries))
    assert found is not None
    for wanted in entries:
        left, right, seen = 0, len(found) - 1, False
        while left <= right:
            middle = (left + right) // 2
            order = compare_names(wanted.name, found[middle].name)
            if order == 0:
                seen = True
                break
            left, right = (middle + 1, right) if order < 0 else (left, middle - 1)
        assert seen, wanted


@given(st.lists(NAMES, min_size=2, max_size=12))
def test_comparing_names_goes_one_way(names: list[str]) -> None:
    for one in names:
        for other in names:
            assert (compare_names(one, other) > 0) == (compare_names(other, one) < 0)


@cases(
    "one other sign",
    ("digits are numbers, not letters", "libc.so.10", "libc.so.6", 1),
    ("a zero before a number says nothing", "libc.so.06", "libc.so.6", 0),
    ("a digit comes after any letter", "lib1.so", "liba.so", 1),
    ("letters by their bytes", "liba.so", "libb.so", -1),
    ("a name comes before its continuation", "libc.so", "libc.so.6", -1),
    ("numbers wrap around as C's do", "lib4294967297.so", "lib1.so", 0),
)
def test_names_are_compared_as_the_loader_does(one: str, other: str, sign: int) -> None:
    found = compare_names(one, other)
    assert (found > 0) - (found < 0) == sign


def test_the_most_special_of_equal_names_comes_first() -> None:
    plain = entry("/lib/libz.so.1")
    special = entry(
        "/lib/glibc-hwcaps/x86-64-v3/libz.so.1", subdirectory="x86-64-v3", hwcap=2 << 32
    )
    found = read_cache(write_cache([plain, special]))
    assert found == (special, plain)


def test_an_older_form_before_the_cache_is_skipped_and_dropped() -> None:
    new = write_cache([entry("/lib/libz.so.1")])
    old = b"ld.so-1.7.0\0" + struct.pack("<I", 3) + bytes(36)
    both = old + bytes(-len(old) % 8) + new
    assert read_cache(both) == read_cache(new)
    again = with_libraries(both, [], arch="x86_64", directories=())
    assert again == new


@given(st.data())
def test_damage_gives_entries_or_nothing_and_never_an_exception(data: st.DataObject) -> None:
    cache = bytearray(write_cache([entry(f"/lib/lib{n}.so.{n}") for n in range(5)]))
    cache[46:48] = b"\0\0"
    for _ in range(data.draw(st.integers(1, 6))):
        cache[data.draw(st.integers(0, len(cache) - 1))] = data.draw(st.integers(0, 255))
    found = read_cache(bytes(cache[: data.draw(st.integers(0, len(cache)))]))
    assert found is None or all(one.path is not None for one in found)


@cases(
    "damaged",
    ("an empty file", b""),
    ("the older form alone", b"ld.so-1.7.0\0" + b"\xff" * 4),
    ("one that is cut off", write_cache([entry("/lib/libz.so.1")])[:-3]),
    ("one with endless entries", b"glibc-ld.so.cache1.1" + b"\xff" * 28),
)
def test_a_damaged_cache_is_as_good_as_none(damaged: bytes) -> None:
    assert read_cache(damaged) is None
    made = with_libraries(damaged, ["/n/libn.so.1"], arch="x86_64", directories=("/n",))
    assert made == with_libraries(None, ["/n/libn.so.1"], arch="x86_64", directories=("/n",))


def test_new_libraries_join_the_base_s_in_the_order_of_their_directories() -> None:
    base = write_cache([entry("/usr/lib/libnccl.so.2"), entry("/usr/lib/libz.so.1")])
    new = ["/venv/libnccl.so.2", "/venv/libcublas.so.11", "/venv/libcublas.so.11"]
    first = read_cache(with_libraries(base, new, arch="x86_64", directories=("/venv", "/usr/lib")))
    last = read_cache(with_libraries(base, new, arch="x86_64", directories=("/usr/lib",)))
    assert first is not None
    assert last is not None
    assert [one.path for one in first if one.name == "libnccl.so.2"] == [
        "/venv/libnccl.so.2",
        "/usr/lib/libnccl.so.2",
    ]
    assert [one.path for one in last if one.name == "libnccl.so.2"] == [
        "/usr/lib/libnccl.so.2",
        "/venv/libnccl.so.2",
    ]
    assert len(first) == 4
    assert all(compare_names(a.name, b.name) >= 0 for a, b in pairwise(first))


def test_libraries_are_marked_for_their_machine() -> None:
    found = read_cache(with_libraries(None, ["/n/liba.so"], arch="aarch64", directories=()))
    assert found is not None
    assert found[0].flags == 0x0A03


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(LoaderCacheError) as caught:
        with_libraries(None, [], arch="riscv64", directories=())
    assert "riscv64" in caught.value.message
    assert "--builder docker" in caught.value.fix


def test_a_cache_of_names_without_an_end_is_none() -> None:
    """Ten thousand entries that all begin in one long text would take gigabytes."""
    long = CacheEntry(name="x" * 5000, path="/lib/x", flags=FLAGS["x86_64"])
    assert read_cache(write_cache([long])) is None
    fits = CacheEntry(name="x" * 4000, path="/lib/x", flags=FLAGS["x86_64"])
    assert read_cache(write_cache([fits])) == (fits,)
