"""Reads a shared library that comes in pieces: its machine, and the device code in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from images.inspect import elf
from images.inspect.fatbin import Census, DamagedFatbin, FatbinEntry, FatbinScanner
from images.inspect.model import LibraryCode
from images.wheels.errors import ANEW_FIX, WheelUnreadableError

LINKED, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"
_SECTIONS = (LINKED, RELOCATABLE)
# The sections' names are close to their table: 300 bytes before it if the file was not changed
# after linking, 900 kB in torch 2.15 for aarch64.
_BEFORE_TABLE_BYTES = 8 << 20
_BEHIND_TABLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatbin:
    """A fatbin of a library: its offset, its entries, and the section that it is in; "": in none of
    those for device code.
    """

    at: int
    entries: tuple[FatbinEntry, ...]
    section: str


class _StreamSlice:
    """The part of a stream between two offsets."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self._end = max(0, begin), end
        self.data = bytearray()

    def feed(self, at: int, piece: bytes) -> None:
        self.data += piece[max(0, self.begin - at) : max(0, self._end - at)]


def read_library(
    name: str, size: int, pieces: Iterable[bytes]
) -> tuple[LibraryCode, Literal["x86_64", "aarch64"]]:
    """Count the fatbins of a library of `size` bytes in one pass, and return its machine.

    The section table is at the end, which a stream reaches last, so fatbins are found by their
    magic; the table then decides which of them count.
    """
    scanner, header, sections = _scan(name, size, pieces, None)
    census, outside = _census(name, size, scanner, sections)
    code = LibraryCode(
        name=name,
        fatbins=census.fatbins,
        sass=_by_number(census.sass),
        ptx=_by_number(census.ptx),
        other=dict(sorted(census.other.items())),
        outside=outside,
    )
    return code, header.machine


def read_fatbins(name: str, size: int, pieces: Iterable[bytes]) -> tuple[Fatbin, ...] | None:
    """List the fatbins of a library of `size` bytes, in one pass; None: it has no section table, so
    which of them the loader uses is not known.
    """
    found: list[tuple[int, tuple[FatbinEntry, ...]]] = []
    scanner, _, sections = _scan(name, size, pieces, lambda at, held: found.append((at, held)))
    if sections is None:
        return None
    _refuse_strays(name, scanner, sections)
    return tuple(
        Fatbin(at=at, entries=held, section=_section_of(at, sections)) for at, held in found
    )


def _section_of(at: int, sections: Mapping[str, tuple[int, int]]) -> str:
    ranges = ((name, sections[name]) for name in _SECTIONS if name in sections)
    return next((name for name, (begin, end) in ranges if begin <= at < end), "")


def _scan(
    name: str,
    size: int,
    pieces: Iterable[bytes],
    on_fatbin: Callable[[int, tuple[FatbinEntry, ...]], None] | None,
) -> tuple[FatbinScanner, elf.ElfHeader, Mapping[str, tuple[int, int]] | None]:
    """Read a library in one pass: its fatbins, its header and, if it has them, its sections."""
    scanner = FatbinScanner(size, on_fatbin)
    header: elf.ElfHeader | None = None
    kept = _StreamSlice(0, 0)
    start = b""
    at = 0
    try:
        for piece in pieces:
            if header is None:
                start += piece
                if len(start) < min(elf.HEADER_BYTES, size):
                    continue
                header = elf.parse_header(start, name)
                kept = _StreamSlice(
                    header.sections_at - _BEFORE_TABLE_BYTES,
                    header.sections_end + _BEHIND_TABLE_BYTES if header.sections else 0,
                )
                whole = start
            else:
                whole = piece
            kept.feed(at, whole)
            scanner.feed(whole)
            at += len(whole)
        if header is None:
            header = elf.parse_header(start, name)
        scanner.finish()
    except DamagedFatbin as error:
        raise _damaged(name, error.at) from error
    return scanner, header, elf.section_ranges(header, bytes(kept.data), kept.begin)


def _refuse_strays(
    name: str, scanner: FatbinScanner, sections: Mapping[str, tuple[int, int]]
) -> None:
    """Refuse a section for device code with something that looks like a fatbin and is none."""
    for begin, end in (sections[section] for section in _SECTIONS if section in sections):
        for stray in scanner.strays:
            if begin <= stray < end:
                raise _damaged(name, stray)


def _census(
    name: str,
    size: int,
    scanner: FatbinScanner,
    sections: Mapping[str, tuple[int, int]] | None,
) -> tuple[Census, int | None]:
    """Count the fatbins that the loader uses, and, if known, how many are elsewhere.

    As cuobjdump does: linked code counts, and relocatable code only if there is no other. Fatbins
    outside both sections are data, which the library passes to the driver itself (torch 2.15 has
    kernels for one GPU each there); they count only if there are no others, as in cuFFT. Without a
    section table all fatbins count.
    """
    everything = scanner.count(0, size)
    if sections is None:
        return everything, None if everything.fatbins else 0
    ranges = [sections[section] for section in _SECTIONS if section in sections]
    _refuse_strays(name, scanner, sections)
    counted = [scanner.count(begin, end) for begin, end in ranges]
    inside = sum(part.fatbins for part in counted)
    census = next((part for part in counted if part.fatbins), everything)
    return census, everything.fatbins - inside if inside else 0


def _by_number(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (len(item[0].rstrip("af")), item[0])))


def _damaged(name: str, at: int) -> WheelUnreadableError:
    return WheelUnreadableError(
        f"{name} holds a fatbin at byte {at} that is damaged, or newer than this program.",
        fix=ANEW_FIX,
    )
