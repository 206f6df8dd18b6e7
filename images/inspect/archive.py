"""The zip around a wheel: its directory, and its members as streams that are held to it.

Nothing but what is needed is read: the end, the directory, and the members asked for. A member is
inflated in pieces, and its size and checksum must be what the directory says.
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace

from images.inspect.errors import ANEW_FIX, WheelUnreadableError
from images.inspect.source import Source
from images.inspect.texts import printable

_END = struct.Struct("<4sHHHHIIH")
_END_64_LOCATOR = struct.Struct("<4sIQI")
_END_64 = struct.Struct("<4sQHHIIQQQQ")
_ENTRY = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_MOST_TEXT = 0xFFFF  # a comment, a name, an extra field
_TAIL_BYTES = _END.size + _MOST_TEXT + _END_64_LOCATOR.size
_MOST_DIRECTORY_BYTES = 64 << 20
_INFLATED_BYTES = 1 << 20
_STORED, _DEFLATED = 0, 8
_MOST_RATIO = {_STORED: 1, _DEFLATED: 1032}  # deflate's own limit
_ENCRYPTED, _UTF_8 = 1 << 0, 1 << 11
_IN_ZIP_64 = 0xFFFFFFFF


class _Broken(ValueError):  # noqa: N818  never leaves this module
    """What is wrong with the archive, as the rest of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of the archive, as the directory describes it.

    `boundary` is where the next member or the directory begins: no byte of this one lies behind it.
    """

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc: int
    compressed: int
    size: int
    offset: int
    boundary: int


class Archive:
    """A wheel's members, by name."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tail_at = max(0, source.size - _TAIL_BYTES)
        self._tail = b"".join(source.stream(self._tail_at, source.size - self._tail_at))
        try:
            self.members: Mapping[str, Member] = self._read_directory()
        except _Broken as error:
            raise self._unreadable(str(error)) from error

    def read(self, name: str, limit: int) -> bytes:
        """Give a small member whole; a failure where it is larger than `limit` bytes."""
        member = self.members[name]
        if member.size > limit:
            raise self._unreadable(f"{name} has {member.size} bytes; {limit} are allowed")
        return b"".join(self.stream(member))

    def stream(
        self, member: Member, on_compressed: Callable[[int], None] = lambda _: None
    ) -> Iterator[bytes]:
        """Give a member's content in pieces of at most a megabyte.

        `on_compressed` hears how many bytes of the compressed form have gone by.
        """
        try:
            yield from _checked(member, self._raw(member, on_compressed))
        except _Broken as error:
            raise self._unreadable(f"{member.name} {error}") from error

    def _raw(self, member: Member, on_compressed: Callable[[int], None]) -> Iterator[bytes]:
        """Give the compressed form of a member, in pieces."""
        most = _LOCAL.size + len(member.raw_name) + _MOST_TEXT + member.compressed
        length = min(member.boundary - member.offset, most)
        left = member.compressed
        begin: int | None = None
        held = b""
        with contextlib.closing(self._bytes(member.offset, length)) as pieces:
            for received in pieces:
                piece = received
                if begin is None:
                    held += received
                    begin = _data_begins(member, held)
                    if begin is None:
                        continue
                    piece = held[begin:]
                part = piece[:left]
                left -= len(part)
                on_compressed(member.compressed - left)
                if part:
                    yield part
        if begin is None or left:
            raise _Broken("reaches into what comes behind it")

    def _bytes(self, offset: int, length: int) -> Generator[bytes, None, None]:
        """Give a part of the file, of which the end is here already: what is small lies there."""
        before = min(max(0, self._tail_at - offset), length)
        if before:
            with contextlib.closing(self._source.stream(offset, before)) as pieces:
                yield from pieces
        begin = offset + before - self._tail_at
        if length > before:
            yield self._tail[begin : begin + length - before]

    def _read_directory(self) -> dict[str, Member]:
        at, count, size, offset = self._find_end()
        if size > _MOST_DIRECTORY_BYTES or count * _ENTRY.size > size:
            raise _Broken(f"its directory says it has {count} members in {size} bytes")
        if offset + size != at:
            raise _Broken(f"its directory is not at byte {offset}, where it should be")
        members = _parse_entries(b"".join(self._bytes(offset, size)), count)
        members.sort(key=lambda member: member.offset)
        boundaries = [*(member.offset for member in members[1:]), offset]
        for member, boundary in zip(members, boundaries, strict=True):
            if member.offset + _LOCAL.size + member.compressed > boundary:
                raise _Broken(f"{member.name} reaches into what comes behind it")
        return {
            member.name: replace(member, boundary=boundary)
            for member, boundary in zip(members, boundaries, strict=True)
        }

    def _find_end(self) -> tuple[int, int, int, int]:
        """Find (where the directory ends, its entries, its size, where it begins)."""
        found = _last_end(self._tail)
        _, disk, first_disk, here, count, size, offset, _ = _END.unpack_from(self._tail, found)
        at = self._tail_at + found
        locator = found - _END_64_LOCATOR.size
        if locator >= 0 and self._tail.startswith(b"PK\x06\x07", locator):
            _, disk, at, disks = _END_64_LOCATOR.unpack_from(self._tail, locator)
            if at + _END_64.size > self._tail_at + locator or disks > 1:
                raise _Broken("its zip64 directory is not where it says")
            fields_64 = _END_64.unpack(b"".join(self._bytes(at, _END_64.size)))
            magic, _, _, _, disk, first_disk, here, count, size, offset = fields_64
            if magic != b"PK\x06\x06":
                raise _Broken("its zip64 directory is not where it says")
        if disk or first_disk or here != count:
            raise _Broken("it is a part of an archive in several files")
        return at, count, size, offset

    def _unreadable(self, why: str) -> WheelUnreadableError:
        return WheelUnreadableError(
            f"{self._source.shown} is no wheel that can be read: {why}.", fix=ANEW_FIX
        )


def _checked(member: Member, raw: Iterator[bytes]) -> Iterator[bytes]:
    """Give the content, which must have the size and the checksum of the directory."""
    if member.flags & _ENCRYPTED:
        raise _Broken("is encrypted")
    if member.method not in (_STORED, _DEFLATED):
        raise _Broken(f"is packed by method {member.method}; a wheel's are stored or deflated")
    crc = size = 0
    for piece in _inflated(raw) if member.method == _DEFLATED else raw:
        size += len(piece)
        if size > member.size:
            raise _Broken(f"has more than the {member.size} bytes that the directory says")
        crc = zlib.crc32(piece, crc)
        yield piece
    if size < member.size:
        raise _Broken(f"has {size} bytes, not the {member.size} that the directory says")
    if crc != member.crc:
        raise _Broken("does not have the checksum that the directory says")


def _inflated(raw: Iterator[bytes]) -> Iterator[bytes]:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for piece in raw:
            left = piece
            while left and not inflater.eof:
                yield inflater.decompress(left, _INFLATED_BYTES)
                left = inflater.unconsumed_tail
        while not inflater.eof:  # what is inflated already and did not fit into the last piece
            rest = inflater.decompress(b"", _INFLATED_BYTES)
            if not rest:
                raise _Broken("ends in the middle of its compressed form")
            yield rest
    except zlib.error as error:
        raise _Broken(f"cannot be inflated ({error})") from error


def _data_begins(member: Member, start: bytes) -> int | None:
    """Say how far behind the local header's begin the data is; None when more is needed."""
    if len(start) < _LOCAL.size:
        return None
    fields = _LOCAL.unpack_from(start)
    method: int = fields[3]
    name: int = fields[9]
    extra: int = fields[10]
    end = _LOCAL.size + name + extra
    if fields[0] != b"PK\x03\x04":
        raise _Broken("is not where the directory says")
    if len(start) < end:
        return None
    if start[_LOCAL.size : _LOCAL.size + name] != member.raw_name or method != member.method:
        raise _Broken("is another one than the directory says")
    return end


def _last_end(tail: bytes) -> int:
    """Find the end record; its magic may stand in the comment behind it, too."""
    found = len(tail) - _END.size + 1
    while (found := tail.rfind(b"PK\x05\x06", 0, found + 3)) >= 0:
        comment = _END.unpack_from(tail, found)[7]
        if found + _END.size + comment == len(tail):
            return found
    raise _Broken("it has no zip directory at its end; it is no zip file, or cut off")


def _parse_entries(data: bytes, count: int) -> list[Member]:
    members = []
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > len(data):
            raise _Broken("its directory ends too early")
        fields = _ENTRY.unpack_from(data, at)
        if fields[0] != b"PK\x01\x02":
            raise _Broken("its directory is damaged")
        flags, method, crc, packed, size = fields[3], fields[4], *fields[7:10]
        name_bytes, extra_bytes, comment_bytes, offset = *fields[10:13], fields[16]
        at += _ENTRY.size
        raw_name = data[at : at + name_bytes]
        extra = data[at + name_bytes : at + name_bytes + extra_bytes]
        at += name_bytes + extra_bytes + comment_bytes
        if at > len(data):
            raise _Broken("its directory ends too early")
        size, packed, offset = _from_zip_64(extra, size, packed, offset)
        name = printable(raw_name.decode("utf-8" if flags & _UTF_8 else "cp437", "replace"))
        if method in _MOST_RATIO and size > packed * _MOST_RATIO[method]:
            raise _Broken(f"{name} says it has {size} bytes in {packed}, which cannot be")
        members.append(
            Member(
                name=name,
                raw_name=raw_name,
                flags=flags,
                method=method,
                crc=crc,
                compressed=packed,
                size=size,
                offset=offset,
                boundary=0,
            )
        )
    return members


def _from_zip_64(extra: bytes, *values: int) -> tuple[int, ...]:
    """Take those of (size, compressed size, offset) that did not fit from the extra field."""
    at = 0
    wide = b""
    while at + 4 <= len(extra):
        number, length = struct.unpack_from("<HH", extra, at)
        if number == 1:
            wide = extra[at + 4 : at + 4 + length]
            break
        at += 4 + length
    found = []
    for value in values:
        if value == _IN_ZIP_64:
            if len(wide) < 8:
                raise _Broken("its directory lacks a zip64 field")
            found.append(int.from_bytes(wide[:8], "little"))
            wide = wide[8:]
        else:
            found.append(value)
    return tuple(found)
