"""Makes lazy layers of any tar, with the rows that other tools write, or with others."""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from images.layers import tar as tars
from images.layers.lazy.formats import FORMATS, Format, FormatName
from images.oci.model import Descriptor, digest_of
from images.oci.sources import ImageLayer

Rows = list[dict[str, Any]]
Change = Callable[[Rows], Rows]
_KINDS = {
    tarfile.REGTYPE: "reg", tarfile.DIRTYPE: "dir", tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink", tarfile.CHRTYPE: "char", tarfile.BLKTYPE: "block",
    tarfile.FIFOTYPE: "fifo",
}  # fmt: skip
_XATTR = "SCHILY.xattr."


def layer_of(blob: bytes, diff_id: str, annotations: dict[str, str]) -> ImageLayer:
    """A layer of these bytes."""

    def stream() -> Generator[bytes, None, None]:
        for at in range(0, len(blob), 1000):
            yield blob[at : at + 1000]

    described = Descriptor(
        media_type="application/vnd.oci.image.layer.v1.tar",
        digest=digest_of(blob),
        size=len(blob),
        annotations=annotations,
    )
    return ImageLayer(blob=described, diff_id=diff_id, stream=stream)


@dataclass(frozen=True, slots=True)
class LazyTar:
    """A tar that is compressed for a lazy layer, and its rows."""

    form: Format
    packed: bytes
    plain: bytes
    rows: Rows

    def layer(self, rows: Rows) -> ImageLayer:
        """The layer with these rows in its table."""
        end = self.form.end(len(self.packed), rows, len(self.plain))
        annotations = dict(end.annotations)
        return layer_of(self.packed + end.packed, digest_of(self.plain + end.plain), annotations)


def lazy_layer(
    tar: bytes,
    name: FormatName = "zstd",
    *,
    chunk: int = 64,
    change: Change = lambda rows: rows,
    podman: bool = False,
) -> ImageLayer:
    """A tar as a lazy layer, whose rows are those of stargz-snapshotter or Podman, changed."""
    made = lazy_tar(tar, name, chunk=chunk, podman=podman)
    return made.layer(change(made.rows))


def lazy_tar(tar: bytes, name: FormatName, *, chunk: int, podman: bool) -> LazyTar:
    """Compress each chunk of a file apart."""
    form = FORMATS[name]
    rows: Rows = []
    packed, plain = bytearray(), bytearray()

    def add(content: bytes) -> int:
        begin = len(packed)
        packed.extend(form.pack(content) if content else b"")
        plain.extend(content)
        return begin

    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            add(tar[len(plain) : member.offset_data])
            first = _row(member)
            rows.append(first)
            content = tar[member.offset_data :][: member.size] if member.isreg() else b""
            if member.isreg() and (content or not podman):
                first["digest"] = digest_of(content)
            has_chunks = len(content) > chunk
            for begin in range(0, len(content), chunk):
                piece = content[begin : begin + chunk]
                row: dict[str, Any] = first if not begin else {"name": member.name, "type": "chunk"}
                row["offset"] = add(piece)
                if begin:
                    rows.append({**row, "chunkOffset": begin})
                    row = rows[-1]
                if has_chunks:
                    row["chunkSize"] = len(piece)
                if has_chunks or not podman:
                    row["chunkDigest"] = digest_of(piece)
                if podman and has_chunks and not any(piece):
                    row["chunkType"] = "zeros"
    add(tars.padding(len(plain)))
    return LazyTar(form, bytes(packed), bytes(plain), rows)


def _row(member: tarfile.TarInfo) -> dict[str, Any]:
    time = datetime.fromtimestamp(round(member.mtime), timezone.utc)
    xattrs = {
        key.removeprefix(_XATTR): base64.b64encode(
            value.encode("utf-8", "surrogateescape")
        ).decode()
        for key, value in member.pax_headers.items()
        if key.startswith(_XATTR)
    }
    found = {
        "size": member.size if member.isreg() else 0,
        "modtime": time.strftime("%Y-%m-%dT%H:%M:%SZ") if member.mtime else "",
        "linkName": member.linkname,
        "mode": member.mode,
        "uid": member.uid,
        "gid": member.gid,
        "userName": member.uname,
        "groupName": member.gname,
        "devMajor": member.devmajor,
        "devMinor": member.devminor,
        "xattrs": xattrs,
    }
    name = f"{member.name}/" if member.isdir() else member.name
    return {
        "name": name,
        "type": _KINDS[member.type],
        **{key: value for key, value in found.items() if value},
    }
