"""The table of contents: one row for each file, and one more for each further chunk of its content.

Both formats have the same rows. `endOffset` is read only by containers/storage.
https://github.com/containerd/stargz-snapshotter/blob/main/docs/estargz.md#toc-toctar-and-tocentries
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

VERSION = 1
LANDMARK = ".prefetch.landmark"
"""The file behind which nothing is fetched ahead of a start."""
NO_LANDMARK = ".no.prefetch.landmark"
"""The file that says that nothing is fetched ahead. Without either, snapshotters guess."""
LANDMARK_CONTENT = b"\x0f"

CHUNK_BYTES = 1 << 20
"""The largest part of a file that we compress apart."""

TYPES = {
    tarfile.REGTYPE: "reg",
    tarfile.AREGTYPE: "reg",
    tarfile.DIRTYPE: "dir",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
    tarfile.CONTTYPE: "reg",
    tarfile.CHRTYPE: "char",
    tarfile.BLKTYPE: "block",
    tarfile.FIFOTYPE: "fifo",
}
"""What a table calls the kinds of members."""


@dataclass(slots=True, kw_only=True)
class Chunk:
    """A part of a file's content: `begin` in the file, `size` in bytes; `offset` of its compressed
    bytes in the blob, and `digest` of its plain ones, are known once it is written.
    """

    begin: int
    size: int
    offset: int = 0
    digest: str = ""


@dataclass(slots=True, kw_only=True)
class TableEntry:
    """A member; `digest` and `end` (of its compressed bytes) are those of a file with content."""

    member: tarfile.TarInfo
    chunks: list[Chunk] = field(default_factory=list)
    digest: str = ""
    end: int = 0

    def to_json(self) -> list[dict[str, Any]]:
        """Its rows in the table."""
        member = self.member
        time = datetime.fromtimestamp(int(member.mtime), timezone.utc)
        first: dict[str, Any] = {
            "name": f"{member.name}/" if member.isdir() else member.name,
            "type": TYPES[member.type],
            "modtime": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "mode": member.mode & 0o7777,
        }
        if member.uid:
            first["uid"] = member.uid
        if member.gid:
            first["gid"] = member.gid
        if member.issym() or member.islnk():
            first["linkName"] = member.linkname
        if not self.chunks:
            return [first]
        first |= {"size": member.size, "digest": self.digest, "endOffset": self.end}
        is_whole = len(self.chunks) == 1
        rows = [_of_chunk(chunk, is_whole=is_whole) for chunk in self.chunks]
        others = ({"name": member.name, "type": "chunk", **row} for row in rows[1:])
        return [{**first, **rows[0]}, *others]


def _of_chunk(chunk: Chunk, *, is_whole: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"offset": chunk.offset, "chunkDigest": chunk.digest}
    if not is_whole:
        row["chunkSize"] = chunk.size
    if chunk.begin:
        row["chunkOffset"] = chunk.begin
    return row
