"""Reads the directory at a zip's end: its members, their sizes and offsets.

The directory is not trusted: members that overlap, that claim more bytes than deflate can produce
from their data, or that are elsewhere are errors.
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from images.text.printable import printable

LOCAL = struct.Struct("<4sHHHHHIIIHH")
"""The header before a member's data."""
STORED, DEFLATED = 0, 8
ENCRYPTED, DESCRIBED_BEHIND, UTF_8 = 1 << 0, 1 << 3, 1 << 11
"""Bits of a member's flags. DESCRIBED_BEHIND: its sizes and checksum follow its data."""
MOST_TEXT = 0xFFFF  # a comment, a name, an extra field
IN_ZIP_64 = 0xFFFFFFFF

_END = struct.Struct("<4sHHHHIIH")
_END_64_LOCATOR = struct.Struct("<4sIQI")
_END_64 = struct.Struct("<4sQHHIIQQQQ")
_ENTRY = struct.Struct("<4sHHHHHHIIIHHHHHII")
TAIL_BYTES = _END.size + MOST_TEXT + _END_64_LOCATOR.size
"""The bytes at the file's end that are needed to find the directory."""
_MOST_DIRECTORY_BYTES = 64 << 20
_MOST_RATIO = {STORED: 1, DEFLATED: 1032}  # deflate's own limit
_ZIP_64_FIELD, _UNICODE_NAME_FIELD = 0x0001, 0x7075


class ZipBrokenError(ValueError):
    """What is wrong with a zip, as the rest of a sentence. Users never see it as it is; names of
    members in it are made printable.
    """

    def __init__(self, why: str) -> None:
        super().__init__(printable(why))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of the archive, as the directory describes it.

    `attributes` depend on `system` (3: Unix, in the upper half). `renamed`: an extra field gives it
    another name. `boundary` is where the next member or the directory begins: this member's data
    ends before it.
    """

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc: int
    compressed: int
    size: int
    offset: int
    attributes: int = 0
    system: int = 0
    renamed: bool = False
    boundary: int = 0


def read_directory(tail: bytes, tail_at: int, read: Callable[[int, int], bytes]) -> list[Member]:
    """Read the members in the order of their offsets in the file.

    `tail` is the end of the file, from byte `tail_at` on; `read(offset, length)` reads the file.
    ZipBrokenError: it is not a zip file that can be read safely.
    """
    at, count, size, offset = _find_end(tail, tail_at, read)
    if size > _MOST_DIRECTORY_BYTES or count * _ENTRY.size > size:
        raise ZipBrokenError(f"its directory claims {count} members in {size} bytes")
    if offset + size != at:
        raise ZipBrokenError(f"its directory is not at byte {offset}, where it should be")
    members = _parse_entries(read(offset, size), count, end=offset)
    for member in members:
        if member.offset + LOCAL.size + member.compressed > member.boundary:
            raise ZipBrokenError(f"{member.name} overlaps what follows it")
    return members


def data_begins(member: Member, start: bytes) -> int | None:
    """The offset of the data from the start of the local header; None when more bytes are needed.
    ZipBrokenError: this is not the member's header.
    """
    if len(start) < LOCAL.size:
        return None
    fields = LOCAL.unpack_from(start)
    method: int = fields[3]
    name: int = fields[9]
    extra: int = fields[10]
    end = LOCAL.size + name + extra
    if fields[0] != b"PK\x03\x04":
        raise ZipBrokenError("is not where the directory says")
    if len(start) < end:
        return None
    if start[LOCAL.size : LOCAL.size + name] != member.raw_name or method != member.method:
        raise ZipBrokenError("differs from the directory's entry")
    return end


def _find_end(
    tail: bytes, tail_at: int, read: Callable[[int, int], bytes]
) -> tuple[int, int, int, int]:
    """Find (where the directory ends, its entries, its size, where it begins)."""
    found = _last_end(tail)
    _, disk, first_disk, here, count, size, offset, _ = _END.unpack_from(tail, found)
    at = tail_at + found
    locator = found - _END_64_LOCATOR.size
    if locator >= 0 and tail.startswith(b"PK\x06\x07", locator):
        _, disk, at, disks = _END_64_LOCATOR.unpack_from(tail, locator)
        if at + _END_64.size > tail_at + locator or disks > 1:
            raise ZipBrokenError("its zip64 directory is not where it says")
        fields_64 = _END_64.unpack(read(at, _END_64.size))
        magic, _, _, _, disk, first_disk, here, count, size, offset = fields_64
        if magic != b"PK\x06\x06":
            raise ZipBrokenError("its zip64 directory is not where it says")
    if disk or first_disk or here != count:
        raise ZipBrokenError("it is a part of a multi-volume archive")
    return at, count, size, offset


def _last_end(tail: bytes) -> int:
    """Find the end record; the comment after it may contain its magic, too."""
    found = len(tail) - _END.size + 1
    while (found := tail.rfind(b"PK\x05\x06", 0, found + 3)) >= 0:
        comment = _END.unpack_from(tail, found)[7]
        if found + _END.size + comment == len(tail):
            return found
    raise ZipBrokenError(
        "it has no zip directory at its end; it is not a zip file, or it is truncated"
    )


def _parse_entries(data: bytes, count: int, *, end: int) -> list[Member]:
    """Read the entries, and sort them by their members' offsets; the last ends at `end`."""
    entries = []
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > len(data):
            raise ZipBrokenError("its directory ends too early")
        fields = _ENTRY.unpack_from(data, at)
        if fields[0] != b"PK\x01\x02":
            raise ZipBrokenError("its directory is damaged")
        size, packed, offset = fields[9], fields[8], fields[16]
        name_bytes, extra_bytes, comment_bytes = fields[10:13]
        at += _ENTRY.size
        raw_name = data[at : at + name_bytes]
        extra = data[at + name_bytes : at + name_bytes + extra_bytes]
        at += name_bytes + extra_bytes + comment_bytes
        if at > len(data):
            raise ZipBrokenError("its directory ends too early")
        if IN_ZIP_64 in {size, packed, offset}:
            size, packed, offset = _from_zip_64(extra, size, packed, offset)
        entries.append((offset, size, packed, raw_name, extra, fields))
    entries.sort(key=lambda entry: entry[0])
    boundaries = [*(entry[0] for entry in entries[1:]), end]
    return [_member(*entry, boundary) for entry, boundary in zip(entries, boundaries, strict=False)]


def _member(
    offset: int,
    size: int,
    packed: int,
    raw_name: bytes,
    extra: bytes,
    fields: tuple[Any, ...],
    boundary: int,
) -> Member:
    flags, method = fields[3], fields[4]
    name = _decoded(raw_name, flags)
    if method in _MOST_RATIO and size > packed * _MOST_RATIO[method]:
        raise ZipBrokenError(f"{name} says it has {size} bytes in {packed}, which cannot be")
    return Member(
        name=name,
        raw_name=raw_name,
        flags=flags,
        method=method,
        crc=fields[7],
        compressed=packed,
        size=size,
        offset=offset,
        attributes=fields[15],
        system=fields[1] >> 8,
        renamed=bool(extra) and _is_renamed(extra, name),
        boundary=boundary,
    )


def _decoded(raw_name: bytes, flags: int) -> str:
    """Decode a name as zipfile does; invalid UTF-8 becomes lone surrogates."""
    if raw_name.isascii():
        return raw_name.decode("ascii")
    return raw_name.decode("utf-8" if flags & UTF_8 else "cp437", "surrogateescape")


def _is_renamed(extra: bytes, name: str) -> bool:
    """Whether an extra field gives the member another name, which only some readers use."""
    field = _field(extra, _UNICODE_NAME_FIELD)
    return field is not None and field[5:] != name.encode("utf-8", "surrogateescape")


def _field(extra: bytes, wanted: int) -> bytes | None:
    at = 0
    while at + 4 <= len(extra):
        number, length = struct.unpack_from("<HH", extra, at)
        if number == wanted:
            return extra[at + 4 : at + 4 + length]
        at += 4 + length
    return None


def _from_zip_64(extra: bytes, *values: int) -> tuple[int, ...]:
    """Read those of (size, compressed size, offset) that did not fit from the extra field."""
    wide = _field(extra, _ZIP_64_FIELD) or b""
    found = []
    for value in values:
        if value == IN_ZIP_64:
            if len(wide) < 8:
                raise ZipBrokenError("its directory lacks a zip64 field")
            found.append(int.from_bytes(wide[:8], "little"))
            wide = wide[8:]
        else:
            found.append(value)
    return tuple(found)
