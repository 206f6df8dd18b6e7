"""Reads two things from ELF: the machine that a library is for, and where its sections are.

https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

from images.wheels.errors import ANEW_FIX, WheelUnreadableError

HEADER_BYTES = 64
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_MACHINES: dict[int, Literal["x86_64", "aarch64"]] = {62: "x86_64", 183: "aarch64"}
_HOLDS_NOTHING = 8  # SHT_NOBITS: a section with a size and no bytes in the file
_LINUX_FIX = "Give a Linux wheel for x86_64 or aarch64."


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfHeader:
    """`sections` section headers are at `sections_at`; `names` is the index of the names' one."""

    machine: Literal["x86_64", "aarch64"]
    sections_at: int
    sections: int
    names: int

    @property
    def sections_end(self) -> int:
        """The offset after the table of sections."""
        return self.sections_at + self.sections * _SECTION.size


def parse_header(data: bytes, name: str) -> ElfHeader:
    """Parse the first 64 bytes of the library `name`. WheelUnreadableError: it is unsupported."""
    if len(data) < HEADER_BYTES or not data.startswith(b"\x7fELF"):
        raise WheelUnreadableError(
            f"{name} is not an ELF library: it begins with {data[:4].hex(' ') or 'nothing'}.",
            fix=f"{_LINUX_FIX} If it is one: {ANEW_FIX}",
        )
    if data[4] != 2 or data[5] != 1:
        bits = {1: "32-bit", 2: "64-bit"}.get(data[4], "unknown-width")
        order = {1: "little-endian", 2: "big-endian"}.get(data[5], "unknown-order")
        raise WheelUnreadableError(
            f"{name} is a {bits} {order} ELF file; a 64-bit little-endian one was needed.",
            fix=_LINUX_FIX,
        )
    fields = _HEADER.unpack_from(data)
    machine = _MACHINES.get(fields[2])
    if machine is None:
        raise WheelUnreadableError(
            f"{name} is for ELF machine {fields[2]}; x86_64 (62) or aarch64 (183) was needed.",
            fix=_LINUX_FIX,
        )
    at, entry, count, names = fields[6], fields[11], fields[12], fields[13]
    known = at and entry == _SECTION.size and names < count  # the table may be stripped
    return ElfHeader(
        machine=machine,
        sections_at=at if known else 0,
        sections=count if known else 0,
        names=names if known else 0,
    )


def section_ranges(header: ElfHeader, window: bytes, at: int) -> dict[str, tuple[int, int]] | None:
    """Section name -> (first byte, end) in the file, from a `window` that begins at byte `at`.

    None if the table or the names are not in the window.
    """
    table = header.sections_at - at
    if not header.sections or table < 0 or header.sections_end - at > len(window):
        return None
    rows = [
        _SECTION.unpack_from(window, table + number * _SECTION.size)
        for number in range(header.sections)
    ]
    names_at, names_size = rows[header.names][4] - at, rows[header.names][5]
    if names_at < 0 or names_at + names_size > len(window):
        return None
    names = window[names_at : names_at + names_size]
    return {
        names[row[0] :].partition(b"\0")[0].decode("ascii", "replace"): (row[4], row[4] + row[5])
        for row in rows
        if row[1] != _HOLDS_NOTHING
    }
