"""Reads a wheel on this machine, and checks its members against the zip's directory.

pip uses Python's zipfile, which is lenient. Here the header before each member must agree with the
directory, so that there is only one way to read the file.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

from images.layers.errors import WheelRefusedError
from images.wheels.directory import (
    DEFLATED,
    DESCRIBED_BEHIND,
    IN_ZIP_64,
    LOCAL,
    STORED,
    TAIL_BYTES,
    UTF_8,
    Member,
    ZipBrokenError,
    read_directory,
)

WINDOW_BYTES = 1 << 18
"""A member of up to this size is read at once; others in pieces."""
INFLATED_BYTES = 1 << 20

_LEVEL_FLAGS = 0b110  # the compression level
_KNOWN_FLAGS = _LEVEL_FLAGS | DESCRIBED_BEHIND | UTF_8
_MOST_MEMBERS = 100_000
_DESCRIPTORS = tuple(
    struct.Struct(layout) for layout in ("<4sIII", "<III", "<4sIQQ", "<IQQ")
)  # with and without a magic, with sizes of 32 and of 64 bits
_DESCRIPTOR_MAGIC = b"PK\x07\x08"
_FORBIDDEN = {*map(chr, range(0x20)), "\x7f", "\\"}


@final
class WheelFile:
    """A wheel's members by name, without its directories. Close it, or use it in a `with`."""

    def __init__(self, path: Path, *, shown: str | None = None) -> None:
        """Open it; `shown` is its name in errors."""
        self.shown = shown or path.name
        try:
            # without O_NONBLOCK, opening a pipe would wait for a writer
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise self.refused(f"cannot be read: {_reason(error)}") from error
        try:
            self.members = self._read_members()
        except ZipBrokenError as error:
            self.close()
            raise self.refused(f"is not a readable wheel: {error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> WheelFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def refused(self, why: str) -> WheelRefusedError:
        """The error that says what is wrong with this wheel."""
        return WheelRefusedError(self.shown, why)

    def read(self, member: Member, limit: int) -> bytes:
        """Return a small member's content, checked; an error if it is larger than `limit`."""
        if member.size > limit:
            raise self.refused(f"has a {member.name} of {member.size} bytes; {limit} are allowed")
        return b"".join(self.contents(member))

    def starts_with(self, member: Member, start: bytes) -> bool:
        """Whether a member's content begins with `start`; inflates no more than that."""
        inflate = inflater(member)
        found = b""
        try:
            for piece in self.packed(member):
                found += inflate.decompress(piece, len(start)) if inflate else piece
                if len(found) >= len(start):
                    break
        except _inflate_errors() as error:
            raise self.refused(f"has a {member.name} that cannot be inflated") from error
        return found.startswith(start)

    def contents(self, member: Member) -> Iterator[bytes]:
        """Yield a member's content in pieces of at most a MiB, checked at its end."""
        check = MemberCheck(self, member)
        for piece in self.packed(member):
            yield from check.take(piece)
        yield from check.finish()

    def packed(self, member: Member) -> Iterator[bytes]:
        """Yield the bytes of a member as they are in the zip, in pieces."""
        start = self.window(member)
        at = self.data_at(member, start)
        first = start[at : at + member.compressed]
        yield first
        offset, end = member.offset + at + len(first), member.offset + at + member.compressed
        while offset < end:
            piece = self._read_at(offset, min(INFLATED_BYTES, end - offset))
            yield piece
            offset += len(piece)

    def window(self, member: Member) -> bytes:
        """Read a member's header and data from the file, or the beginning of them."""
        return self._read_at(member.offset, min(WINDOW_BYTES, member.boundary - member.offset))

    def data_at(self, member: Member, start: bytes) -> int:
        """The offset of a member's data from its start; checks its header against the directory."""
        if len(start) < LOCAL.size:
            raise self.refused(f"has a {member.name} that is cut off")
        # Some programs read a zip by these headers, others by its directory: where the two differ,
        # another installer would install something else than is checked here.
        magic, _, flags, method, _, _, crc, packed, size, named, extra = LOCAL.unpack_from(start)
        at: int = LOCAL.size + named + extra
        if magic != b"PK\x03\x04":
            raise self.refused(f"has no {member.name} where its directory says")
        name = start[LOCAL.size : LOCAL.size + named]
        said = (name, flags, method)
        if said != (member.raw_name, member.flags, member.method):
            raise self.refused(f"says other things before {member.name} than in its directory")
        end = member.offset + at + member.compressed
        # members that share bytes make a bomb of a small file
        if end > member.boundary:
            raise self.refused(f"has a {member.name} that overlaps what follows it")
        if flags & DESCRIBED_BEHIND:
            if (crc, packed, size) != (0, 0, 0) or end < member.boundary:
                self._compare_behind(member, (crc, packed, size), end)
        elif (crc, packed, size) != (member.crc, member.compressed, member.size):
            self._compare_wide(member, (crc, packed, size), start[LOCAL.size + named : at])
        return at

    def _compare_wide(self, member: Member, said: tuple[int, int, int], extra: bytes) -> None:
        """Compare the sizes in a zip64 field before the member with the directory."""
        crc, packed, size = said
        values = [member.size, member.compressed]
        wide = struct.pack("<HHQQ", 1, 16, *values)
        marked = IN_ZIP_64 in {packed, size}
        same = packed in {IN_ZIP_64, values[1]} and size in {IN_ZIP_64, values[0]}
        if crc != member.crc or not same or (marked and wide not in extra):
            raise self.refused(f"says other sizes before {member.name} than in its directory")

    def _compare_behind(self, member: Member, said: tuple[int, int, int], end: int) -> None:
        """Compare the descriptions before and after a member with the directory's entry."""
        truth = (member.crc, member.compressed, member.size)
        before = all(value in {0, IN_ZIP_64, true} for value, true in zip(said, truth, strict=True))
        behind = self._read_at(end, min(24, member.boundary - end))
        for layout in _DESCRIPTORS:
            if before and len(behind) >= layout.size:
                fields = layout.unpack_from(behind)
                magic = fields[0] == _DESCRIPTOR_MAGIC if len(fields) == 4 else True
                if magic and fields[-3:] == truth:
                    return
        raise self.refused(f"says other sizes behind {member.name} than in its directory")

    def _read_members(self) -> dict[str, Member]:
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise ZipBrokenError("it is not a regular file")
        tail_at = max(0, status.st_size - TAIL_BYTES)
        tail = self._read_at(tail_at, status.st_size - tail_at)
        found: dict[str, Member] = {}
        members = read_directory(tail, tail_at, self._read_at)
        if len(members) > _MOST_MEMBERS:
            raise ZipBrokenError(f"it has {len(members)} members; {_MOST_MEMBERS} are allowed")
        for member in members:
            why = _problem(member)
            if why:
                raise ZipBrokenError(f"{member.name!r} {why}")
            # readers differ in which of the two counts
            if member.name in found:
                raise ZipBrokenError(f"it has two members {member.name}")
            found[member.name] = member
        return {name: member for name, member in found.items() if not name.endswith("/")}

    def _read_at(self, offset: int, length: int) -> bytes:
        """Read a part of the file; an error if the file ends too early."""
        try:
            found = os.pread(self._file, length, offset)
            while len(found) < length:
                more = os.pread(self._file, length - len(found), offset + len(found))
                if not more:
                    raise self.refused(f"ends at byte {offset + len(found)}, too early")
                found += more
        except (OSError, OverflowError) as error:
            raise self.refused(f"cannot be read: {_reason(error)}") from error
        return found


class MemberCheck:
    """Inflates a member piece by piece, and checks its size and checksum."""

    def __init__(self, wheel: WheelFile, member: Member) -> None:
        """Start at the member's first byte."""
        self._wheel, self._member = wheel, member
        self._inflate = inflater(member)
        self._errors = _inflate_errors()
        self._crc32 = _crc32()
        self._crc = self._size = 0

    def take(self, packed: bytes) -> Iterator[bytes]:
        """Yield the content of the next compressed piece."""
        if self._inflate is None:
            yield self._counted(packed)
            return
        while packed:
            if self._inflate.eof:
                raise self._wrong("has something behind its end")
            try:
                # limited: deflate makes up to a thousand bytes of one
                piece = self._inflate.decompress(packed, INFLATED_BYTES)
            except self._errors as error:
                raise self._wrong("cannot be inflated") from error
            packed = self._inflate.unused_data or self._inflate.unconsumed_tail
            if piece:
                yield self._counted(piece)

    def finish(self) -> Iterator[bytes]:
        """Yield the rest, and check size and checksum."""
        while self._inflate is not None and not self._inflate.eof:
            try:
                piece = self._inflate.decompress(b"", INFLATED_BYTES)
            except self._errors as error:
                raise self._wrong("cannot be inflated") from error
            if not piece and not self._inflate.eof:
                raise self._wrong("ends in the middle of its compressed form")
            yield self._counted(piece)
        if self._size != self._member.size:
            raise self._wrong(f"has {self._size} bytes, not the {self._member.size} of its header")
        if self._crc != self._member.crc:
            raise self._wrong("does not have the checksum of its header")

    def _counted(self, piece: bytes) -> bytes:
        self._size += len(piece)
        # not only at the end: the disk would be full before
        if self._size > self._member.size:
            raise self._wrong(f"has more than the {self._member.size} bytes of its header")
        self._crc = self._crc32(piece, self._crc)
        return piece

    def _wrong(self, why: str) -> WheelRefusedError:
        return self._wheel.refused(f"holds a {self._member.name} that {why}")


def inflater(member: Member) -> Any:  # noqa: ANN401  isal's type has no name
    """The decompressor for a member; None if it is stored uncompressed."""
    from isal import isal_zlib

    return isal_zlib.decompressobj(-15) if member.method == DEFLATED else None


def _inflate_errors() -> tuple[type[Exception], ...]:
    from isal import isal_zlib

    error: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # says an instance
    return (error, ValueError)


def _crc32() -> Callable[[bytes, int], int]:
    from isal import isal_zlib

    return isal_zlib.crc32


def _problem(member: Member) -> str:
    """Why a member is unacceptable, from its directory entry alone; empty if it is fine."""
    name = member.name
    if not _FORBIDDEN.isdisjoint(name) or not name.isprintable():
        return "has a name with a backslash or something that cannot be shown"
    parts = name.removesuffix("/").split("/")
    if not name or name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        return "has an absolute name"
    if any(part in {"", ".", ".."} for part in parts):
        return "has a name that leads elsewhere"
    if any(len(part.encode()) > 255 for part in parts) or len(name.encode()) > 4000:
        return "has a longer name than a file system takes"
    if member.renamed:
        return "has two names"
    if member.flags & ~_KNOWN_FLAGS:
        return "is encrypted or patched"
    if member.method not in {STORED, DEFLATED}:
        return f"is packed by method {member.method}; a wheel's are stored or deflated"
    if member.method == STORED and member.size != member.compressed:
        return "is stored, and has two sizes"
    kind = stat.S_IFMT(member.attributes >> 16)
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        return "is a link or a device, and a wheel holds files"
    if name.endswith("/") and member.size:
        return "is a directory with a content"
    if kind == stat.S_IFDIR and not name.endswith("/"):
        return "is a file and a directory"
    return ""


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
