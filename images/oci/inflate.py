"""Decompresses a layer to its plain tar: gzip with any number of members, zstd, or plain.

The first bytes decide the format, not the media type: registries and tools mix the types up, and
engines look at the bytes, too. ISA-L inflates several times as fast as zlib. Digests never depend
on a compressor's output here: nothing is compressed.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import IO, Any, cast

from images.oci.errors import ImageUnreadableError

PIECE_BYTES = 1 << 20
ANEW_FIX = "Rebuild the image or pull it again."
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = (b"\x2a\x4d\x18", 0x50)  # a frame with any content: its first byte is 0x5?


class PiecesFile:
    """Pieces as a file that can only be read forward; a read returns less at a piece's end."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = memoryview(b"")

    def readinto(self, target: memoryview) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        size = min(len(target), len(self._left))
        target[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def read(self, size: int = -1) -> bytes:
        if not self._left:
            self._left = memoryview(next(self._pieces, b""))
        most = len(self._left) if size < 0 else size
        taken, self._left = self._left[:most], self._left[most:]
        return bytes(taken)


def compression_of(start: bytes) -> str:
    """The compression, from the first four bytes: "gzip", "zstd" or "" for none."""
    if start.startswith(_GZIP):
        return "gzip"
    skippable = start[1:4] == _ZSTD_SKIPPABLE[0] and start[0] & 0xF0 == _ZSTD_SKIPPABLE[1]
    return "zstd" if start.startswith(_ZSTD) or skippable else ""


def inflate(pieces: Iterable[bytes], shown: str) -> Generator[bytes, None, None]:
    """Yield the decompressed content, in pieces of at most about a megabyte.

    All pieces are read to the end, so that their source can verify a digest. `shown` names them in
    an error.
    """
    source = iter(pieces)
    with contextlib.ExitStack() as stack:
        if isinstance(pieces, Generator):
            stack.enter_context(contextlib.closing(pieces))
        start = b""
        for piece in source:
            start += piece
            if len(start) >= 4:
                break
        whole = itertools.chain([start] if start else [], source)
        open_plain = {"gzip": _gunzip, "zstd": _unzstd}.get(compression_of(start))
        yield from whole if open_plain is None else open_plain(whole, shown)


def _gunzip(pieces: Iterator[bytes], shown: str) -> Generator[bytes, None, None]:
    from isal import igzip, isal_zlib  # few commands read layers, so load it only here

    open_gzip = cast("Callable[..., IO[bytes]]", igzip.IGzipFile)
    damage = (zlib.error, cast("type[Exception]", isal_zlib.error), OSError)
    try:
        with open_gzip(fileobj=PiecesFile(pieces), mode="rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
    except EOFError as error:
        raise ImageUnreadableError(
            f"{shown} ends in the middle of its gzip data.", fix=ANEW_FIX
        ) from error
    except damage as error:  # data, a checksum, a size, a header
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of a disk or network has its own message
        raise ImageUnreadableError(
            f"{shown} is damaged: its gzip data says {error}.", fix=ANEW_FIX
        ) from error


def _unzstd(pieces: Iterator[bytes], shown: str) -> Generator[bytes, None, None]:
    zstd = zstd_library()
    try:
        with zstd.ZstdFile(PiecesFile(pieces)) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
    except (EOFError, zstd.ZstdError) as error:
        raise ImageUnreadableError(
            f"{shown} is damaged: its zstd data says {error}.", fix=ANEW_FIX
        ) from error


def zstd_library() -> Any:  # noqa: ANN401  the type checker knows one of the two
    """Python's module for zstd, or its backport."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return importlib.import_module(name)
