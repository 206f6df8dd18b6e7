"""Reads an image's layers, or a wheel, into a tree in one pass; runs and unpacks nothing.

For every file the tree has its size; for ELF files what the loader would read, and the device code;
for a few small files the text. Two layers are read at a time, because inflating and hashing release
the GIL.
"""

from __future__ import annotations

import contextlib
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from posixpath import basename, dirname, join
from typing import IO, Any, Literal

from images.inspect.archive import WheelArchive
from images.inspect.dynamic import MAGIC, DynamicReader, Machine
from images.inspect.library import read_library
from images.inspect.segments import DamagedElf
from images.inspect.source import ByteSource
from images.inspect.texts import find_flags, parse_tags
from images.inspect.tree import (
    OPAQUE,
    WHITEOUT,
    Directory,
    ImageFile,
    ImageTree,
    Node,
    Other,
    SymbolicLink,
)
from images.inspect.windows import HEAD_BYTES
from images.oci.errors import ImageUnreadableError
from images.oci.sources import Image, ImageLayer
from images.oci.tarstream import layer_members
from images.wheels.errors import WheelUnreadableError

PIECE_BYTES = 1 << 20
_WORKERS = 2
_MOST_FILES = 3_000_000
_MOST_TEXT_BYTES = 512 << 20
_MOST_SYMBOLS_BYTES = 1 << 30
_ANEW_FIX = "Rebuild the image or pull it again."
_TORCH_FLAGS = "/torch/lib/libtorch_python.so"
# Files that are read as text, and the limit for each.
_TEXTS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"/[^/]+\.dist-info/METADATA$"), 1 << 20),
    (re.compile(r"/[^/]+\.dist-info/RECORD$"), 64 << 20),
    (re.compile(r"/[^/]+\.dist-info/WHEEL$"), 1 << 16),
    (re.compile(r"/torch/version\.py$"), 1 << 16),
    (re.compile(r"^/etc/ld\.so\.cache$"), 16 << 20),
    (re.compile(r"^/(etc|usr/lib)/os-release$"), 1 << 16),
    (re.compile(r"^/var/lib/dpkg/info/[^/]+\.list$"), 16 << 20),
)
OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """One layer: its compressed size, the total size of its files, and what created it."""

    digest: str
    size: int
    files: int
    unpacked: int
    created_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of an image, or of a wheel; a wheel's `tree` is the site directory.

    `config` is the image's configuration, `tags` the wheel's platform tags; `claims` as `Image`
    has them.
    """

    kind: Literal["image", "wheel"]
    shown: str
    digest: str | None
    machine: Machine | None
    tree: ImageTree
    config: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[LayerFacts, ...] = ()
    tags: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """The image's environment variables, as a process in it sees them."""
        own = self.config.get("config")
        listed = own.get("Env") if isinstance(own, dict) else None
        pairs = (
            text.partition("=")
            for text in (listed if isinstance(listed, list) else [])
            if isinstance(text, str)
        )
        return {name: value for name, _, value in pairs}


def read_image(image: Image, *, on_bytes: OnBytes | None = None) -> Contents:
    """Read every layer of an image. `on_bytes` is called with how many more bytes were unpacked."""
    hears = on_bytes or (lambda _: None)
    counted = _Counted(hears)
    with ThreadPoolExecutor(_WORKERS) as pool:
        waiting = [
            pool.submit(_read_layer, number, layer, counted)
            for number, layer in enumerate(image.layers)
        ]
        try:
            read = [future.result() for future in waiting]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    tree = ImageTree()
    for number, layer in enumerate(read):
        _apply(tree, layer, number)
    makers = _makers(image)
    return Contents(
        kind="image",
        shown=image.shown,
        digest=image.digest,
        machine=_MACHINES.get(image.platform.architecture),
        tree=tree,
        config=image.config,
        claims=image.claims,
        layers=tuple(
            LayerFacts(
                digest=layer.blob.digest,
                size=layer.blob.size,
                files=len(found.nodes),
                unpacked=sum(n.size for _, n in found.nodes if isinstance(n, ImageFile)),
                created_by=made_by,
            )
            for layer, found, made_by in zip(image.layers, read, makers, strict=True)
        ),
    )


_MACHINES: Mapping[str, Machine] = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(slots=True)
class _Layer:
    """One layer: what it removes, and then what it adds."""

    whiteouts: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    nodes: list[tuple[str, Node | _HardLink]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _HardLink:
    """Another name for an existing file."""

    target: str


class _Counted:
    """Limits how much of one image is kept in memory."""

    def __init__(self, on_bytes: OnBytes) -> None:
        self.on_bytes = on_bytes
        self._files = 0
        self._text = 0
        self._symbols = 0

    def file(self) -> None:
        self._files += 1
        if self._files > _MOST_FILES:
            raise ImageUnreadableError(
                f"The image holds more than {_MOST_FILES} files.", fix=_ANEW_FIX
            )

    def content(self, file: ImageFile) -> None:
        """Count what was read from a file. Symbols that are too many are not kept."""
        if file.elf is not None and file.elf.symbols is not None:
            self._symbols += file.elf.symbols.memory_bytes
            if self._symbols > _MOST_SYMBOLS_BYTES:
                file.elf = replace(file.elf, symbols=None)
        self._text += len(file.text or b"")
        if self._text > _MOST_TEXT_BYTES:
            raise ImageUnreadableError(
                f"What its packages say of themselves has more than {_MOST_TEXT_BYTES} bytes.",
                fix=_ANEW_FIX,
            )


def read_wheel(source: ByteSource, *, on_bytes: OnBytes | None = None) -> Contents:
    """Read every member of an opened wheel into a tree, as in a site directory."""
    counted = _Counted(on_bytes or (lambda _: None))
    archive = WheelArchive(source)
    tree = ImageTree()
    for member in sorted(archive.members.values(), key=lambda member: member.offset):
        counted.file()
        # .data/purelib and platlib go into the site directory
        path = _absolute(re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", member.name))
        if member.name.endswith("/"):
            tree.add(path, Directory(layer=0))
            continue
        file = ImageFile(size=member.size, layer=0)
        reader = read_content(path, file, _heard(archive.stream(member), counted.on_bytes))
        while reader is not None and not _read_again(file, reader, archive.stream(member)):
            pass
        counted.content(file)
        tree.add(path, file)
    tags = _platforms(source.file_name, tree)
    machines = [m for m in _MACHINES.values() if any(tag.endswith(m) for tag in tags)]
    return Contents(
        kind="wheel",
        shown=source.shown,
        digest=None,
        machine=machines[0] if len(machines) == 1 else None,
        tree=tree,
        tags=tuple(dict.fromkeys(tags)),
    )


def _platforms(file_name: str, tree: ImageTree) -> tuple[str, ...]:
    """Read the platform tags from the file's name, as pip does; else from WHEEL."""
    parts = file_name.removesuffix(".whl").split("-")
    if file_name.endswith(".whl") and len(parts) in (5, 6):
        return tuple(parts[-1].split("."))
    return tuple(
        platform
        for path, node in tree.walk()
        if path.endswith(".dist-info/WHEEL") and isinstance(node, ImageFile)
        for _, platform in parse_tags(node.text or b"")
    )


def _read_layer(number: int, layer: ImageLayer, counted: _Counted) -> _Layer:
    found = _Layer()
    again: dict[str, tuple[ImageFile, DynamicReader]] = {}
    with contextlib.closing(layer_members(layer)) as members:
        for member, content in members:
            counted.file()
            _read_member(found, again, number, member, content, counted)
    while again:  # a part that they needed had passed before we knew it
        waiting, again = again, {}
        with contextlib.closing(layer_members(layer)) as members:
            for member, content in members:
                path = _absolute(member.name)
                if content is not None and path in waiting:
                    file, reader = waiting.pop(path)
                    if not _read_again(file, reader, _pieces(content)):
                        again[path] = file, reader
                    counted.content(file)
    return found


def _read_member(
    found: _Layer,
    again: dict[str, tuple[ImageFile, DynamicReader]],
    number: int,
    member: tarfile.TarInfo,
    content: IO[bytes] | None,
    counted: _Counted,
) -> None:
    path = _absolute(member.name)
    name = basename(path)
    if name == OPAQUE:
        found.opaque.append(dirname(path))
    elif name.startswith(WHITEOUT):
        found.whiteouts.append(join(dirname(path), name.removeprefix(WHITEOUT)))
    elif member.isdir():
        found.nodes.append((path, Directory(layer=number)))
    elif member.issym():
        found.nodes.append((path, SymbolicLink(target=member.linkname, layer=number)))
    elif member.islnk():
        found.nodes.append((path, _HardLink(member.linkname)))
    elif content is None:
        found.nodes.append((path, Other(layer=number)))
    else:
        file = ImageFile(size=member.size, layer=number, executable=bool(member.mode & 0o111))
        reader = read_content(path, file, _heard(_pieces(content), counted.on_bytes))
        counted.content(file)
        found.nodes.append((path, file))
        again.pop(path, None)  # of two members with one name, the later one stays
        if reader is not None:
            again[path] = file, reader


def read_content(path: str, file: ImageFile, pieces: Iterator[bytes]) -> DynamicReader | None:
    """Inspect one file. A returned reader must read the file again, from its beginning."""
    limit = next((most for pattern, most in _TEXTS if pattern.search(path)), None)
    if limit is not None:
        file.text = _first(pieces, limit)
        return None
    if file.size < len(MAGIC):
        return None
    start = b""
    for piece in pieces:
        start += piece
        if len(start) >= len(MAGIC):
            break
    if not start.startswith(MAGIC):
        return None
    return _read_elf(path, file, chain([start], pieces))


def _read_elf(path: str, file: ImageFile, pieces: Iterable[bytes]) -> DynamicReader | None:
    held: Iterable[bytes] = pieces
    if path.endswith(_TORCH_FLAGS) and file.size <= HEAD_BYTES:
        held = list(pieces)
        file.flags = find_flags(held)
    reader = DynamicReader(file.size)
    try:
        file.code, _ = read_library(path, file.size, _tapped(held, file, reader))
    except WheelUnreadableError as failure:
        if file.elf is None or file.elf.machine is not None:
            file.problem = file.problem or failure.message
        return None
    return _finished(file, reader)


def _tapped(pieces: Iterable[bytes], file: ImageFile, reader: DynamicReader) -> Iterator[bytes]:
    """Pass the pieces on, and feed them to the reader."""
    for piece in pieces:
        if file.problem is None:
            try:
                reader.feed(piece)
                file.elf = file.elf or reader.found
            except DamagedElf as error:
                file.problem = str(error)
        yield piece


def _finished(file: ImageFile, reader: DynamicReader) -> DynamicReader | None:
    if file.problem is not None:
        return None
    try:
        file.elf = reader.finish()
    except DamagedElf as error:
        file.problem = str(error)
        return None
    return None if file.elf is not None else reader


def _read_again(file: ImageFile, reader: DynamicReader, pieces: Iterable[bytes]) -> bool:
    """Feed a file once more; False if it must be read yet again."""
    for _ in _tapped(pieces, file, reader):
        pass
    return _finished(file, reader) is None


def _apply(tree: ImageTree, layer: _Layer, number: int) -> None:
    for path in layer.opaque:
        tree.opaque(path)
    for path in layer.whiteouts:
        tree.whiteout(path)
    for path, node in layer.nodes:
        if isinstance(node, _HardLink):
            tree.hard_link(path, node.target, number)
        else:
            tree.add(path, node)


def _makers(image: Image) -> list[str]:
    """The command that made each layer, if the history matches the layers."""
    listed = image.config.get("history")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    made = [str(row.get("created_by", "")) for row in rows if not row.get("empty_layer")]
    return made if len(made) == len(image.layers) else [""] * len(image.layers)


def _pieces(content: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: content.read(PIECE_BYTES), b"")


def _heard(pieces: Iterable[bytes], on_bytes: OnBytes) -> Iterator[bytes]:
    for piece in pieces:
        on_bytes(len(piece))
        yield piece


def _first(pieces: Iterable[bytes], limit: int) -> bytes:
    found = bytearray()
    for piece in pieces:
        found += piece
        if len(found) >= limit:
            break
    return bytes(found[:limit])


def _absolute(name: str) -> str:
    return "/" + "/".join(part for part in name.split("/") if part not in ("", "."))
