"""An ELF file by the addresses to which the loader would map it.

The file is not trusted: counts are limited, and inconsistencies raise `DamagedElf`.
https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.pheader.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from images.inspect.windows import NotKept

Read = Callable[[int, int], bytes]

_DYNAMIC = struct.Struct("<qQ")
_LOAD, _DYNAMIC_PART, _INTERPRETER = 1, 2, 3
_MOST_DYNAMIC_BYTES = 1 << 20
_MOST_NAME_BYTES = 1 << 12
_MOST_TEXT_BYTES = 1 << 16
MOST_TABLE_BYTES = 128 << 20
_MOST_BEFORE_CODE_BYTES = 48 << 20
_STEP_BYTES = 1 << 16
_PAGE_BYTES = 4096


class DamagedElf(ValueError):  # noqa: N818  the caller names the file
    """What is wrong with the file, as the rest of a sentence."""


class Segment(NamedTuple):
    """A program header, in the order of its fields."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    in_file: int
    in_memory: int
    alignment: int


class ElfImage:
    """The file, by the addresses to which the loader would map it."""

    def __init__(self, read: Read, segments: Sequence[Segment]) -> None:
        self._unaided = read
        self._segments = segments
        self._soon: Sequence[tuple[int, int]] = ()

    def tables_end(self) -> int:
        """Where the tables end that linkers put first: with the first mapped segment. If there is
        code in it, they are only its beginning.
        """
        mapped = [one for one in self._segments if one.kind == _LOAD and one.in_file]
        first = min(mapped, key=lambda one: one.offset, default=None)
        if first is None:
            return 0
        length = min(first.in_file, _MOST_BEFORE_CODE_BYTES) if first.flags & 1 else first.in_file
        return first.offset + length

    def expect(self, tables: Mapping[int, int | None], most: int) -> None:
        """Say which tables will be read: address -> size. None: up to `most` bytes, which end at
        the next table at the latest.
        """
        found = []
        for address, size in tables.items():
            try:
                begin, end = self.at(address)
            except DamagedElf:  # reading it will say so
                continue
            next_one = min((one for one in tables if one > address), default=address + most)
            length = min(most, next_one - address) if size is None else size
            if length <= most:
                found.append((begin, min(end, begin + length)))
        self._soon = found

    def _read(self, begin: int, end: int) -> bytes:
        try:
            return self._unaided(begin, end)
        except NotKept:
            raise self._not_kept(begin, end) from None

    def _not_kept(self, begin: int, end: int) -> NotKept:
        return NotKept(begin, end, self._soon)

    def at(self, address: int) -> tuple[int, int]:
        """(offset in the file, end of the segment that is mapped with it).

        The loader maps whole pages: what follows a segment in its last page is mapped as well,
        unless it is cleared for variables (patchelf relies on that).
        """
        mapped = [segment for segment in self._segments if segment.kind == _LOAD]
        for segment in mapped:
            if 0 <= address - segment.address < segment.in_file:
                begin = segment.offset + address - segment.address
                return begin, segment.offset + segment.in_file
        for segment in mapped:
            more = -(segment.address + segment.in_file) % _PAGE_BYTES
            behind = address - segment.address - segment.in_file
            if 0 <= behind < more and segment.in_file == segment.in_memory:
                end = segment.offset + segment.in_file
                return end + behind, end + more
        raise DamagedElf(f"nothing of it is mapped at address {address:#x}")

    def fields(self, form: struct.Struct, address: int) -> tuple[int, ...]:
        """Read a record. If it is not kept, request more: what follows is probably needed next."""
        begin, end = self.at(address)
        try:
            return form.unpack(self._read(begin, begin + form.size))
        except NotKept:
            upto = max(begin + form.size, min(begin + _STEP_BYTES, end))
            raise self._not_kept(begin, upto) from None

    def take(self, address: int, size: int) -> bytes:
        """Read `size` bytes from an address on. They may be in adjacent segments (patchelf makes
        such files).
        """
        parts = []
        while size:
            begin, end = self.at(address)
            length = min(size, end - begin)
            parts.append(self._read(begin, begin + length))
            address += length
            size -= length
        return b"".join(parts)

    def interpreter(self) -> str | None:
        for segment in self._segments:
            if segment.kind == _INTERPRETER:
                if segment.in_file > _MOST_TEXT_BYTES:
                    raise DamagedElf(f"the name of its loader has {segment.in_file} bytes")
                raw = self._read(segment.offset, segment.offset + segment.in_file)
                return decoded(raw.partition(b"\0")[0])
        return None

    def dynamic(self) -> dict[int, list[int]] | None:
        """Read the dynamic part: tag -> its values, in order; None if there is none."""
        segment = next((s for s in self._segments if s.kind == _DYNAMIC_PART), None)
        if segment is None:
            return None
        if segment.in_file > _MOST_DYNAMIC_BYTES:
            raise DamagedElf(f"its dynamic part has {segment.in_file} bytes")
        begin, end = self.at(segment.address)
        end = min(end, begin + segment.in_file)
        raw = self._read(begin, end - (end - begin) % _DYNAMIC.size)
        found: dict[int, list[int]] = {}
        for tag, value in _DYNAMIC.iter_unpack(raw):
            if tag == 0:
                break
            found.setdefault(tag, []).append(value)
        return found

    def texts(self, address: int, size: int) -> Callable[..., str]:
        """Return a function that reads names from the string table at this address."""
        table, _ = self.at(address)

        def text(offset: int, most: int = _MOST_NAME_BYTES) -> str:
            if offset >= size:
                raise DamagedElf(f"a name lies at byte {offset} of {size} bytes of names")
            at, raw = offset, b""
            while b"\0" not in raw and at < size and len(raw) <= most:
                upto = min(at + 256, size)
                try:
                    raw += self._read(table + at, table + upto)
                except NotKept as part:
                    whole = size <= MOST_TABLE_BYTES  # other names are needed soon
                    raise (self._not_kept(table, table + size) if whole else part) from None
                at = upto
            name, end, _ = raw.partition(b"\0")
            if not end:
                raise DamagedElf("a name in it has no end, or is far too long")
            return decoded(name)

        return text


def decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
