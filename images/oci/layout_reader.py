"""Reads images from an untrusted layout: checks everything, and follows no link out of it.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from images.errors import Failure
from images.oci.blobfiles import read_pieces
from images.oci.errors import ImagePlaceError, ImageUnreadableError
from images.oci.image_reader import (
    ImageParts,
    ParsedManifest,
    children_of,
    choose,
    parse_manifest,
    read_image,
    read_manifest,
    small_file,
)
from images.oci.inflate import ANEW_FIX
from images.oci.model import (
    INDEX,
    INDEXES,
    MANIFESTS,
    REF_NAME,
    Descriptor,
    Platform,
    read_descriptors,
    read_object,
    to_bytes,
)
from images.oci.sources import Image

MARK_FILE, INDEX_FILE = "oci-layout", "index.json"
VERSION = b'{"imageLayoutVersion":"1.0.0"}'
CONTAINERD_NAME = "io.containerd.image.name"
_MOST_INDEX_BYTES = 64 << 20


class LayoutParts:
    """The blobs of a layout."""

    def __init__(self, root: Path, shown: str) -> None:
        self._root = root
        self.shown = shown

    def origin(self) -> tuple[str | None, str | None]:
        return None, None

    def small(self, blob: Descriptor) -> bytes:
        return small_file(lambda: self.stream(blob), blob.size)

    def stream(self, blob: Descriptor) -> Generator[bytes, None, None]:
        return read_pieces(self._open(blob))

    def check(self, blob: Descriptor) -> None:
        """Refuse a missing or truncated blob before it is needed."""
        with self._open(blob) as file:
            size = os.fstat(file.fileno()).st_size
        if size != blob.size:
            raise ImageUnreadableError(
                f"{self.shown}: {blob.digest} has {size} bytes instead of {blob.size}.",
                fix=ANEW_FIX,
            )

    def _open(self, blob: Descriptor) -> IO[bytes]:
        path = self._root / "blobs/sha256" / blob.hex
        try:
            return open_inside(self._root, path)
        except OSError as error:
            why = "is not there" if isinstance(error, FileNotFoundError) else str(error.strerror)
            raise ImageUnreadableError(
                f"{self.shown}: the blob {blob.digest} {why}.", fix=ANEW_FIX
            ) from error


def open_inside(root: Path, path: Path) -> IO[bytes]:
    """Open a regular file of a layout; refuses links that lead out of it."""
    real = os.path.realpath(path)
    if not real.startswith(os.path.realpath(root) + os.sep):
        raise ImageUnreadableError(f"{path} is a link that leads out of {root}.", fix=ANEW_FIX)
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise ImageUnreadableError(f"{path} is not a regular file.", fix=ANEW_FIX)
    return file


def check_mark(root: Path) -> None:
    """Refuse what is not a layout, and a layout of another version."""
    try:
        content = _read(root, MARK_FILE)
    except OSError as error:
        raise ImagePlaceError(
            f"{root} is not an OCI image layout: it has no file {MARK_FILE}.",
            fix="Name the directory that holds oci-layout, index.json and blobs.",
        ) from error
    version = read_object(content, f"{root / MARK_FILE}").get("imageLayoutVersion")
    if version != "1.0.0":
        raise ImageUnreadableError(
            f"{root} is a layout of version {str(version)[:40]!r}; 1.0.0 was needed.", fix=ANEW_FIX
        )


def read_index(root: Path) -> dict[str, Any]:
    """Read a layout's index; its "manifests" is a list."""
    where = str(root / INDEX_FILE)
    try:
        index = read_object(_read(root, INDEX_FILE), where)
    except FileNotFoundError as error:
        raise ImageUnreadableError(f"{where} is not there.", fix=ANEW_FIX) from error
    if not isinstance(index.get("manifests"), list):
        raise ImageUnreadableError(f"{where} lists no manifests.", fix=ANEW_FIX)
    return index


def _read(root: Path, name: str) -> bytes:
    content = small_file(lambda: read_pieces(open_inside(root, root / name)), _MOST_INDEX_BYTES)
    if len(content) > _MOST_INDEX_BYTES:
        raise ImageUnreadableError(
            f"{root / name} has more than {_MOST_INDEX_BYTES} bytes.", fix=ANEW_FIX
        )
    return content


def open_layout(path: Path, name: str | None = None, platform: Platform | None = None) -> Image:
    """Open an image of a layout: the one with that name, or the only one. ImagePlaceError: it is
    not a layout, or has no such image. ImageUnreadableError: it is damaged or cannot be read.
    """
    root = path.absolute()
    shown = f"oci:{path}{f':{name}' if name else ''}"
    try:
        check_mark(root)
        entries = read_descriptors(read_index(root)["manifests"], f"{root / INDEX_FILE}: manifests")
    except OSError as error:
        raise ImageUnreadableError(
            f"{root} cannot be read: {error.strerror or error}.", fix=f"See: ls -l {root}"
        ) from error
    parts = LayoutParts(root, shown)
    found = choose(parts, pick(parts, entries, name), platform)
    for blob in read_descriptors(found.document.get("layers"), f"{shown}: its layers"):
        parts.check(blob)
    return read_image(parts, found, platform)


def names_in(path: Path) -> tuple[str, ...]:
    """The names of a layout's images; empty if it is not a readable layout."""
    root = path.absolute()
    try:
        return all_names(read_descriptors(read_index(root)["manifests"], str(root)))
    except (Failure, OSError):
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutEntry:
    """A name of a layout: all blobs that it needs, by digest, with their sizes; and when it was
    written, in seconds since the epoch (None: its manifest is not there).
    """

    blobs: Mapping[str, int]
    created: float | None


def layout_images(path: Path) -> dict[str, LayoutEntry]:
    """The names of a layout; empty if it is not a readable layout. Several entries with one name
    are one image for several platforms.
    """
    root = path.absolute()
    try:
        entries = read_descriptors(read_index(root)["manifests"], str(root))
    except (Failure, OSError):
        return {}
    parts = LayoutParts(root, str(root))
    return {
        name: _entry(root, parts, [one for one in entries if name in names_of(one)[:1]])
        for name in all_names(entries)
    }


def _entry(root: Path, parts: LayoutParts, entries: Sequence[Descriptor]) -> LayoutEntry:
    times = []
    for one in entries:
        with contextlib.suppress(OSError):
            times.append((root / "blobs/sha256" / one.hex).stat().st_mtime)
    try:
        blobs = needed_blobs(parts, entries)
    except Failure:
        blobs = {one.digest: one.size for one in entries}
    return LayoutEntry(blobs=blobs, created=max(times, default=None))


def needed_blobs(parts: ImageParts, entries: Sequence[Descriptor]) -> dict[str, int]:
    """All blobs that images need, by digest, with their sizes. ImageUnreadableError: a manifest of
    theirs is missing or damaged.
    """
    needed: dict[str, int] = {}
    waiting = list(entries)
    while waiting:
        blob = waiting.pop()
        if blob.digest in needed:
            continue
        needed[blob.digest] = blob.size
        if blob.media_type in INDEXES | MANIFESTS:
            waiting += children_of(read_manifest(parts, blob).document, parts.shown)
    return needed


def pick(parts: ImageParts, entries: Sequence[Descriptor], name: str | None) -> ParsedManifest:
    """Pick an image's manifest from an index's entries. Entries with one name, or all without
    names, may be the image for several platforms.
    """
    named = entries if name is None else [one for one in entries if name in names_of(one)]
    if not named:
        known = ", ".join(all_names(entries)) or ("images without names" if entries else "none")
        raise ImagePlaceError(
            f"{parts.shown} is not there; the images here are: {known}.",
            fix="Name one of them: oci:DIR:NAME",
        )
    different = {one.digest: one for one in named}
    if len(different) == 1:
        return read_manifest(parts, named[0])
    platforms = [str(one.platform) for one in different.values() if one.platform]
    one_image = name is not None or not all_names(named)
    if not one_image or len(set(platforms)) != len(different):
        raise ImagePlaceError(
            f"{parts.shown} has several images: {', '.join(all_names(named)) or len(different)}.",
            fix="Choose one: oci:DIR:NAME",
        )
    index = {"manifests": [one.to_json() for one in different.values()]}
    return parse_manifest(to_bytes(index), INDEX, parts.shown)


def names_of(entry: Descriptor) -> tuple[str, ...]:
    """The names that an index has for an image."""
    found = (entry.annotations.get(REF_NAME), entry.annotations.get(CONTAINERD_NAME))
    return tuple(dict.fromkeys(name for name in found if name))


def all_names(entries: Sequence[Descriptor]) -> tuple[str, ...]:
    """The first name of each image in an index."""
    return tuple(sorted({names_of(one)[0] for one in entries if names_of(one)}))
