"""Compares a table of contents with its layer's tar: a node that starts lazily reads the table.

Compared is all that a container sees of a file: name, kind, content, size, mode, owner, time,
target, device and extended attributes. Contents are hashed while the layer is read anyway. Where a
chunk begins is known only at the layer's end, so chunks of the size that this
project writes are assumed, and a layer with others is read twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from itertools import repeat
from typing import IO, TYPE_CHECKING, cast

from images.layers.lazy.formats import TABLE_NAME
from images.layers.lazy.rows import TableFile
from images.layers.lazy.table import CHUNK_BYTES
from images.layers.lazy.table_reader import MOST_PACKED_BYTES, ReadTable, read_table
from images.layers.lazy.visible_files import VisibleTree, difference, plain_name
from images.oci.errors import TableMismatchError
from images.oci.sources import Image, ImageLayer, Member
from images.oci.tarstream import layer_members

if TYPE_CHECKING:
    from hashlib import _Hash

_KEPT_BYTES = MOST_PACKED_BYTES + (8 << 20)  # Podman has a frame behind the table
_PIECE_BYTES = 1 << 18
_MOST_NAMED = 3
_REST = 1 << 62  # of an earlier member with the same name, which may be larger

Stream = Callable[[], Generator[bytes, None, None]]


def checked(layer: ImageLayer) -> ImageLayer:
    """The layer, which raises after its last member if its table says something else
    (TableMismatchError), or cannot be used (ImageUnreadableError, DigestMismatchError). One without
    a table is returned as it is.
    """
    return replace(layer, members=_Comparison(layer).members) if layer.blob.has_table else layer


def checked_image(image: Image) -> Image:
    """The image with all its layers checked while they are read."""
    return replace(image, layers=tuple(map(checked, image.layers)))


class _Comparison:
    """Compares the first time that all members are read."""

    def __init__(self, layer: ImageLayer) -> None:
        self._layer = layer
        self._is_done = False

    def members(self) -> Generator[Member, None, None]:
        if self._is_done:
            yield from layer_members(self._layer)
            return
        end, tree = _End(), VisibleTree()
        tapped = replace(self._layer, stream=end.of(self._layer.stream))
        with contextlib.closing(layer_members(tapped)) as found:
            for member, content in found:
                if content is None:
                    yield member, None
                    tree.add(member)
                    continue
                hashed = _HashedContent(content, member.size, repeat(CHUNK_BYTES))
                yield member, cast("IO[bytes]", hashed)
                tree.add(member, *hashed.digests())
        table = read_table(end.read, end.size, self._layer.blob.annotations)
        self._compare(table, tree)
        self._is_done = True

    def _compare(self, table: ReadTable, tree: VisibleTree) -> None:
        if table.format == "gzip":
            tree.files.pop(TABLE_NAME, None)
        wrong = dict.fromkeys(tree.lost_links(), "target")
        again: dict[str, TableFile] = {}
        for name in tree.files.keys() | table.files.keys():
            file = table.files.get(name)
            why = difference(tree.files.get(name), None if file is None else file.seen)
            if not why and file is not None and file.chunks:
                sizes = [chunk.size for chunk in file.chunks]
                size = file.seen.size
                if sizes == [min(CHUNK_BYTES, size - at) for at in range(0, size, CHUNK_BYTES)]:
                    why = _other_chunk(file, tree.chunks[name])
                elif len(sizes) == 1:
                    why = _other_chunk(file, (tree.files[name].digest,))
                else:
                    again[name] = file
            if why:
                wrong[name] = why
        if again and not wrong:
            wrong = self._read_again(again)
        if wrong:
            raise _mismatch(self._layer.blob.digest, wrong)

    def _read_again(self, files: dict[str, TableFile]) -> dict[str, str]:
        """Compare the chunks of files by their places in the table; the last member counts."""
        found: dict[str, str] = {}
        with contextlib.closing(layer_members(self._layer)) as members:
            for member, content in members:
                file = files.get(plain_name(member.name))
                if content is not None and file is not None:
                    sizes = (chunk.size for chunk in file.chunks)
                    hashed = _HashedContent(content, member.size, sizes)
                    found[plain_name(member.name)] = _other_chunk(file, hashed.digests()[1])
        return {name: why for name, why in found.items() if why}


def _other_chunk(file: TableFile, digests: tuple[str, ...]) -> str:
    """ "content" if a chunk is another one, or is said to be of zeros and is not; else ""."""
    same = tuple(chunk.digest for chunk in file.chunks) == digests
    zeros = (chunk for chunk in file.chunks if chunk.is_zeros)
    return "" if same and all(one.digest == _of_zeros(one.size) for one in zeros) else "content"


def _of_zeros(size: int) -> str:
    found, piece = hashlib.sha256(), bytes(_PIECE_BYTES)
    for begin in range(0, size, _PIECE_BYTES):
        found.update(piece[: size - begin])
    return _named(found)


def _named(found: _Hash) -> str:
    return f"sha256:{found.hexdigest()}"


def _mismatch(layer: str, wrong: dict[str, str]) -> TableMismatchError:
    named = [f"{name[:200]!r} ({wrong[name]})" for name in sorted(wrong)[:_MOST_NAMED]]
    more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
    return TableMismatchError(
        f"The layer {layer} has other files in its table of contents than in its tar: "
        f"{', '.join(named)}{more}. A node that starts it lazily would see other files.",
        fix="Do not use this image. If it is yours, build or convert it again.",
    )


class _HashedContent(io.BufferedIOBase):
    """A content that is hashed while it is read: the whole, and its parts of these sizes."""

    def __init__(self, content: IO[bytes], size: int, sizes: Iterable[int]) -> None:
        self._content = cast("io.BufferedIOBase", content)
        self._sizes = iter(sizes)
        self._left = next(self._sizes, _REST)
        self._is_begun = False
        self._has_parts = size > self._left
        self._whole, self._part = hashlib.sha256(), hashlib.sha256()
        self._digests: list[str] = []

    def readable(self) -> bool:
        return True

    def read1(self, size: int | None = -1, /) -> bytes:
        return self._hear(self._content.read1(-1 if size is None else size))

    def read(self, size: int | None = -1, /) -> bytes:
        return self._hear(self._content.read(size))

    def digests(self) -> tuple[str, tuple[str, ...]]:
        """Read the rest; the digest of the whole, and of each part."""
        while self.read1(_PIECE_BYTES):
            pass
        whole = _named(self._whole)
        if not self._has_parts:
            return whole, (whole,)
        if self._is_begun:
            self._next_part()
        return whole, tuple(self._digests)

    def _hear(self, piece: bytes) -> bytes:
        self._whole.update(piece)
        rest = memoryview(piece if self._has_parts else b"")
        while rest:
            self._part.update(rest[: self._left])
            self._is_begun = True
            heard = min(self._left, len(rest))
            rest = rest[heard:]
            self._left -= heard
            if not self._left:
                self._next_part()
        return piece

    def _next_part(self) -> None:
        self._digests.append(_named(self._part))
        self._part, self._left = hashlib.sha256(), next(self._sizes, _REST)
        self._is_begun = False


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
