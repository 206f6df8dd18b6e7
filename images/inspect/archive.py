"""The zip of a wheel: its directory, and its members as streams that are checked against it.

Only what is needed is read: the end, the directory, and the requested members. A member is inflated
in pieces, and its size and checksum must match the directory.
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping

from isal import isal_zlib

from images.inspect.source import ByteSource
from images.text.printable import printable
from images.wheels.directory import (
    DEFLATED,
    ENCRYPTED,
    LOCAL,
    MOST_TEXT,
    STORED,
    TAIL_BYTES,
    Member,
    ZipBrokenError,
    data_begins,
    read_directory,
)
from images.wheels.errors import ANEW_FIX, WheelUnreadableError

_INFLATED_BYTES = 1 << 20


class WheelArchive:
    """A wheel's members, by name."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._tail_at = max(0, source.size - TAIL_BYTES)
        self._tail = b"".join(source.stream(self._tail_at, source.size - self._tail_at))
        try:
            self.members: Mapping[str, Member] = {
                printable(member.name): member
                for member in read_directory(
                    self._tail, self._tail_at, lambda at, size: b"".join(self._bytes(at, size))
                )
            }
        except ZipBrokenError as error:
            raise self._unreadable(printable(str(error))) from error

    def read(self, name: str, limit: int) -> bytes:
        """Return a small member; an error if it is larger than `limit` bytes."""
        member = self.members[name]
        if member.size > limit:
            raise self._unreadable(f"{name} has {member.size} bytes; {limit} are allowed")
        return b"".join(self.stream(member))

    def stream(
        self, member: Member, on_compressed: Callable[[int], None] = lambda _: None
    ) -> Iterator[bytes]:
        """Yield a member's content in pieces of at most a MiB.

        `on_compressed` is called with how many compressed bytes have been read.
        """
        try:
            yield from _checked(member, self._raw(member, on_compressed))
        except ZipBrokenError as error:
            raise self._unreadable(f"{printable(member.name)} {error}") from error

    def _raw(self, member: Member, on_compressed: Callable[[int], None]) -> Iterator[bytes]:
        """Yield the compressed data of a member, in pieces."""
        most = LOCAL.size + len(member.raw_name) + MOST_TEXT + member.compressed
        length = min(member.boundary - member.offset, most)
        left = member.compressed
        begin: int | None = None
        held = b""
        with contextlib.closing(self._bytes(member.offset, length)) as pieces:
            for received in pieces:
                piece = received
                if begin is None:
                    held += received
                    begin = data_begins(member, held)
                    if begin is None:
                        continue
                    piece = held[begin:]
                part = piece[:left]
                left -= len(part)
                on_compressed(member.compressed - left)
                if part:
                    yield part
        if begin is None or left:
            raise ZipBrokenError("overlaps what follows it")

    def _bytes(self, offset: int, length: int) -> Generator[bytes, None, None]:
        """Yield a part of the file; its end, where small members are, is in memory already."""
        before = min(max(0, self._tail_at - offset), length)
        if before:
            with contextlib.closing(self._source.stream(offset, before)) as pieces:
                yield from pieces
        begin = offset + before - self._tail_at
        if length > before:
            yield self._tail[begin : begin + length - before]

    def _unreadable(self, why: str) -> WheelUnreadableError:
        return WheelUnreadableError(
            f"{self._source.shown} is not a readable wheel: {why}.", fix=ANEW_FIX
        )


def _checked(member: Member, raw: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content, and check its size and checksum against the directory."""
    if member.flags & ENCRYPTED:
        raise ZipBrokenError("is encrypted")
    if member.method not in (STORED, DEFLATED):
        raise ZipBrokenError(
            f"is packed by method {member.method}; a wheel's are stored or deflated"
        )
    crc = size = 0
    for piece in _inflated(raw) if member.method == DEFLATED else raw:
        size += len(piece)
        if size > member.size:
            raise ZipBrokenError(f"has more than the {member.size} bytes that the directory says")
        crc = isal_zlib.crc32(piece, crc)
        yield piece
    if size < member.size:
        raise ZipBrokenError(f"has {size} bytes, not the {member.size} that the directory says")
    if crc != member.crc:
        raise ZipBrokenError("does not have the checksum that the directory says")


def _inflated(raw: Iterator[bytes]) -> Iterator[bytes]:
    inflater = isal_zlib.decompressobj(-15)
    try:
        for piece in raw:
            left = piece
            while left and not inflater.eof:
                yield inflater.decompress(left, _INFLATED_BYTES)
                left = inflater.unconsumed_tail
        while not inflater.eof:  # inflated data that did not fit into the last piece
            rest = inflater.decompress(b"", _INFLATED_BYTES)
            if not rest:
                raise ZipBrokenError("ends in the middle of its compressed form")
            yield rest
    except (isal_zlib.error, ValueError) as error:  # type: ignore[misc]  # says an instance
        raise ZipBrokenError(f"cannot be inflated ({error})") from error
