"""Finds the table of contents in a lazy layer, which anybody may have written.

Nothing of it is trusted: sizes are limited before anything is read or inflated, and every number
must lie within the blob. `rows` reads what it says.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from images.layers.lazy.formats import (
    GZIP_FOOTER_BYTES,
    PODMAN_FOOTER,
    PODMAN_MAGIC,
    SKIPPABLE,
    SKIPPABLE_MAGIC,
    TABLE_KIND,
    TABLE_NAME,
    ZSTD_FOOTER,
    ZSTD_MAGIC,
    FormatName,
    gzip_footer,
)
from images.layers.lazy.rows import TableFile, read_rows, refused
from images.oci.errors import DigestMismatchError
from images.oci.inflate import ANEW_FIX, zstd_library
from images.oci.model import (
    CHUNKED_DIGEST,
    CHUNKED_POSITION,
    PODMAN_DIGEST,
    PODMAN_POSITION,
    TABLE_DIGEST,
    digest_of,
)
from images.oci.tarstream import members

MOST_TABLE_BYTES = 64 << 20
MOST_PACKED_BYTES = 32 << 20
_STARGZ = re.compile(rb"([0-9a-f]{16})STARGZ")
_STARGZ_AT = 16
_ELSEWHERE = b"STARGZEXTERNALTOC"

Reader = Callable[[int, int], bytes]
"""Reads `size` bytes of a blob from `offset` on; both are within the blob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable:
    """A table. `offset` is where it begins in the blob."""

    format: FormatName
    offset: int
    digest: str
    files: Mapping[str, TableFile]


def read_table(read: Reader, size: int, annotations: Mapping[str, str]) -> ReadTable:
    """The table of a blob of `size` bytes, checked against the layer's annotations.

    ImageUnreadableError: it has none, or one that is damaged, too large or contradicts itself;
    DigestMismatchError: another one than the annotations say.
    """
    form, offset, table = _table(read, size, annotations)
    digest = digest_of(table)
    if annotations.get(TABLE_DIGEST, digest) != digest:
        raise DigestMismatchError(
            f"The layer's table of contents has the digest {digest}, where the manifest says "
            f"{annotations[TABLE_DIGEST][:80]}.",
            fix=ANEW_FIX,
        )
    return ReadTable(format=form, offset=offset, digest=digest, files=read_rows(table, offset))


def _table(
    read: Reader, size: int, annotations: Mapping[str, str]
) -> tuple[FormatName, int, bytes]:
    """Its format, where it begins in the blob, and its text."""
    if size > GZIP_FOOTER_BYTES:
        end = read(size - GZIP_FOOTER_BYTES, GZIP_FOOTER_BYTES)
        found = _STARGZ.fullmatch(end[_STARGZ_AT : _STARGZ_AT + 22])
        if found is not None and end == gzip_footer(int(found[1], 16)):
            return _gzip_table(read, size, int(found[1], 16))
        if _ELSEWHERE in end:
            raise refused("it is in another image, which is not read")
    for footer, magic in ((ZSTD_FOOTER, ZSTD_MAGIC), (PODMAN_FOOTER, PODMAN_MAGIC)):
        length = SKIPPABLE.size + footer.size
        if size > length and read(size - len(magic), len(magic)) == magic:
            return _zstd_table(read, size, footer, annotations)
    raise refused("it has no footer")


def _zstd_table(
    read: Reader, size: int, footer: struct.Struct, annotations: Mapping[str, str]
) -> tuple[FormatName, int, bytes]:
    length = SKIPPABLE.size + footer.size
    end = read(size - length, length)
    if end[: SKIPPABLE.size] != SKIPPABLE.pack(SKIPPABLE_MAGIC, footer.size):
        raise refused("its footer is not a frame that is skipped")
    offset, packed_bytes, plain_bytes, kind, _ = footer.unpack(end[SKIPPABLE.size :])
    if kind != TABLE_KIND:
        raise refused(f"it is of the unknown kind {kind}")
    _limit(packed_bytes, plain_bytes)
    if offset < SKIPPABLE.size or offset + packed_bytes + length > size:
        raise refused(f"its footer says it is at {offset}, with {packed_bytes} bytes")
    said = f"{offset}:{packed_bytes}:{plain_bytes}:{kind}"
    if any(annotations.get(key, said) != said for key in (CHUNKED_POSITION, PODMAN_POSITION)):
        raise refused(f"its footer says {said}, and the manifest another position")
    packed = read(offset, packed_bytes)
    found = digest_of(packed)
    if any(annotations.get(key, found) != found for key in (CHUNKED_DIGEST, PODMAN_DIGEST)):
        raise DigestMismatchError(
            "The layer's compressed table of contents has not the digest that the manifest says.",
            fix=ANEW_FIX,
        )
    return "zstd", offset - SKIPPABLE.size, _unpacked(packed, plain_bytes)


def _gzip_table(read: Reader, size: int, offset: int) -> tuple[FormatName, int, bytes]:
    packed_bytes = size - GZIP_FOOTER_BYTES - offset
    if packed_bytes <= 0:
        raise refused(f"its footer says it is at {offset}, and the layer has {size} bytes")
    _limit(packed_bytes, 1)
    most = MOST_TABLE_BYTES + 2048
    try:
        plain = zlib.decompressobj(31).decompress(read(offset, packed_bytes), most)
    except zlib.error as error:
        raise refused(f"it is damaged ({error})") from error
    if len(plain) >= most:
        _limit(packed_bytes, len(plain))
    with io.BytesIO(plain) as file:
        found = members(iter(lambda: file.read(1 << 20), b""), "The layer's table of contents")
        member, text = next(found, (None, None))
        if member is None or text is None or member.name != TABLE_NAME:
            raise refused(f"it does not begin with {TABLE_NAME}")
        return "gzip", offset, text.read(member.size)


def _limit(packed_bytes: int, plain_bytes: int) -> None:
    if packed_bytes > MOST_PACKED_BYTES or plain_bytes > MOST_TABLE_BYTES:
        raise refused(
            f"it has {packed_bytes:,} bytes ({plain_bytes:,} when inflated), and at most "
            f"{MOST_TABLE_BYTES:,} are read"
        )


def _unpacked(packed: bytes, size: int) -> bytes:
    """A frame that has exactly `size` bytes; no more are inflated."""
    zstd = zstd_library()
    frame = zstd.ZstdDecompressor()
    try:
        plain: bytes = frame.decompress(packed, max_length=size + 1)
    except (zstd.ZstdError, EOFError) as error:
        raise refused(f"it is damaged ({error})") from error
    if len(plain) != size or not frame.eof or frame.unused_data:
        raise refused(f"it has not the {size} bytes that its footer says")
    return plain
