"""Reads an image from an archive: a tar of an OCI layout, or `docker save` output, old or new.

In the old format layers have no digests: they are plain tars, so each is identified by its diffID
and checked against it when it is read.
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from collections.abc import Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from images.oci.blobfiles import read_pieces
from images.oci.errors import ImagePlaceError, ImageUnreadableError
from images.oci.image_reader import (
    MOST_CONFIG_BYTES,
    check_platform,
    checked_layer,
    choose,
    diff_ids_of,
    read_image,
    small_file,
)
from images.oci.inflate import ANEW_FIX, compression_of
from images.oci.layout_reader import INDEX_FILE, MARK_FILE, pick
from images.oci.model import (
    LAYER,
    LAYER_GZIP,
    LAYER_ZSTD,
    Descriptor,
    Platform,
    digest_of,
    read_descriptors,
    read_object,
)
from images.oci.sources import Image, ImageLayer
from images.oci.tarstream import scan

DOCKER_FILE = "manifest.json"
_MOST_MEMBERS = 100_000
_MOST_LINKS = 8
_TYPES = {"": LAYER, "gzip": LAYER_GZIP, "zstd": LAYER_ZSTD}


class ImageArchive:
    """The members of an archive, by name."""

    def __init__(self, path: Path, shown: str) -> None:
        self._path = path
        self.shown = shown
        try:
            with path.open("rb") as file:
                if kind := compression_of(file.read(4)):
                    raise ImagePlaceError(
                        f"{path} is compressed; a plain tar was needed, of which a part can be"
                        " read without the rest.",
                        fix=f"Unpack it: {kind} --decompress {path}",
                    )
                self._members = {
                    _normal(member.name): member
                    for number, member in enumerate(scan(file, str(path)))
                    if self._within(number)
                }
        except OSError as error:
            raise ImageUnreadableError(
                f"{path} cannot be read: {error.strerror or error}.", fix=f"See: ls -l {path}"
            ) from error

    def _within(self, number: int) -> bool:
        if number >= _MOST_MEMBERS:
            raise ImageUnreadableError(
                f"{self._path} is not an image archive: it has more than {number} files.",
                fix=ANEW_FIX,
            )
        return True

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def member(self, name: str) -> tarfile.TarInfo:
        """Find a regular file; follows links within the archive."""
        at = _normal(name)
        for _ in range(_MOST_LINKS):
            found = self._members.get(at)
            if found is not None and found.isreg():
                return found
            if found is None or not (found.issym() or found.islnk()):
                break
            beside = posixpath.dirname(at) if found.issym() else ""
            at = _normal(posixpath.join(beside, found.linkname))
        raise ImageUnreadableError(f"{self._path} has no file {name!r}.", fix=ANEW_FIX)

    def read(self, name: str, most: int) -> bytes:
        member = self.member(name)
        if member.size > most:
            raise ImageUnreadableError(
                f"{self._path}: {name} has {member.size} bytes; {most} are allowed.", fix=ANEW_FIX
            )
        return b"".join(self.pieces(member))

    def pieces(self, member: tarfile.TarInfo) -> Generator[bytes, None, None]:
        file = self._path.open("rb")
        file.seek(member.offset_data)
        return read_pieces(file, member.size)

    # the `ImageParts` protocol

    def origin(self) -> tuple[str | None, str | None]:
        return None, None

    def small(self, blob: Descriptor) -> bytes:
        return small_file(lambda: self.stream(blob), blob.size)

    def stream(self, blob: Descriptor) -> Generator[bytes, None, None]:
        return self.pieces(self.member(f"blobs/sha256/{blob.hex}"))


def _normal(name: str) -> str:
    return posixpath.normpath(name).lstrip("/")


def open_archive(path: Path, name: str | None = None, platform: Platform | None = None) -> Image:
    """Open an image of an archive: the one with that name, or the only one. ImagePlaceError: it has
    no such image. ImageUnreadableError: it is damaged, or not an image archive.
    """
    shown = f"{path}{f':{name}' if name else ''}"
    archive = ImageArchive(path, shown)
    if MARK_FILE in archive and INDEX_FILE in archive:
        index = read_object(archive.read(INDEX_FILE, MOST_CONFIG_BYTES), f"{path}: its index")
        entries = read_descriptors(index.get("manifests"), f"{path}: its index")
        found = choose(archive, pick(archive, entries, name), platform)
        for blob in read_descriptors(found.document.get("layers"), f"{path}: its layers"):
            archive.member(f"blobs/sha256/{blob.hex}")
        return read_image(archive, found, platform)
    if DOCKER_FILE in archive:
        return _docker_image(archive, name, platform)
    raise ImageUnreadableError(
        f"{path} is not an image archive: it has neither {INDEX_FILE} nor {DOCKER_FILE}.",
        fix="Write one with: docker save IMAGE > FILE.tar",
    )


def _docker_image(archive: ImageArchive, name: str | None, platform: Platform | None) -> Image:
    shown = archive.shown
    # the file is a list, so it is wrapped in an object for `read_object`
    text = archive.read(DOCKER_FILE, MOST_CONFIG_BYTES)
    images = read_object(b'{"images":' + text + b"}", f"{shown}: {DOCKER_FILE}").get("images")
    entry = _pick(images, name, shown)
    paths = entry.get("Layers")
    if not isinstance(paths, list) or not all(isinstance(one, str) for one in paths):
        raise ImageUnreadableError(f"{shown}: {DOCKER_FILE} names no layers.", fix=ANEW_FIX)
    content = archive.read(str(entry.get("Config")), MOST_CONFIG_BYTES)
    config = read_object(content, f"{shown}: its configuration")
    diff_ids = diff_ids_of(config, len(paths), shown)
    image_id = digest_of(content)
    return Image(
        shown=shown,
        digest=image_id,
        image_id=image_id,
        platform=check_platform(config, platform, shown),
        layers=tuple(
            _docker_layer(archive, path, diff_id)
            for path, diff_id in zip(paths, diff_ids, strict=True)
        ),
        config=config,
    )


def _docker_layer(archive: ImageArchive, path: str, diff_id: str) -> ImageLayer:
    member = archive.member(path)
    pieces = archive.pieces(member)
    start = next(pieces, b"")
    pieces.close()
    kind = compression_of(start[:4])
    blob = Descriptor(
        media_type=_TYPES[kind],
        digest=_digest(archive, member) if kind else diff_id,
        size=member.size,
    )
    parts = _Layer(archive, member)
    return ImageLayer(blob=blob, diff_id=diff_id, stream=partial(checked_layer, parts, blob))


class _Layer:
    """One layer of the old format, by its path."""

    def __init__(self, archive: ImageArchive, member: tarfile.TarInfo) -> None:
        self._archive = archive
        self._member = member
        self.shown = archive.shown

    def origin(self) -> tuple[str | None, str | None]:
        return None, None

    def small(self, blob: Descriptor) -> bytes:
        return small_file(lambda: self.stream(blob), blob.size)

    def stream(self, blob: Descriptor) -> Generator[bytes, None, None]:
        del blob
        return self._archive.pieces(self._member)


def _digest(archive: ImageArchive, member: tarfile.TarInfo) -> str:
    digest = hashlib.sha256()
    for piece in archive.pieces(member):
        digest.update(piece)
    return f"sha256:{digest.hexdigest()}"


def _pick(images: object, name: str | None, shown: str) -> Mapping[str, Any]:
    entries = [one for one in images if isinstance(one, dict)] if isinstance(images, list) else []
    named = [one for one in entries if name is None or name in _tags(one)]
    if len(named) == 1:
        return named[0]
    known = ", ".join(sorted(tag for one in entries for tag in _tags(one))) or "images without name"
    raise ImagePlaceError(
        f"{shown} names {len(named)} images where one was needed; it has: {known}.",
        fix="Say which: docker-archive:FILE:NAME:TAG",
    )


def _tags(entry: Mapping[str, Any]) -> tuple[str, ...]:
    found = entry.get("RepoTags")
    return tuple(str(tag) for tag in found) if isinstance(found, list) else ()
