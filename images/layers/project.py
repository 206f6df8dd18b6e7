"""The layer of a user's own files: read from the disk when it is written, never held as a whole.

Whatever a checkout does to files is left out: owners, times and all modes but whether a file can be
run. Files may be large, so that the pinned compressor of the bases makes the gzip members.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from images.layers.own import key_of, ordered
from images.layers.own_errors import ProjectFilesError
from images.layers.tar import END, TarEntry, header, padding, parents
from images.oci.model import LAYER_GZIP
from images.oci.sources import Stream, Unpacked
from images.text.printable import printable
from images.wheels.remote_file import Wheel

FORMAT = 1
"""Part of every key here: raise it when the bytes for the same files change."""

_LEVEL = 6
_MEMBER_BYTES = 1 << 20
_READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFile:
    """A file of the layer: `path` in the image ("app/main.py"), where it is read from, its size in
    bytes, its sha256 in hex, and whether it can be run.
    """

    path: str
    source: Path
    size: int
    sha256: str
    runs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectLayer:
    """`files` are on the disk, `entries` in memory: links, and what we write beside the files."""

    media_type: ClassVar[str] = LAYER_GZIP
    title: str
    created_by: str
    files: tuple[DiskFile, ...]
    entries: tuple[TarEntry, ...] = ()
    wheels: tuple[Wheel, ...] = ()

    @property
    def key(self) -> str:
        """A digest of all that the layer's bytes depend on."""
        return key_of(
            "project",
            FORMAT,
            tuple(sorted((one.path, one.runs, one.sha256) for one in self.files)),
            tuple(
                (one.path, one.kind, one.mode, one.target, hashlib.sha256(one.content).hexdigest())
                for one in ordered(self.entries)
            ),
        )

    @property
    def about_bytes(self) -> int:
        """The size of the contents; compressed, it is less."""
        return sum(one.size for one in self.files)

    def stream(self, known: Unpacked | None) -> Stream:
        """Generate it; `known` saves nothing. ProjectFilesError: a file has changed since it was
        listed.
        """
        import deflate

        del known
        digest, size = hashlib.sha256(), 0
        for member in _members(self._tar()):
            digest.update(member)
            size += len(member)
            yield bytes(deflate.gzip_compress(member, _LEVEL))
        return Unpacked(diff_id=f"sha256:{digest.hexdigest()}", size=size)

    def _tar(self) -> Iterator[bytes]:
        on_disk = {one.path: one for one in self.files}
        written: set[str] = set()
        for entry in ordered((*map(_entry, self.files), *self.entries)):
            for parent in parents(entry.path):
                if parent not in written:
                    written.add(parent)
                    yield header(parent, kind="dir", mode=0o755)
            if entry.kind == "dir":
                written.add(entry.path)
            file = on_disk.get(entry.path)
            if file is None:
                yield entry.header
                yield entry.content
                yield padding(len(entry.content))
            else:
                yield header(file.path, kind="file", mode=entry.mode or 0o644, size=file.size)
                yield from _content(file)
                yield padding(file.size)
        yield END


def sha256_of(path: Path) -> tuple[str, int]:
    """The sha256 of a file in hex, and its size in bytes. OSError: it cannot be read."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
            size += len(piece)
    return digest.hexdigest(), size


def _entry(file: DiskFile) -> TarEntry:
    return TarEntry(path=file.path, mode=0o755 if file.runs else 0o644)


def _content(file: DiskFile) -> Iterator[bytes]:
    digest, left = hashlib.sha256(), file.size
    try:
        with file.source.open("rb") as stream:
            while left and (piece := stream.read(min(left, _READ_BYTES))):
                digest.update(piece)
                left -= len(piece)
                yield piece
            grown = bool(stream.read(1))
    except OSError as error:
        raise _changed(file, error.strerror or "it cannot be read") from error
    if left or grown or digest.hexdigest() != file.sha256:
        raise _changed(file, "its content is another one")


def _changed(file: DiskFile, why: str) -> ProjectFilesError:
    return ProjectFilesError(
        f"{printable(str(file.source), limit=200)} changed during the build: {why}.",
        fix="Build again when nothing writes to the project. What a program writes there can be "
        "left out of the image: name it in .dockerignore",
    )


def _members(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Collect the tar's parts; each result becomes one gzip member."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= _MEMBER_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
