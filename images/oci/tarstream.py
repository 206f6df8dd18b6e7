"""Streams the files of an untrusted layer one after the other, without keeping them.

`tarfile` is made for trusted archives: it silently stops at a damaged header, reads a name of
gigabytes into memory, and keeps every header. An engine would read other files than it. Here a
damaged header is an error, so an inspection sees exactly what an engine unpacks, or nothing. Only
`TarInfo` is used, to parse the fields of one header.

https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html (ustar, pax)
https://www.gnu.org/software/tar/manual/html_node/Standard.html (the long names of GNU tar)
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import tarfile
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import IO, cast

from images.oci.errors import DigestMismatchError, ImageUnreadableError
from images.oci.inflate import ANEW_FIX, PIECE_BYTES, inflate
from images.oci.sources import ImageLayer, Member

XATTR = "SCHILY.xattr."
"""The prefix of an extended attribute's pax record in `TarInfo.pax_headers`."""

_BLOCK = 512
_MOST_EXTENSION_BYTES = 1 << 20  # Go's limit for names and pax records
_MOST_NUMBER = 1 << 62
_ZEROS = bytes(PIECE_BYTES)
_REGULAR = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE})
_WITHOUT_CONTENT = frozenset(
    {
        tarfile.LNKTYPE,
        tarfile.SYMTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.DIRTYPE,
        tarfile.FIFOTYPE,
    }
)
_PAX, _PAX_GLOBAL = tarfile.XHDTYPE, tarfile.XGLTYPE
_LONG_NAMES = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}
_EXTENSIONS = frozenset({_PAX, _PAX_GLOBAL, *_LONG_NAMES})
_DECIMAL = re.compile(r"[0-9]{1,19}")
_SECONDS = re.compile(r"-?[0-9]{1,18}(\.[0-9]*)?")


class _Broken(ValueError):  # noqa: N818  never leaves this module
    """What is wrong with the tar, as the rest of a sentence."""


def layer_members(layer: ImageLayer) -> Generator[Member, None, None]:
    """Yield a layer's members in order: the header, and the content of a regular file.

    A content can be read until the next member is requested. After the last member the whole layer
    has been read and checked against its diffID; stopping earlier skips that check, and so does a
    layer that yields its members without being a tar. Memory stays flat; the caller must limit how
    much it unpacks.
    """
    if layer.members is not None:
        yield from layer.members()
        return
    shown = f"The layer {layer.diff_id[:19]}"
    with contextlib.closing(layer_tar(layer)) as tar:
        yield from members(tar, shown)


def layer_tar(layer: ImageLayer) -> Generator[bytes, None, None]:
    """Yield a layer as a plain tar; DigestMismatchError at the end if it is not its diffID's."""
    digest = hashlib.sha256()
    shown = f"The layer {layer.diff_id[:19]}"
    with contextlib.closing(inflate(layer.stream(), shown)) as pieces:
        for piece in pieces:
            digest.update(piece)
            yield piece
    found = f"sha256:{digest.hexdigest()}"
    if found != layer.diff_id:
        raise DigestMismatchError(
            f"The layer {layer.blob.digest} unpacks to {found}, where the image's configuration"
            f" says {layer.diff_id}.",
            fix=ANEW_FIX,
        )


def members(pieces: Iterable[bytes], shown: str) -> Generator[Member, None, None]:
    """Yield the members of a plain tar that comes in pieces; `shown` begins error messages."""
    tar = _Forward(pieces, shown)
    while (member := tar.next_header()) is not None:
        with _Content(tar, member.size) as content:
            yield member, cast("IO[bytes]", content) if member.isreg() else None
            content.skip()
        tar.skip(-member.size % _BLOCK)
    tar.expect_zeros()


def scan(file: IO[bytes], shown: str) -> Generator[tarfile.TarInfo, None, None]:
    """Yield the members of a tar file; a member's content begins at its `offset_data`."""
    tar = _Seekable(file, shown)
    while (member := tar.next_header()) is not None:
        member.offset_data = file.tell()
        tar.skip(member.size + -member.size % _BLOCK)
        yield member


class _Forward:
    """Pieces as one stream, from which any number of bytes can be read."""

    def __init__(self, pieces: Iterable[bytes], shown: str) -> None:
        self._pieces = iter(pieces)
        self._piece = b""
        self._at = 0
        self._shown = shown

    def next_header(self) -> tarfile.TarInfo | None:
        """Read the next member's headers, of which there may be several; None at the end."""
        try:
            return _next_header(self)
        except _Broken as error:
            raise self._unreadable(str(error)) from error

    def some(self, most: int) -> bytes:
        """Read at least one byte and at most `most`; b"" at the end."""
        while self._at >= len(self._piece):
            following = next(self._pieces, None)
            if following is None:
                return b""
            self._piece, self._at = following, 0
        if self._at == 0 and len(self._piece) <= most:
            self._at = len(self._piece)
            return self._piece
        taken = self._piece[self._at : self._at + most]
        self._at += len(taken)
        return taken

    def more(self, most: int) -> bytes:
        """Read at least one byte and at most `most`; an error at the end."""
        found = self.some(most)
        if not found:
            raise self._unreadable("it ends in the middle of a member")
        return found

    def block(self) -> bytes:
        """Read a block; b"" at the end."""
        found = self.some(_BLOCK)
        return found + self.exactly(_BLOCK - len(found)) if found else b""

    def exactly(self, size: int) -> bytes:
        parts = []
        left = size
        while left:
            parts.append(self.more(left))
            left -= len(parts[-1])
        return b"".join(parts)

    def skip(self, size: int) -> None:
        left = size
        while left:
            left -= len(self.more(left))

    def expect_zeros(self) -> None:
        """Read what follows the end: tar pads with zeros to whole records."""
        while part := self.some(PIECE_BYTES):
            if part != _ZEROS[: len(part)]:
                raise self._unreadable("something follows its end")

    def _unreadable(self, why: str) -> ImageUnreadableError:
        return ImageUnreadableError(f"{self._shown} is not a complete tar: {why}.", fix=ANEW_FIX)


class _Seekable(_Forward):
    """A file, in which content can be skipped by seeking."""

    def __init__(self, file: IO[bytes], shown: str) -> None:
        super().__init__((), shown)
        self._file = file
        self._size = file.seek(0, io.SEEK_END)
        file.seek(0)

    def some(self, most: int) -> bytes:
        return self._file.read(most)

    def skip(self, size: int) -> None:
        if self._file.seek(size, io.SEEK_CUR) > self._size:
            raise self._unreadable("it ends in the middle of a member")


class _Content(io.BufferedIOBase):
    """One member's content as a file."""

    def __init__(self, tar: _Forward, size: int) -> None:
        self._tar = tar
        self._left = size

    def readable(self) -> bool:
        return True

    def read1(self, size: int | None = -1, /) -> bytes:
        if self.closed:
            raise ValueError("the next member was asked for: this one has gone by")
        most = self._left if size is None or size < 0 else min(size, self._left)
        part = self._tar.more(most) if most else b""
        self._left -= len(part)
        return part

    def read(self, size: int | None = -1, /) -> bytes:
        left = self._left if size is None or size < 0 else min(size, self._left)
        first = self.read1(left)
        if len(first) == left:
            return first
        parts = [first]
        left -= len(first)
        while left:
            parts.append(self.read1(left))
            left -= len(parts[-1])
        return b"".join(parts)

    def skip(self) -> None:
        self._tar.skip(self._left)
        self._left = 0


def _next_header(tar: _Forward) -> tarfile.TarInfo | None:
    pax: dict[str, str] | None = None
    long_names: dict[str, str] = {}
    while (block := tar.block()) and block != _ZEROS[:_BLOCK]:
        header = _parse_header(block)
        if header.type not in _EXTENSIONS:
            return _applied(header, pax or {}, long_names)
        if header.size > _MOST_EXTENSION_BYTES:
            raise _Broken(f"an extended header says it has {header.size} bytes")
        content = tar.exactly(header.size)
        tar.skip(-header.size % _BLOCK)
        if header.type in _LONG_NAMES:
            long_names[_LONG_NAMES[header.type]] = _text(content.partition(b"\0")[0])
        elif header.type == _PAX:
            if pax is not None:
                # readers differ: the last one counts, or both
                raise _Broken("a member has two pax headers")
            pax = parse_pax(content)
        # a global one is ignored, as engines do: git writes its commit there
    if pax is not None or long_names:
        raise _Broken("it ends behind an extended header")
    # the end is two blocks of zeros: after one, Python's tarfile stops, and other readers go on
    if block and any(tar.block()):
        raise _Broken("a block of zeros stands between its members")
    return None


def _parse_header(block: bytes) -> tarfile.TarInfo:
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise _Broken(f"a header is damaged ({error})") from error
    if header.size < 0 or header.size > _MOST_NUMBER:
        raise _Broken(f"a header says its member has {header.size} bytes")
    return header


def _applied(
    header: tarfile.TarInfo, records: dict[str, str], long_names: dict[str, str]
) -> tarfile.TarInfo:
    """The member that a header and the extended headers before it describe."""
    if header.type == tarfile.GNUTYPE_SPARSE or any(k.startswith("GNU.sparse.") for k in records):
        raise _Broken(f"{header.name!r} is a sparse file, which layers do not have")
    if header.type not in _REGULAR and header.type not in _WITHOUT_CONTENT:
        raise _Broken(f"{header.name!r} is of the unknown kind {header.type!r}")
    records = {key: value for key, value in records.items() if value}  # an empty one is unset
    header.pax_headers = records
    for field, number in _numbers(records):
        setattr(header, field, number)
    names = {**records, **long_names}
    header.name = names.get("path", header.name)
    header.linkname = names.get("linkpath", header.linkname)
    header.uname = records.get("uname", header.uname)
    header.gname = records.get("gname", header.gname)
    if header.type == tarfile.AREGTYPE and header.name.endswith("/"):
        header.type = tarfile.DIRTYPE  # old tars mark directories this way
    header.name = header.name.rstrip("/")
    if header.type == tarfile.DIRTYPE:
        header.name = header.name or "."  # the root itself, however it is written
    if not header.name or "\0" in header.name + header.linkname:
        raise _Broken("a member has no name that a file can have")
    if header.type in _WITHOUT_CONTENT:
        header.size = 0  # some writers store the size of a directory, or of a link's target
    return header


def _numbers(records: dict[str, str]) -> Iterator[tuple[str, float]]:
    for field, pattern, convert in _NUMBER_FIELDS:
        if field in records:
            text = records[field]
            if not pattern.fullmatch(text) or abs(float(text)) > _MOST_NUMBER:
                raise _Broken(f"a pax header says {field} is {text[:40]!r}")
            yield field, convert(text)


_NUMBER_FIELDS: tuple[tuple[str, re.Pattern[str], Callable[[str], float]], ...] = (
    ("size", _DECIMAL, int),
    ("uid", _DECIMAL, int),
    ("gid", _DECIMAL, int),
    ("mtime", _SECONDS, float),
)


def parse_pax(content: bytes) -> dict[str, str]:
    """Parse the records of a pax header, each "<length> <key>=<value>\\n"."""
    records = {}
    at = 0
    while at < len(content):
        digits, space, _ = content[at : at + 20].partition(b" ")
        if not space or not digits.isdigit():
            raise _Broken("a pax header is damaged")
        end = at + int(digits)
        begin = at + len(digits) + 1
        key, equals, value = content[begin : end - 1].partition(b"=")
        if end > len(content) or end <= begin or content[end - 1] != 0x0A or not (key and equals):
            raise _Broken("a pax header is damaged")
        records[_text(key)] = _text(value)
        at = end
    return records


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
