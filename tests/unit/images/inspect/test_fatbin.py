"""Fatbins: those that nvcc made, those that are broken, and bytes that are none."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.inspect import fatbin as module
from images.inspect.fatbin import MAGIC, Census, DamagedFatbin, FatbinScanner
from tests.kit.cases import cases
from tests.kit.wheel_maker import DATA, entry, fatbin, recorded, targets

EXPECTED = {
    name: words.split()
    for name, _, words in (
        line.partition(":") for line in (DATA / "expected.txt").read_text("ascii").splitlines()
    )
}


def scanned(data: bytes, *, step: int = 1 << 20) -> tuple[FatbinScanner, Census]:
    scanner = FatbinScanner(len(data))
    for at in range(0, len(data), step):
        scanner.feed(data[at : at + step])
    scanner.finish()
    return scanner, scanner.count(0, len(data))


def listed(census: Census) -> list[str]:
    """One word an image, as cuobjdump lists them: family code without its letter."""
    words = [word.rstrip("f") for word, count in census.sass.items() for _ in range(count)]
    return sorted(words + list(census.ptx.elements()))


@pytest.mark.parametrize("name", EXPECTED)
def test_what_nvcc_made_is_read_as_cuobjdump_lists_it(name: str) -> None:
    assert listed(scanned(recorded(name))[1]) == sorted(EXPECTED[name])


@cases(
    "name sass ptx other",
    ("PTX alone", "ptx-only.fatbin", {}, {"compute_80": 1}, {}),
    ("binary code alone", "sass-only.fatbin", {"sm_120": 1}, {}, {}),
    ("code for one GPU", "accelerated.fatbin", {"sm_90a": 1, "sm_100a": 1, "sm_120a": 1},
     {"compute_90a": 1}, {}),
    ("code for a family, whose letter cuobjdump leaves out", "family.fatbin",
     {"sm_100f": 1, "sm_120f": 1}, {"compute_100f": 1}, {}),
    ("neither", "lto.fatbin", {}, {}, {"LTO-IR": 1}),
)  # fmt: skip
def test_suffixes_and_kinds_are_told_apart(
    name: str, sass: dict[str, int], ptx: dict[str, int], other: dict[str, int]
) -> None:
    _, census = scanned(recorded(name))
    assert (census.fatbins, dict(census.sass), dict(census.ptx), dict(census.other)) == (
        1,
        sass,
        ptx,
        other,
    )


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("step", [1, 7, 64, 1000])
def test_the_size_of_the_pieces_does_not_matter(name: str, step: int) -> None:
    assert scanned(recorded(name), step=step)[1] == scanned(recorded(name))[1]


def test_each_fatbin_counts_once_whatever_it_holds_twice() -> None:
    data = targets("sm_80", "sm_80", "compute_80") + b"\0" * 24 + targets("sm_80", "sm_90")
    scanner, census = scanned(data)
    assert (census.fatbins, dict(census.sass), dict(census.ptx)) == (
        2,
        {"sm_80": 2, "sm_90": 1},
        {"compute_80": 1},
    )
    assert list(scanner.found) == [0, len(data) - len(targets("sm_80", "sm_90"))]


def test_a_part_of_the_file_can_be_counted() -> None:
    first, second = targets("sm_80"), targets("sm_90")
    scanner, _ = scanned(first + second)
    assert dict(scanner.count(len(first), len(first + second)).sass) == {"sm_90": 1}
    assert scanner.count(1, len(first)).fatbins == 0


def test_an_empty_fatbin_holds_nothing_and_counts_for_nothing() -> None:
    assert scanned(fatbin() + targets("sm_80"))[1].fatbins == 1


def test_an_unknown_kind_is_counted_as_what_it_is() -> None:
    _, census = scanned(fatbin(entry(2, 80), entry(64, 80)))
    assert (dict(census.sass), dict(census.other)) == ({"sm_80": 1}, {"kind 64": 1})


@cases(
    "data strays",
    ("the magic in code, not aligned", b"\xb8" * 3 + MAGIC + b"\xb8" * 60, []),
    ("the magic in code, aligned", b"\xb8" * 8 + MAGIC + b"\xb8" * 60, [8]),
    ("a newer version", MAGIC + struct.pack("<HHQ", 2, 16, 80), [0]),
    ("larger than the file", MAGIC + struct.pack("<HHQ", 1, 16, 1 << 60), [0]),
    ("too small", MAGIC + struct.pack("<HHQ", 1, 16, 8) + b"\0" * 8, [0]),
    ("a first entry of another version", fatbin(entry(2, 80, version=1)), [0]),
    ("a first entry for no GPU", fatbin(entry(2, 5)), [0]),
    ("the end of the file", MAGIC + b"\x01", []),
)
def test_what_only_begins_like_a_fatbin_is_none(data: bytes, strays: list[int]) -> None:
    scanner, census = scanned(data)
    assert (census.fatbins, scanner.strays) == (0, strays)


@cases(
    "stray",
    ("no entry", fatbin(b"\xff" * 64)),
    ("larger than the file", MAGIC + struct.pack("<HHQ", 1, 16, 1 << 60)),
    ("nothing but the magic", MAGIC * 6),
)
def test_after_a_stray_the_search_goes_on(stray: bytes) -> None:
    assert scanned(stray + targets("sm_80"))[1].fatbins == 1


@cases(
    "second",
    ("another version", entry(2, 80, version=1)),
    ("for no GPU", entry(1, 5)),
    ("too small for a header", b"\0" * 24),
    ("a vast payload", entry(2, 80)[:8] + b"\xff" * 8 + entry(2, 80)[16:]),
    ("a header of no bytes", entry(2, 80)[:4] + b"\0" * 4 + entry(2, 80)[8:]),
)
def test_a_fatbin_that_breaks_off_is_damage(second: bytes) -> None:
    with pytest.raises(DamagedFatbin) as caught:
        scanned(b"\0" * 16 + fatbin(entry(2, 80), second))
    assert caught.value.at == 16


def test_a_file_that_ends_in_a_fatbin_is_damage() -> None:
    data = targets("sm_80", "sm_90")
    scanner = FatbinScanner(len(data))
    scanner.feed(data[:-20])
    with pytest.raises(DamagedFatbin):
        scanner.finish()


@pytest.mark.parametrize("step", [1, 7, 80, 4096])
def test_the_last_fatbin_of_a_file_is_found_before_its_end_is_marked(step: int) -> None:
    """So what reads only until it has seen enough need not mark the end."""
    data = b"\0" * 16 + targets("sm_80") + targets("sm_90", "compute_90")
    scanner = FatbinScanner(len(data))
    for at in range(0, len(data), step):
        scanner.feed(data[at : at + step])
    assert scanner.count(0, len(data)).sass == {"sm_80": 1, "sm_90": 1}


def test_there_is_an_end_to_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FATBINS", 3)
    with pytest.raises(DamagedFatbin):
        scanned(targets("sm_80") * 4)


def survives(data: bytes, step: int) -> None:
    """Either an answer or the one error, soon."""
    started = time.process_time()
    try:
        _, census = scanned(data, step=step)
    except DamagedFatbin:
        census = Census()
    assert census.fatbins <= len(data) // 80
    assert time.process_time() - started < 10


@given(st.binary(max_size=2000), st.integers(1, 300))
def test_any_bytes_are_survived(data: bytes, step: int) -> None:
    survives(MAGIC + data, step)


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(EXPECTED)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
    st.integers(1, 5000),
)
def test_any_damage_to_a_real_one_is_survived(
    name: str, changes: list[tuple[float, int]], step: int
) -> None:
    data = bytearray(recorded(name))
    for place, value in changes:
        # the headers are what matters, and most of them stand in front
        data[int(place**3 * len(data))] = value
    survives(bytes(data), step)


words = st.sampled_from(["sm_75", "sm_80", "sm_90a", "sm_100f", "compute_80", "compute_90a"])


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.lists(words, min_size=1, max_size=4))),
    st.integers(1, 400),
)
def test_every_fatbin_between_any_bytes_is_found(
    parts: list[tuple[bytes, list[str]]], step: int
) -> None:
    data = b""
    for noise, held in parts:
        data += noise.replace(MAGIC, b"")
        data += b"\0" * (-len(data) % 8) + targets(*held)
    _, census = scanned(data, step=step)
    found = census.sass + census.ptx
    assert census.fatbins == len(parts)
    assert all(found[word] == sum(word in held for _, held in parts) for word in found)
