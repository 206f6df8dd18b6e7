"""Reads the table of contents of a lazy layer, which anybody may have written, and contents by it.

Nothing of it is trusted: sizes are limited before anything is read or inflated, every number must
lie within the blob, and contents are compared with their digests. What is refused here is not
refused because it could not be read, but because two readers could see different files.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from images.errors import Failure
from images.layers import tar
from images.layers.lazy.formats import (
    GZIP_FOOTER_BYTES,
    SKIPPABLE,
    SKIPPABLE_MAGIC,
    TABLE_KIND,
    TABLE_NAME,
    ZSTD_FOOTER,
    ZSTD_MAGIC,
    FormatName,
    gzip_footer,
)
from images.layers.lazy.table import LANDMARK, TYPES, VERSION
from images.oci.errors import DigestMismatchError, ImageUnreadableError
from images.oci.inflate import ANEW_FIX, zstd_library
from images.oci.model import CHUNKED_DIGEST, CHUNKED_POSITION, TABLE_DIGEST, digest_of, is_digest
from images.oci.tarstream import members

MOST_TABLE_BYTES = 64 << 20
MOST_PACKED_BYTES = 32 << 20
MOST_ROWS = 400_000
MOST_CHUNK_BYTES = 64 << 20
_MOST_NUMBER = (1 << 53) - 1
_MOST_NAME = 4096
_KINDS = frozenset({*TYPES.values(), "char", "block", "fifo"})
_STARGZ = re.compile(rb"([0-9a-f]{16})STARGZ")
_STARGZ_AT = 16
_ROOT = frozenset({".", "./", "/"})

Reader = Callable[[int, int], bytes]
"""Reads `size` bytes of a blob from `offset` on; both are within the blob."""


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where `size` bytes of a file's content are: compressed between `offset` and `end`."""

    offset: int
    end: int
    size: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A file of the table. `link` is the target of a link; `chunks` are in order."""

    name: str
    kind: str
    mode: int
    size: int = 0
    digest: str = ""
    link: str = ""
    chunks: tuple[ChunkPlace, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable:
    """A table. `offset` is where it begins in the blob, and `landmark` how many bytes nodes fetch
    ahead of a start (0: none).
    """

    format: FormatName
    offset: int
    digest: str
    files: Mapping[str, TableFile]
    landmark: int


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
    files = _files(table, offset)
    landmark = files.get(LANDMARK)
    ahead = landmark.chunks[0].offset if landmark and landmark.chunks else 0
    return ReadTable(format=form, offset=offset, digest=digest, files=files, landmark=ahead)


def content(read: Reader, table: ReadTable, file: TableFile) -> Generator[bytes, None, None]:
    """Yield a file's content, chunk by chunk. DigestMismatchError: it is not that of the table."""
    for chunk in file.chunks:
        # what follows the chunk's own bytes is not needed, and incompressible ones grow little
        most = min(chunk.end - chunk.offset, chunk.size + chunk.size // 64 + 1024)
        plain = _inflated(table.format, read(chunk.offset, most), chunk.size, file.name)
        if digest_of(plain) != chunk.digest:
            raise DigestMismatchError(
                f"{file.name[:200]!r} has not the content that its layer's table of contents says.",
                fix=ANEW_FIX,
            )
        yield plain


def _table(
    read: Reader, size: int, annotations: Mapping[str, str]
) -> tuple[FormatName, int, bytes]:
    """Its format, where it begins in the blob, and its text."""
    footer_bytes = SKIPPABLE.size + ZSTD_FOOTER.size
    if size > GZIP_FOOTER_BYTES:
        end = read(size - GZIP_FOOTER_BYTES, GZIP_FOOTER_BYTES)
        found = _STARGZ.fullmatch(end[_STARGZ_AT : _STARGZ_AT + 22])
        if found is not None and end == gzip_footer(int(found[1], 16)):
            return _gzip_table(read, size, int(found[1], 16))
        if end.endswith(ZSTD_MAGIC):
            return _zstd_table(read, size, end[-footer_bytes:], annotations)
    raise _refused("it has no footer")


def _zstd_table(
    read: Reader, size: int, footer: bytes, annotations: Mapping[str, str]
) -> tuple[FormatName, int, bytes]:
    if footer[: SKIPPABLE.size] != SKIPPABLE.pack(SKIPPABLE_MAGIC, ZSTD_FOOTER.size):
        raise _refused("its footer is not a frame that is skipped")
    offset, packed_bytes, plain_bytes, kind, _ = ZSTD_FOOTER.unpack(footer[SKIPPABLE.size :])
    if kind != TABLE_KIND:
        raise _refused(f"it is of the unknown kind {kind}")
    _limit(packed_bytes, plain_bytes)
    if offset < SKIPPABLE.size or offset + packed_bytes + len(footer) != size:
        raise _refused(f"its footer says it is at {offset}, with {packed_bytes} bytes")
    said = f"{offset}:{packed_bytes}:{plain_bytes}:{kind}"
    if annotations.get(CHUNKED_POSITION, said) != said:
        raise _refused(f"its footer says {said}, and the manifest another position")
    packed = read(offset, packed_bytes)
    if annotations.get(CHUNKED_DIGEST, digest_of(packed)) != digest_of(packed):
        raise DigestMismatchError(
            "The layer's compressed table of contents has not the digest that the manifest says.",
            fix=ANEW_FIX,
        )
    return "zstd", offset - SKIPPABLE.size, _inflated("zstd", packed, plain_bytes, "the table")


def _gzip_table(read: Reader, size: int, offset: int) -> tuple[FormatName, int, bytes]:
    packed_bytes = size - GZIP_FOOTER_BYTES - offset
    if packed_bytes <= 0:
        raise _refused(f"its footer says it is at {offset}, and the layer has {size} bytes")
    _limit(packed_bytes, 1)
    plain = _gunzipped(read(offset, packed_bytes), MOST_TABLE_BYTES + 2048, "the table")
    if len(plain) >= MOST_TABLE_BYTES + 2048:
        _limit(packed_bytes, len(plain))
    with io.BytesIO(plain) as file:
        found = members(iter(lambda: file.read(1 << 20), b""), "The layer's table of contents")
        member, text = next(found, (None, None))
        if member is None or text is None or member.name != TABLE_NAME:
            raise _refused(f"it does not begin with {TABLE_NAME}")
        return "gzip", offset, text.read(member.size)


def _limit(packed_bytes: int, plain_bytes: int) -> None:
    if packed_bytes > MOST_PACKED_BYTES or plain_bytes > MOST_TABLE_BYTES:
        raise _refused(
            f"it has {packed_bytes:,} bytes ({plain_bytes:,} when inflated), and at most "
            f"{MOST_TABLE_BYTES:,} are read"
        )


def _inflated(form: FormatName, packed: bytes, size: int, what: str) -> bytes:
    """The first `size` bytes; no more are inflated."""
    if form == "gzip":
        plain = _gunzipped(packed, size, what)
    else:
        zstd = zstd_library()
        try:
            plain = zstd.ZstdDecompressor().decompress(packed, max_length=size)
        except (zstd.ZstdError, EOFError) as error:
            raise _refused(f"{what[:200]!r} is damaged ({error})") from error
    if len(plain) != size:
        raise _refused(f"{what[:200]!r} has {len(plain)} bytes, and should have {size}")
    return plain


def _gunzipped(packed: bytes, most: int, what: str) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(packed, most)
    except zlib.error as error:
        raise _refused(f"{what[:200]!r} is damaged ({error})") from error


def _files(table: bytes, end: int) -> dict[str, TableFile]:
    if table.count(b"{") > MOST_ROWS or table.count(b"[") > MOST_ROWS:
        raise _refused(f"it has more than {MOST_ROWS} rows")
    try:
        document = json.loads(table)
    except (ValueError, RecursionError) as error:
        raise _refused("it is not JSON") from error
    rows = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(rows, list) or document.get("version") != VERSION:
        raise _refused("it has no rows, or is of an unknown version")
    grouped = _grouped(rows)
    bounds = _bounds([row for group in grouped.values() for row in group], end)
    files = {name: _file(name, group, bounds) for name, group in grouped.items()}
    for name, file in files.items():
        if not name and file.kind != "dir":
            raise _refused("its root is not a directory")
        if any(one in files and files[one].kind != "dir" for one in tar.parents(name)):
            raise _refused(f"{name[:200]!r} is below a file")
        if file.kind == "hardlink" and not _is_file(files, file.link):
            raise _refused(f"{name[:200]!r} links to {file.link[:200]!r}, which is not a file")
    return files


def _is_file(files: Mapping[str, TableFile], name: str) -> bool:
    found = files.get(name)
    return found is not None and found.kind == "reg"


def _grouped(rows: list[Any]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each file: its own, and those of its further chunks, which follow it."""
    found: dict[str, list[dict[str, Any]]] = {}
    last = ""
    for row in rows:
        if not isinstance(row, dict):
            raise _refused("a row is not an object")
        kind = row.get("type")
        if kind == "chunk":
            if last not in found or found[last][0]["type"] != "reg":
                raise _refused("a chunk follows no file")
            found[last].append(row)
            continue
        if kind not in _KINDS:
            raise _refused(f"a row is of the unknown kind {str(kind)[:40]!r}")
        last = _name(row.get("name"))
        if last in found:
            raise _refused(f"it has {last[:200]!r} twice")
        found[last] = [row]
    return found


def _name(found: object) -> str:
    """A path below the root, without "./" or a slash at its ends; "" is the root itself."""
    name = found if isinstance(found, str) else ".."
    if name in _ROOT:
        return ""
    parts = (name.removeprefix("./").removeprefix("/").removesuffix("/")).split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in name or len(name) > _MOST_NAME:
        raise _refused(f"a row has the name {str(found)[:200]!r}")
    return "/".join(parts)


def _bounds(rows: list[dict[str, Any]], end: int) -> dict[int, int]:
    """Where each chunk's bytes end at the latest: where the next one's begin."""
    offsets = [_number(row, "offset", end - 1) for row in rows if _has_content(row)]
    ordered = sorted(offsets)
    if len(set(ordered)) != len(ordered):
        raise _refused("two chunks are at one place")
    return dict(zip(ordered, [*ordered[1:], end], strict=False))


def _has_content(row: Mapping[str, Any]) -> bool:
    return row["type"] == "chunk" or (row["type"] == "reg" and bool(row.get("size", 0)))


def _file(name: str, rows: list[dict[str, Any]], bounds: Mapping[int, int]) -> TableFile:
    first = rows[0]
    kind = cast("str", first["type"])
    link = first.get("linkName", "")
    if kind in {"symlink", "hardlink"} and (not isinstance(link, str) or not link):
        raise _refused(f"{name[:200]!r} is a link to nothing")
    size = _number(first, "size", _MOST_NUMBER) if kind == "reg" else 0
    chunks = []
    at = 0
    for row in rows if size else ():
        begin = _number(row, "chunkOffset", size)
        length = _number(row, "chunkSize", size) or size - begin
        digest = row.get("chunkDigest")
        if begin != at or not 0 < length <= min(size - at, MOST_CHUNK_BYTES):
            raise _refused(f"the chunks of {name[:200]!r} do not follow each other")
        if not isinstance(digest, str) or not is_digest(digest):
            raise _refused(f"a chunk of {name[:200]!r} has no digest")
        offset = _number(row, "offset", _MOST_NUMBER)
        chunks.append(ChunkPlace(offset, bounds[offset], length, digest))
        at += length
    if at != size or (not size and len(rows) > 1):
        raise _refused(f"the chunks of {name[:200]!r} have {at} bytes, and it has {size}")
    return TableFile(
        name=name,
        kind=kind,
        mode=_number(first, "mode", _MOST_NUMBER),
        size=size,
        digest=str(first.get("digest", "")),
        link=_name(link) if kind == "hardlink" else str(link),
        chunks=tuple(chunks),
    )


def _number(row: Mapping[str, Any], key: str, most: int) -> int:
    found = row.get(key, 0)
    if type(found) is not int or not 0 <= found <= most:
        name = str(row.get("name"))[:200]
        raise _refused(f"{name!r} has {key} {str(found)[:40]}, and at most {most} is possible")
    return found


def _refused(why: str) -> Failure:
    return ImageUnreadableError(
        f"The layer's table of contents cannot be used: {why}.",
        fix="Pull the whole layer, or build the image again.",
    )
