"""Applies the layers of an image to a directory, as a user who may do nothing special.

The tree is for running from, not for keeping an image: everything belongs to us, and what only root
could make is left out (devices, other owners, file capabilities and other extended attributes), as
are the bits that change who one is. Everything can be read and removed by us. Times are not kept.

https://github.com/opencontainers/image-spec/blob/main/layer.md (whiteouts)
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from images.engines.sandbox.ahead import ahead
from images.engines.sandbox.errors import RootSpaceError
from images.engines.sandbox.tree import RootTree, names_in
from images.oci.errors import ImageUnreadableError
from images.oci.inflate import ANEW_FIX
from images.oci.sources import ImageLayer
from images.oci.tarstream import layer_tar, members

MOST_MEMBERS = 5_000_000
"""Of all layers together; the largest images that people have made hold a tenth of that."""

_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_PIECE = 1 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Parts = tuple[bytes, ...]

# What a container finds in every root and an image need not bring; engines make the same ones.
_MOUNT_DIRECTORIES = ("dev", "proc", "sys", "tmp", "run", "var/tmp", "root", "usr/local/nvidia")
_MOUNT_FILES = ("etc/hosts", "etc/hostname", "etc/resolv.conf")


def unpack(layers: Iterable[ImageLayer], root: Path, on_bytes: Callable[[int], None]) -> None:
    """Unpack layers over each other into the empty directory `root`.

    `on_bytes` hears how many more bytes of the layers, as they are stored, have been read. What is
    in `root` after an error is of no use.
    """
    left = MOST_MEMBERS
    try:
        with RootTree(root) as tree:
            for layer in layers:
                left -= _apply(tree, _counted(layer, on_bytes), left)
            _add_mount_points(tree)
    except OSError as error:
        if error.errno in _FULL:
            raise root_space(root) from error
        raise


def root_space(directory: Path, needed: int | None = None) -> RootSpaceError:
    """Say how full the disk of a directory is."""
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    what = f"about {needed / 1e9:.1f} GB" if needed else "more"
    return RootSpaceError(
        f"Unpacking the image needs {what}, and {directory} has {free / 1e9:.1f} GB free.",
        fix=f"Free space (df -h {directory}), keep the cache on another disk (XDG_CACHE_HOME), "
        "or leave the verification out: --no-verify",
    )


def _counted(layer: ImageLayer, on_bytes: Callable[[int], None]) -> ImageLayer:
    def stream() -> Generator[bytes, None, None]:
        with contextlib.closing(layer.stream()) as pieces:
            for piece in pieces:
                yield piece
                on_bytes(len(piece))

    return replace(layer, stream=stream)


def _apply(tree: RootTree, layer: ImageLayer, most: int) -> int:
    """Apply one layer; gives how many members it had."""
    made: set[Parts] = set()  # by this layer, for the whiteouts, which mean the lower ones
    count = 0
    shown = f"The layer {layer.diff_id[:19]}"
    with (
        contextlib.closing(ahead(layer_tar(layer))) as tar,
        contextlib.closing(members(tar, shown)) as found,
    ):
        for member, content in found:
            count += 1
            if count > most:
                raise ImageUnreadableError(
                    f"The image has more than {MOST_MEMBERS} files.", fix=ANEW_FIX
                )
            parts = _parts(member.name)
            if not parts:
                continue
            try:
                _apply_member(tree, member, content, parts, made)
            except OSError as error:
                if error.errno in _FULL:
                    raise
                raise ImageUnreadableError(
                    f"{member.name[:200]!r} of the layer {layer.diff_id[:19]} cannot be unpacked: "
                    f"{error.strerror}.",
                    fix=ANEW_FIX,
                ) from error
    return count


def _parts(name: str) -> Parts:
    """A member's name as one walks it; names that lead out are refused, as engines do."""
    parts: list[bytes] = []
    for part in name.encode("utf-8", "surrogateescape").split(b"/"):
        if part in {b"", b"."}:
            continue
        if part == b"..":
            raise ImageUnreadableError(
                f"A layer has a file named {name[:200]!r}, which leads out of the image.",
                fix="Do not use this image: no honest tool makes such a name.",
            )
        parts.append(part)
    return tuple(parts)


def _apply_member(
    tree: RootTree,
    member: tarfile.TarInfo,
    content: IO[bytes] | None,
    parts: Parts,
    made: set[Parts],
) -> None:
    name = parts[-1]
    if name.startswith(_WHITEOUT):
        _white_out(tree, parts, made)
        return
    if member.isdir():
        _make_directory(tree, parts, member.mode)
    elif content is not None:
        _make_file(tree, parts, member.mode, content)
    elif member.issym():
        parent = _cleared(tree, parts)
        os.symlink(member.linkname.encode("utf-8", "surrogateescape"), name, dir_fd=parent)
    elif member.islnk():
        _link(tree, parts, _parts(member.linkname))
    else:  # a device or a pipe
        return
    while parts and parts not in made:  # with the directories that it lies in
        made.add(parts)
        parts = parts[:-1]


def _white_out(tree: RootTree, parts: Parts, made: set[Parts]) -> None:
    """Remove what lower layers have there; what this layer has made stays, in whatever order."""
    parent, name = parts[:-1], parts[-1]
    if name == _OPAQUE:
        if tree.kind((*parent, b".")) == stat.S_IFDIR:
            _empty(tree, parent, made)
        return
    hidden = name[len(_WHITEOUT) :]
    if hidden.startswith(_WHITEOUT):  # aufs's own notes
        return
    if hidden in {b"", b".", b".."}:
        raise ImageUnreadableError(
            f"A layer has a whiteout that names nothing: {name!r}.", fix=ANEW_FIX
        )
    if (*parent, hidden) not in made:
        tree.remove((*parent, hidden))


def _empty(tree: RootTree, directory: Parts, made: set[Parts]) -> None:
    """Remove all of a directory but what this layer has made, wherever below it that is."""
    for name in names_in(tree.directory(directory)):
        entry = (*directory, name)
        if entry not in made:
            tree.remove(entry)
        elif tree.kind(entry) == stat.S_IFDIR:
            _empty(tree, entry, made)


def _cleared(tree: RootTree, parts: Parts) -> int:
    """The open directory that an entry is to be made in, with nothing in its place."""
    parent = tree.directory(parts[:-1])
    try:
        os.unlink(parts[-1], dir_fd=parent)
    except FileNotFoundError:
        return parent
    except IsADirectoryError:
        tree.remove_in(parent, parts[-1])
    else:
        tree.forget()  # it may have been a link on the way to something that is open
    return tree.directory(parts[:-1])


def _make_directory(tree: RootTree, parts: Parts, mode: int) -> None:
    parent = tree.directory(parts[:-1])
    if tree.kind(parts) != stat.S_IFDIR:
        parent = _cleared(tree, parts)
        os.mkdir(parts[-1], 0o700, dir_fd=parent)
    sticky = mode & stat.S_ISVTX
    os.chmod(parts[-1], (mode & 0o777) | sticky | 0o700, dir_fd=parent)


def _make_file(tree: RootTree, parts: Parts, mode: int, content: IO[bytes]) -> None:
    try:
        opened = os.open(parts[-1], _NEW_FILE, 0o600, dir_fd=tree.directory(parts[:-1]))
    except FileExistsError:
        opened = os.open(parts[-1], _NEW_FILE, 0o600, dir_fd=_cleared(tree, parts))
    try:
        while piece := content.read(_PIECE):
            _write_all(opened, piece)
        os.fchmod(opened, (mode & 0o777) | 0o600)
    finally:
        os.close(opened)


def _write_all(opened: int, piece: bytes) -> None:
    written = os.write(opened, piece)
    while written < len(piece):
        written += os.write(opened, piece[written:])


def _link(tree: RootTree, parts: Parts, target: Parts) -> None:
    if not target or tree.kind(target) in {None, stat.S_IFDIR}:
        shown = b"/".join(target).decode("utf-8", "backslashreplace")
        raise ImageUnreadableError(
            f"A layer links a file to {shown[:200]!r}, and there is no such file.", fix=ANEW_FIX
        )
    if target == parts:
        return
    _cleared(tree, parts)
    source = tree.directory(target[:-1], make=False)
    with _held(source) as held:
        os.link(
            target[-1],
            parts[-1],
            src_dir_fd=held,
            dst_dir_fd=tree.directory(parts[:-1]),
            follow_symlinks=False,
        )


@contextlib.contextmanager
def _held(descriptor: int) -> Iterator[int]:
    """A descriptor that stays open while its tree opens others."""
    held = os.dup(descriptor)
    try:
        yield held
    finally:
        os.close(held)


def _add_mount_points(tree: RootTree) -> None:
    """Make the places that the sandbox mounts something on; what an image has there is left."""
    for path in _MOUNT_DIRECTORIES:
        with contextlib.suppress(OSError, ImageUnreadableError):
            tree.directory(tuple(path.encode().split(b"/")))
    for path in _MOUNT_FILES:
        parts = tuple(path.encode().split(b"/"))
        with contextlib.suppress(OSError, ImageUnreadableError):
            if tree.kind(parts) is None:
                os.close(os.open(parts[-1], _NEW_FILE, 0o644, dir_fd=tree.directory(parts[:-1])))
