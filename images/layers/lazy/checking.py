"""Compares a table of contents with its layer's tar: a node that starts lazily reads the table.

Compared are names, kinds, sizes and targets of links, while the layer is read anyway.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace

from images.layers.lazy.formats import TABLE_NAME
from images.layers.lazy.reading import MOST_PACKED_BYTES, ReadTable, read_table
from images.layers.lazy.table import TYPES
from images.oci.errors import ImageUnreadableError
from images.oci.sources import Image, ImageLayer, Member
from images.oci.tarstream import layer_members

_KEPT_BYTES = MOST_PACKED_BYTES + (1 << 20)

Stream = Callable[[], Generator[bytes, None, None]]


def checked(layer: ImageLayer) -> ImageLayer:
    """The layer, which raises after its last member if its table says something else
    (ImageUnreadableError, DigestMismatchError). One without a table is returned as it is.
    """
    if not layer.blob.of_table:
        return layer

    def members() -> Generator[Member, None, None]:
        end = _End()
        listed: dict[str, tuple[str, int, str]] = {}
        with contextlib.closing(
            layer_members(replace(layer, stream=end.of(layer.stream)))
        ) as found:
            for member, content in found:
                kind = TYPES.get(member.type, "other")
                link = member.linkname if kind in {"symlink", "hardlink"} else ""
                if kind == "hardlink":
                    link = _plain(link)
                size = member.size if kind == "reg" else 0
                listed[_plain(member.name)] = (kind, size, link)
                yield member, content
        table = read_table(end.read, end.size, layer.blob.annotations)
        _compare(table, listed, layer.blob.digest)

    return replace(layer, members=members)


def checked_image(image: Image) -> Image:
    """The image with all its layers checked while they are read."""
    return replace(image, layers=tuple(map(checked, image.layers)))


def _plain(name: str) -> str:
    """As a table's names are read."""
    found = name.removeprefix("./").strip("/")
    return "" if found == "." else found


def _compare(table: ReadTable, listed: dict[str, tuple[str, int, str]], digest: str) -> None:
    if table.format == "gzip":
        listed.pop(TABLE_NAME, None)
    others = {
        name: (file.kind if file.kind in TYPES.values() else "other", file.size, file.link)
        for name, file in table.files.items()
    }
    listed.pop("", None)  # the root, which a table may omit
    others.pop("", None)
    wrong = sorted(
        name for name in listed.keys() | others.keys() if listed.get(name) != others.get(name)
    )
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ImageUnreadableError(
            f"The layer {digest} has another {wrong[0][:200]!r}{more} in its table of contents "
            "than in its tar: a node that starts it lazily would see other files.",
            fix="Do not use this image: no honest tool makes such a layer.",
        )


class _End:
    """The last bytes of a blob, kept while it is streamed."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: deque[bytes] = deque()
        self._kept = 0

    def of(self, stream: Stream) -> Stream:
        def heard() -> Generator[bytes, None, None]:
            with contextlib.closing(stream()) as pieces:
                for piece in pieces:
                    self._keep(piece)
                    yield piece

        return heard

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the blob; those that are not kept any more are missing."""
        kept = b"".join(self._pieces)
        begin = offset - (self.size - len(kept))
        return kept[begin : begin + size] if begin >= 0 else b""

    def _keep(self, piece: bytes) -> None:
        self.size += len(piece)
        self._kept += len(piece)
        self._pieces.append(piece)
        while self._kept - len(self._pieces[0]) >= _KEPT_BYTES:
            self._kept -= len(self._pieces.popleft())
