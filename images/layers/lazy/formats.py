"""The two formats: how a chunk is compressed, and how the table and the footer are written.

The same version of a compressor gives the same bytes, another one may give others: so its version
is part of a layer's key. Of zlib, which some systems replace, it is what it makes of a sample.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from images.layers import gzip, tar
from images.layers.compiling import sample
from images.layers.lazy.table import VERSION
from images.oci.inflate import zstd_library
from images.oci.model import (
    CHUNKED_DIGEST,
    CHUNKED_POSITION,
    LAYER_GZIP,
    LAYER_ZSTD,
    TABLE_DIGEST,
    UNPACKED_BYTES,
    digest_of,
)

FormatName = Literal["zstd", "gzip"]
TABLE_NAME = "stargz.index.json"
ZSTD_MAGIC = bytes.fromhex("476e556c496e5578")
PODMAN_MAGIC = bytes.fromhex("474e556c496e5578")
ZSTD_FOOTER = struct.Struct("<QQQQ8s")
PODMAN_FOOTER = struct.Struct("<QQQQ24x8s")
"""Podman's since 4.4: it has one more frame between table and footer, and its place."""
SKIPPABLE = struct.Struct("<4sI")
SKIPPABLE_MAGIC = bytes.fromhex("502a4d18")
TABLE_KIND = 1
GZIP_FOOTER_BYTES = 51
_LEVEL = 1
_RAW = -15  # of zlib's window: without a header


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What follows the last file: `plain` of the tar, `packed` of the blob, and the annotations of
    the layer's descriptor.
    """

    plain: bytes
    packed: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)


class Format(Protocol):
    """How a lazy layer is written."""

    name: ClassVar[FormatName]
    media_type: ClassVar[str]

    @property
    def version(self) -> str:
        """Equal versions give equal bytes."""

    def pack(self, content: bytes) -> bytes:
        """Compress some bytes so that they can be read without others."""

    def end(self, offset: int, rows: Sequence[Mapping[str, Any]], size: int) -> End:
        """The end of a blob that has `offset` bytes, and of a tar that has `size`."""


class ZstdChunked:
    """zstd:chunked. The table and the footer are frames that other readers skip.

    The annotations are those of stargz-snapshotter and of Podman 4.3. Later Podman has a name of
    its own (io.github.containers.zstd-chunked), and refuses a layer with that and TABLE_DIGEST,
    without which stargz-snapshotter mounts nothing: https://github.com/containers/storage/pull/1778
    """

    name: ClassVar[FormatName] = "zstd"
    media_type: ClassVar[str] = LAYER_ZSTD

    @property
    def version(self) -> str:
        return f"zstd {zstd_library().zstd_version} level {_LEVEL}"

    def pack(self, content: bytes) -> bytes:
        zstd = zstd_library()
        kinds = zstd.CompressionParameter
        options = {kinds.compression_level: _LEVEL, kinds.checksum_flag: 1}
        packed: bytes = zstd.compress(content, options=options)
        return packed

    def end(self, offset: int, rows: Sequence[Mapping[str, Any]], size: int) -> End:
        del size
        last = self.pack(tar.END)
        table = write_table(rows)
        packed = self.pack(table)
        at = offset + len(last) + SKIPPABLE.size
        footer = ZSTD_FOOTER.pack(at, len(packed), len(table), TABLE_KIND, ZSTD_MAGIC)
        return End(
            plain=tar.END,
            packed=b"".join((last, _skippable(packed), _skippable(footer))),
            annotations={
                TABLE_DIGEST: digest_of(table),
                CHUNKED_DIGEST: digest_of(packed),
                CHUNKED_POSITION: f"{at}:{len(packed)}:{len(table)}:{TABLE_KIND}",
            },
        )


class EStargz:
    """eStargz. The table is the tar's last file; the footer is a gzip member without content."""

    name: ClassVar[FormatName] = "gzip"
    media_type: ClassVar[str] = LAYER_GZIP

    @property
    def version(self) -> str:
        return f"zlib {_fingerprint()} level {_LEVEL}"

    def pack(self, content: bytes) -> bytes:
        end = gzip.trailer(zlib.crc32(content), len(content))
        return b"".join((gzip.HEAD, _deflate(content), end))

    def end(self, offset: int, rows: Sequence[Mapping[str, Any]], size: int) -> End:
        table = write_table(rows)
        head = tar.header(TABLE_NAME, kind="file", mode=0o644, size=len(table))
        plain = b"".join((head, table, tar.padding(len(table)), tar.END))
        return End(
            plain=plain,
            packed=self.pack(plain) + gzip_footer(offset),
            annotations={
                TABLE_DIGEST: digest_of(table),
                UNPACKED_BYTES: str(size + len(plain)),
            },
        )


FORMATS: Mapping[FormatName, Format] = {"zstd": ZstdChunked(), "gzip": EStargz()}


def write_table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The table as JSON. Its readers hash it up to its last brace."""
    document = {"version": VERSION, "entries": rows}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode()


def gzip_footer(offset: int) -> bytes:
    """The last 51 bytes of an eStargz: a member without content, whose extra field says where the
    table begins. https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1.1
    """
    field = b"%016xSTARGZ" % offset
    extra = struct.pack("<2sH", b"SG", len(field)) + field
    head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff" + struct.pack("<H", len(extra)) + extra
    return head + b"".join(gzip.store(b"", last=True)) + gzip.trailer(0, 0)


def _skippable(content: bytes) -> bytes:
    return SKIPPABLE.pack(SKIPPABLE_MAGIC, len(content)) + content


def _deflate(content: bytes) -> bytes:
    # not ISA-L, which is faster: one build in ten had other bytes for one of 5,692 files
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    return packer.compress(content) + packer.flush()


@functools.cache
def _fingerprint() -> str:
    """What identifies the compressor: the digest of a sample compressed by it."""
    return hashlib.sha256(_deflate(sample())).hexdigest()[:16]
