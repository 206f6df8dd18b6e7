"""Reads which image a squashfs is, from the record in it, and on request its files."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import tarfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, cast

from images.engines.sandbox.mounts import mounted
from images.engines.sandbox.plan import resolve
from images.engines.sandbox.sif import squashfs_offset
from images.engines.squashfs.files import MOST_RECORD_BYTES, RECORD, read_record
from images.engines.squashfs.identity import identify
from images.oci.errors import ImageUnreadableError
from images.oci.inflate import ANEW_FIX
from images.oci.model import LAYER, Descriptor
from images.oci.sources import Image, ImageLayer, Member
from images.system.hashed_file import HashedFile, check_unchanged

Tell = Callable[[str], None]
_KINDS = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}


def is_squashfs(path: Path) -> bool:
    """Whether a file is a squashfs, or a SIF with one, by its first bytes. ImageUnreadableError: a
    SIF is damaged, or has another file system.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode) and squashfs_offset(path) is not None
    except (OSError, ValueError):
        return False


def open_squashfs(path: Path, cache: Path | None = None, tell: Tell = lambda _: None) -> Image:
    """The image that a squashfs is; the whole file is hashed, unless its digest is remembered in
    `cache`, and `tell` hears of it if it is large. MountError: this host cannot mount it;
    ImageUnreadableError: it has no record of an image; FileChangedError: it is being written.
    """
    file = _identified(path, cache, tell)
    with mounted(file.path, file.state) as tree:
        return _image_in(tree, file)


@contextlib.contextmanager
def mounted_image(
    path: Path, cache: Path | None = None, tell: Tell = lambda _: None
) -> Iterator[Image]:
    """The same, with its files as one layer, which can be read in the block."""
    file = _identified(path, cache, tell)
    with mounted(file.path, file.state) as tree:
        image = _image_in(tree, file)
        layer = ImageLayer(
            blob=Descriptor(media_type=LAYER, digest=file.digest, size=file.state.size),
            diff_id=file.digest,
            stream=_refuse_stream,
            members=partial(_members, tree, path),
        )
        yield replace(image, layers=(layer,))
    check_unchanged(file)


def _identified(path: Path, cache: Path | None, tell: Tell) -> HashedFile:
    path = path.absolute()
    try:
        return identify(path, cache, tell)
    except OSError as error:
        raise ImageUnreadableError(
            f"{path} cannot be read: {error.strerror}.",
            fix="See whether its file system is well (dmesg), or copy the file again.",
        ) from error


def _image_in(tree: Path, file: HashedFile) -> Image:
    path = file.path
    try:
        found, missing = resolve(tree, RECORD)
        content = b"" if missing else _small_file(tree / found.lstrip("/"))
    except OSError as error:
        raise _damaged(path, error) from error
    if not content:
        raise ImageUnreadableError(
            f"{path} does not say which image it is: it has no {RECORD}.",
            fix="Use a file that `provision build --output FILE.sqfs` has written; enroot and "
            "others write none.",
        )
    return read_record(content, file)


def _members(tree: Path, path: Path) -> Generator[Member, None, None]:
    """What is below a directory, as a tar has it; never follows a link."""
    names: dict[int, str] = {}
    waiting = [""]
    try:
        while waiting:
            below = waiting.pop()
            for entry in sorted(os.scandir(tree / below), key=lambda entry: entry.name):
                name = posixpath.join(below, entry.name)
                member = _member(name, entry, names)
                if member.isreg():
                    with open(entry.path, "rb") as content:  # noqa: PTH123  an entry has no open
                        yield member, cast("IO[bytes]", _Content(content, path))
                else:
                    yield member, None
                if member.isdir():
                    waiting.append(name)
    except OSError as error:
        raise _damaged(path, error) from error


class _Content:
    """A file's content; ImageUnreadableError where its blocks are damaged."""

    def __init__(self, content: IO[bytes], path: Path) -> None:
        self._content = content
        self._path = path

    def read(self, size: int = -1) -> bytes:
        try:
            return self._content.read(size)
        except OSError as error:
            raise _damaged(self._path, error) from error


def _member(name: str, entry: os.DirEntry[str], names: dict[int, str]) -> tarfile.TarInfo:
    status = entry.stat(follow_symlinks=False)
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    member.type = _KINDS.get(stat.S_IFMT(status.st_mode), tarfile.FIFOTYPE)
    if member.issym():
        member.linkname = os.readlink(entry.path)  # noqa: PTH115  it may be any text
    elif member.isreg():
        first = names.setdefault(status.st_ino, name)
        if first != name:
            member.type, member.linkname = tarfile.LNKTYPE, first
        else:
            member.size = status.st_size
    return member


def _refuse_stream() -> Generator[bytes, None, None]:
    raise NotImplementedError("a squashfs has no layer that could be sent")


def _damaged(path: Path, error: OSError) -> ImageUnreadableError:
    return ImageUnreadableError(f"{path} is damaged: {error.strerror}.", fix=ANEW_FIX)


def _small_file(file: Path) -> bytes:
    """A regular file's content; b"" if it is another kind, or too large."""
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_RECORD_BYTES:
        return b""
    return file.read_bytes()
