"""Writes the one layer.

Directories and links come first, then the files to be fetched before a start, the landmark, and
then all others. Each chunk of a content is compressed apart, and so is what is between contents.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

from images.layers import tar
from images.layers.lazy.formats import Format
from images.layers.lazy.merging import MergedLayers
from images.layers.lazy.table import (
    CHUNK_BYTES,
    LANDMARK,
    LANDMARK_CONTENT,
    NO_LANDMARK,
    Chunk,
    TableEntry,
)
from images.layers.own import key_of
from images.oci.model import LAYER_GZIP
from images.oci.sources import ImageLayer, LayerSource, Member, Stream, Unpacked
from images.oci.tarstream import layer_members
from images.wheels.remote_file import Wheel

FORMAT = 1
"""Part of every key: raise it when the bytes for the same layers change."""

MOST_FIRST_BYTES = 1 << 20
"""A larger file is not fetched before a start: of these only a few chunks are read."""

_WORKERS = 2
_MOST_WAITING = 8  # chunks
_PIECE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyLayer:
    """Other layers as one, in one of the formats.

    `first`: the paths that a start reads ("opt/venv/lib/..."), to be fetched before it; None:
    unknown. Those that are not here or are large are left where they are.
    """

    sources: tuple[LayerSource, ...]
    format: Format
    first: tuple[str, ...] | None

    @property
    def media_type(self) -> str:
        return self.format.media_type

    @property
    def key(self) -> str:
        """The compressor's version is part of it: another one may give other bytes."""
        inputs = tuple(source.key for source in self.sources)
        return key_of("lazy", FORMAT, self.format.name, self.format.version, self.first, inputs)

    @property
    def title(self) -> str:
        first, *others = (source.title for source in self.sources)
        return f"{first} and {len(others)} more layers, lazy" if others else f"{first}, lazy"

    @property
    def created_by(self) -> str:
        return "; ".join(source.created_by for source in self.sources)

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        found = {wheel.sha256: wheel for source in self.sources for wheel in source.wheels}
        return tuple(found.values())

    @property
    def about_bytes(self) -> int:
        """The sum of the others'."""
        return sum(source.about_bytes for source in self.sources)

    def members(self) -> Generator[Member, None, None]:
        """Yield the members without landmark and table."""
        with MergedLayers(self.sources) as tree:
            for member in tree.without_content():
                yield member, None
            yield from tree.files(lambda _: True)
            for member in tree.hard_links():
                yield member, None

    def stream(self, known: Unpacked | None) -> Stream:
        """Generate it; `known` saves nothing."""
        del known
        writer = _Writer(self.format)
        with MergedLayers(self.sources) as tree, ThreadPoolExecutor(_WORKERS) as pool:
            yield from writer.packed(self._parts(tree, writer), pool)
        yield from writer.end()
        return writer.unpacked()

    def _parts(self, tree: MergedLayers, writer: _Writer) -> Iterator[_Part]:
        for member in tree.without_content():
            writer.without_content(member)
        sizes = tree.sizes()
        first = {one for one in self.first or () if sizes.get(one, CHUNK_BYTES) < MOST_FIRST_BYTES}
        if first:
            for member, content in tree.files(first.__contains__):
                assert content is not None, member.name
                yield from writer.file(member, content.read)
        yield from writer.landmark(NO_LANDMARK if self.first is None else LANDMARK)
        for member, content in tree.files(lambda path: path not in first):
            assert content is not None, member.name
            yield from writer.file(member, content.read)
        for member in tree.hard_links():
            writer.without_content(member)


@dataclass(frozen=True, slots=True)
class OwnBaseLayer:
    """The layer of a base that was made here, as one to write again."""

    layer: ImageLayer
    created_by: str
    media_type: ClassVar[str] = LAYER_GZIP
    title: ClassVar[str] = "base"
    wheels: ClassVar[tuple[Wheel, ...]] = ()

    @property
    def key(self) -> str:
        """Its files', however it is compressed."""
        return key_of("base", self.layer.diff_id)

    @property
    def about_bytes(self) -> int:
        return self.layer.blob.size

    def members(self) -> Generator[Member, None, None]:
        """Yield its members, checked against its digest."""
        yield from layer_members(self.layer)

    def stream(self, known: Unpacked | None) -> Stream:
        """Yield it as it is."""
        del known
        yield from self.layer.stream()
        return Unpacked(diff_id=self.layer.diff_id, size=0)


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes that are compressed apart; `chunk` if they are a content."""

    plain: bytes
    row: TableEntry | None = None
    chunk: Chunk | None = None


class _Writer:
    """Rows, digest and size of a layer while it is written."""

    def __init__(self, format: Format) -> None:  # noqa: A002  the word of this package
        self._format = format
        self._rows: list[TableEntry] = []
        self._between = bytearray()  # headers and padding, not compressed yet
        self._digest = hashlib.sha256()
        self._size = 0
        self._written = 0
        self._annotations: dict[str, str] = {}

    def without_content(self, member: tarfile.TarInfo) -> None:
        """Add a directory, a link, or the header of a file."""
        kinds: dict[bytes, tar.Kind] = {
            tarfile.DIRTYPE: "dir",
            tarfile.SYMTYPE: "symlink",
            tarfile.LNKTYPE: "hardlink",
        }
        self._between += tar.header(
            member.name,
            kind=kinds.get(member.type, "file"),
            mode=member.mode & 0o7777,
            size=member.size,
            target=member.linkname,
            owner=(member.uid, member.gid),
            mtime=int(member.mtime),
        )
        self._rows.append(TableEntry(member=member))

    def landmark(self, name: str) -> Iterator[_Part]:
        """Add the file that ends what is fetched ahead."""
        member = tarfile.TarInfo(name)
        member.size, member.mtime = len(LANDMARK_CONTENT), tar.MTIME
        yield from self.file(member, lambda _: LANDMARK_CONTENT)

    def file(self, member: tarfile.TarInfo, read: Callable[[int], bytes]) -> Iterator[_Part]:
        """Add a file, in parts."""
        self.without_content(member)
        row = self._rows[-1]
        if not member.size:
            return
        yield self._flushed()
        digest = hashlib.sha256()
        for begin in range(0, member.size, CHUNK_BYTES):
            size = min(CHUNK_BYTES, member.size - begin)
            plain = _exactly(read, size, member.name)
            digest.update(plain)
            row.chunks.append(Chunk(begin=begin, size=size))
            yield _Part(plain, row, row.chunks[-1])
        row.digest = f"sha256:{digest.hexdigest()}"
        self._between += tar.padding(member.size)

    def packed(self, parts: Iterator[_Part], pool: ThreadPoolExecutor) -> Iterator[bytes]:
        """Compress the parts in threads, and yield them in order."""
        waiting: deque[tuple[_Part, Future[tuple[bytes, str]]]] = deque()
        ready = bytearray()
        for part in parts:
            self._hear(part.plain)
            waiting.append((part, pool.submit(self._pack, part)))
            if len(waiting) >= _MOST_WAITING:
                ready += self._place(*waiting.popleft())
            if len(ready) >= _PIECE_BYTES:
                yield bytes(ready)
                ready.clear()
        for one in waiting:
            ready += self._place(*one)
        yield bytes(ready)

    def end(self) -> Iterator[bytes]:
        """Write what follows the files."""
        last = self._flushed().plain
        self._hear(last)
        packed = self._format.pack(last)
        rows = [row for one in self._rows for row in one.to_json()]
        end = self._format.end(self._written + len(packed), rows, self._size)
        self._hear(end.plain)
        self._annotations = dict(end.annotations)
        whole = packed + end.packed
        for at in range(0, len(whole), CHUNK_BYTES):
            yield whole[at : at + CHUNK_BYTES]

    def unpacked(self) -> Unpacked:
        return Unpacked(
            diff_id=f"sha256:{self._digest.hexdigest()}",
            size=self._size,
            annotations=self._annotations,
        )

    def _flushed(self) -> _Part:
        part = _Part(bytes(self._between))
        self._between.clear()
        return part

    def _pack(self, part: _Part) -> tuple[bytes, str]:
        digest = hashlib.sha256(part.plain).hexdigest() if part.chunk else ""
        return self._format.pack(part.plain), f"sha256:{digest}"

    def _place(self, part: _Part, made: Future[tuple[bytes, str]]) -> bytes:
        packed, digest = made.result()
        if part.chunk is not None and part.row is not None:
            part.chunk.offset, part.chunk.digest = self._written, digest
            part.row.end = self._written + len(packed)
        self._written += len(packed)
        return packed

    def _hear(self, plain: bytes) -> None:
        self._digest.update(plain)
        self._size += len(plain)


def _exactly(read: Callable[[int], bytes], size: int, name: str) -> bytes:
    parts = []
    left = size
    while left:
        part = read(left)
        if not part:
            raise ValueError(f"{name} ends before its size")
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
