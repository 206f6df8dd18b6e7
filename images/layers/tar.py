"""Writes a layer's tar, reproducibly: without names of users, and with one time for all files.

The headers are POSIX's ustar, with pax records if a name, a link or a size does not fit. This code
writes them itself, for speed: a layer has tens of thousands of them.
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from images.layers import gzip
from images.oci.sources import Stream, Unpacked

MTIME = 315532800
"""The time of every file: 1980, the earliest that a zip can hold, so that a wheel can be built from
installed files."""

BLOCK = 512
END = bytes(2 * BLOCK)
PIECE_BYTES = 1 << 18

Kind = Literal["file", "dir", "symlink", "hardlink"]
_USUAL_MODE: dict[Kind, int] = {"file": 0o644, "dir": 0o755, "symlink": 0o777, "hardlink": 0o644}
_FLAGS: dict[str, bytes] = {
    "file": b"0", "dir": b"5", "symlink": b"2", "hardlink": b"1", "pax": b"x"
}  # fmt: skip
_MAGIC = b"ustar\00000"
_SUM_OF_NONE = 8 * 0x20  # the checksum field itself counts as blanks
_MOST_SIZE = 8 << 30  # does not fit in eleven octal digits
_SEARCH_FROM, _SEARCH_TO = 200, 8 << 20  # file sizes for which searching for repeats pays off


@dataclass(frozen=True, slots=True, kw_only=True)
class TarEntry:
    """A file, a directory or a link; `path` as "opt/venv/bin/python".

    `mode` None: the usual one of its kind. `target` is the target of a symbolic link, or the path
    of a hard link's file. `owner` is (user ID, group ID); `mtime` in seconds since 1970.
    """

    path: str
    kind: Kind = "file"
    mode: int | None = None
    target: str = ""
    content: bytes = b""
    owner: tuple[int, int] = (0, 0)
    mtime: int = MTIME

    @property
    def header(self) -> bytes:
        """The blocks before its content in a tar."""
        return header(
            self.path,
            kind=self.kind,
            mode=_USUAL_MODE[self.kind] if self.mode is None else self.mode,
            size=len(self.content),
            target=self.target,
            owner=self.owner,
            mtime=self.mtime,
        )


def file_layer(entries: Iterable[TarEntry]) -> Stream:
    """Write a layer of entries, which must be in the order of `sort_key`; adds parents."""
    digest, size = hashlib.sha256(), 0
    for plain, packed in _packed(_tar(entries)):
        digest.update(plain)
        size += len(plain)
        yield packed
    return Unpacked(diff_id=f"sha256:{digest.hexdigest()}", size=size)


def sort_key(path: str) -> list[str]:
    """Sort paths so that a directory comes right before its contents."""
    return path.split("/")


def header(
    path: str,
    *,
    kind: Kind,
    mode: int,
    size: int = 0,
    target: str = "",
    owner: tuple[int, int] = (0, 0),
    mtime: int = MTIME,
) -> bytes:
    """The header before a file's content: one block, or three and more with pax records.

    `owner` is (user ID, group ID), each up to 2 million; `mtime` is in seconds since 1970.
    """
    name = path.encode() + (b"/" if kind == "dir" else b"")
    link = target.encode()
    split = _split(name) if name.isascii() else None
    fits = link.isascii() and len(link) <= 100 and size < _MOST_SIZE
    if split is not None and fits:
        return _block(split, kind, mode, size, link, owner, mtime)
    records = [
        pax_record(b"path", name) if split is None else b"",
        b"" if link.isascii() and len(link) <= 100 else pax_record(b"linkpath", link),
        b"" if size < _MOST_SIZE else pax_record(b"size", b"%d" % size),
    ]
    more = b"".join(records)
    short = split or (_ascii(name)[-100:].lstrip(b"/"), b"")
    return b"".join(
        (
            _block(
                (b"PaxHeaders/" + short[0][-80:].strip(b"/"), b""), "pax", 0o644, len(more), b""
            ),
            more,
            padding(len(more)),
            _block(
                short,
                kind,
                mode,
                size if size < _MOST_SIZE else 0,
                _ascii(link)[:100],
                owner,
                mtime,
            ),
        )
    )


def padding(size: int) -> bytes:
    """The zeros after a content of this size."""
    return bytes(-size % BLOCK)


def parents(path: str) -> Iterator[str]:
    """Yield the directories above a path, outermost first."""
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)


def _tar(entries: Iterable[TarEntry]) -> Iterator[tuple[bytes, bool]]:
    """Yield the plain tar in parts, each with whether it is a content to search for repeats."""
    written: set[str] = set()
    last: list[str] = []
    for entry in entries:
        key = sort_key(entry.path)
        if key <= last or not all(key):
            raise ValueError(f"{entry.path} is not in order behind {'/'.join(last)}")
        last = key
        for parent in parents(entry.path):
            if parent not in written:
                written.add(parent)
                yield header(parent, kind="dir", mode=0o755), False
        if entry.kind == "dir":
            written.add(entry.path)
        yield entry.header, False
        if entry.content:
            yield entry.content, True
            yield padding(len(entry.content)), False
    yield END, False


def _packed(parts: Iterable[tuple[bytes, bool]]) -> Generator[tuple[bytes, bytes], None, None]:
    """Yield (plain, compressed) pieces: each content in its own gzip member, the rest in others."""
    held: list[bytes] = []
    for part, is_content in parts:
        if is_content and len(part) >= _SEARCH_FROM:
            if held:
                plain = b"".join(held)
                held.clear()
                yield plain, gzip.pack(plain)
            for at in range(0, len(part), PIECE_BYTES):
                piece = part[at : at + PIECE_BYTES]
                yield piece, gzip.pack(piece, search=len(part) <= _SEARCH_TO)
        else:
            held.append(part)
    plain = b"".join(held)
    yield plain, gzip.pack(plain)


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a name into ustar's name and prefix; None if it does not fit."""
    if len(name) <= 100:
        return name, b""
    # the first slash after which 100 bytes are enough; the prefix has 155
    at = name.find(b"/", len(name) - 101, len(name) - 1)
    if len(name) > 256 or not 0 < at <= 155:
        return None
    return name[at + 1 :], name[:at]


def _block(
    name: tuple[bytes, bytes],
    kind: str,
    mode: int,
    size: int,
    link: bytes,
    owner: tuple[int, int] = (0, 0),
    mtime: int = MTIME,
) -> bytes:
    short, prefix = name
    front = b"%s%07o\0%07o\0%07o\0%011o\0%011o\0" % (
        short.ljust(100, b"\0"), mode, *owner, size, mtime
    )  # fmt: skip
    back = b"%s%s%s%s%s" % (
        _FLAGS[kind], link.ljust(100, b"\0"), _MAGIC, bytes(80), prefix.ljust(167, b"\0")
    )  # fmt: skip
    return b"%s%06o\0 %s" % (front, sum(front) + sum(back) + _SUM_OF_NONE, back)


def pax_record(key: bytes, value: bytes) -> bytes:
    """Make a pax record, which begins with its own length."""
    # the digits of the length count, too, and may make it one longer: hence twice
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _ascii(name: bytes) -> bytes:
    """A name for readers without pax support."""
    return bytes(byte if byte < 128 else 0x5F for byte in name)
