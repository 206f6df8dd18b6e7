"""Applies the layers of an image to a directory, as an unprivileged user.

The tree is for running, not for storing an image: we own everything, and what only root could
create is omitted (devices, other owners, file capabilities and other extended attributes), as are
setuid and setgid bits. We can read and remove everything. Times are not kept.

https://github.com/opencontainers/image-spec/blob/main/layer.md (whiteouts)
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from images.engines.sandbox.additions import Additions, Parts
from images.engines.sandbox.read_ahead import read_ahead
from images.engines.sandbox.tree import RootTree, names_in
from images.errors import FULL, DiskFullError
from images.oci.errors import ImageUnreadableError
from images.oci.inflate import ANEW_FIX
from images.oci.sources import ImageLayer
from images.oci.tarstream import layer_tar, members

MOST_MEMBERS = 5_000_000
"""The limit for all layers together; the largest known images have a tenth of that."""

_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_PIECE = 1 << 20
# Never through a link that a layer has put there.
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# Paths that every container needs and an image may lack; engines create the same ones.
MOUNT_DIRECTORIES = ("dev", "proc", "sys", "tmp", "run", "var/tmp", "root", "usr/local/nvidia")
MOUNT_FILES = ("etc/hosts", "etc/hostname", "etc/resolv.conf")


def unpack(
    layers: Sequence[ImageLayer], root: Path, on_bytes: Callable[[int], None]
) -> tuple[str, ...] | None:
    """Unpack layers over each other into the directory `root`: an empty one, or a tree of lower
    layers without mount points. Returns the paths that the last layer and the mount points add to
    the tree below; None if they change it in another way, too.

    `on_bytes` is called with how many more bytes of the layers, as stored, have been read. After an
    error the contents of `root` are unusable.
    """
    left = MOST_MEMBERS
    try:
        with RootTree(root) as tree:
            for layer in layers[:-1]:
                left -= _apply(tree, _counted(layer, on_bytes), left)
            additions = Additions(tree)
            for layer in layers[-1:]:
                _apply(tree, _counted(layer, on_bytes), left, additions)
            _add_mount_points(tree, additions)
            return additions.paths
    except OSError as error:
        if error.errno in FULL:
            raise root_space(root) from error
        raise


def root_space(directory: Path, needed: int | None = None) -> DiskFullError:
    """The error for a directory's disk without enough space."""
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    what = f"about {needed / 1e9:.1f} GB" if needed else "more"
    return DiskFullError(
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


def _apply(tree: RootTree, layer: ImageLayer, most: int, additions: Additions | None = None) -> int:
    """Apply one layer; returns its number of members."""
    made: set[Parts] = set()  # by this layer: its whiteouts apply only to lower layers
    count = 0
    shown = f"The layer {layer.diff_id[:19]}"
    with (
        contextlib.closing(read_ahead(layer_tar(layer))) as tar,
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
                if additions is not None:
                    _expect(additions, member, content, parts)
                _apply_member(tree, member, content, parts, made)
            except OSError as error:
                if error.errno in FULL:
                    raise
                raise ImageUnreadableError(
                    f"{member.name[:200]!r} of the layer {layer.diff_id[:19]} cannot be unpacked: "
                    f"{error.strerror}.",
                    fix=ANEW_FIX,
                ) from error
    return count


def _parts(name: str) -> Parts:
    """A member's name in components; refuses names that lead out of the root, as engines do."""
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


def _expect(
    additions: Additions, member: tarfile.TarInfo, content: IO[bytes] | None, parts: Parts
) -> None:
    """Record what a member adds, as `_apply_member` will apply it."""
    if parts[-1].startswith(_WHITEOUT):
        additions.give_up()
    elif member.isdir():
        additions.expect(parts, directory_mode=_directory_mode(member.mode))
    elif content is not None or member.issym() or member.islnk():
        additions.expect(parts)


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
    while parts and parts not in made:  # with its parent directories
        made.add(parts)
        parts = parts[:-1]


def _white_out(tree: RootTree, parts: Parts, made: set[Parts]) -> None:
    """Remove what lower layers have there; keeps what this layer created, in any order."""
    parent, name = parts[:-1], parts[-1]
    if name == _OPAQUE:
        if tree.kind((*parent, b".")) == stat.S_IFDIR:
            _empty(tree, parent, made)
        return
    hidden = name[len(_WHITEOUT) :]
    if hidden.startswith(_WHITEOUT):  # metadata of aufs
        return
    if hidden in {b"", b".", b".."}:
        raise ImageUnreadableError(
            f"A layer has a whiteout that names nothing: {name!r}.", fix=ANEW_FIX
        )
    if (*parent, hidden) not in made:
        tree.remove((*parent, hidden))


def _empty(tree: RootTree, directory: Parts, made: set[Parts]) -> None:
    """Remove everything below a directory except what this layer created."""
    for name in names_in(tree.directory(directory)):
        entry = (*directory, name)
        if entry not in made:
            tree.remove(entry)
        elif tree.kind(entry) == stat.S_IFDIR:
            _empty(tree, entry, made)


def _cleared(tree: RootTree, parts: Parts) -> int:
    """The open parent directory of an entry, after removing what is at the entry's path."""
    parent = tree.directory(parts[:-1])
    try:
        os.unlink(parts[-1], dir_fd=parent)
    except FileNotFoundError:
        return parent
    except IsADirectoryError:
        tree.remove_in(parent, parts[-1])
    else:
        tree.forget()  # it may have been a link on the path of an open directory
    return tree.directory(parts[:-1])


def _make_directory(tree: RootTree, parts: Parts, mode: int) -> None:
    parent = tree.directory(parts[:-1])
    if tree.kind(parts) != stat.S_IFDIR:
        parent = _cleared(tree, parts)
        os.mkdir(parts[-1], 0o700, dir_fd=parent)
    os.chmod(parts[-1], _directory_mode(mode), dir_fd=parent)


def _directory_mode(mode: int) -> int:
    """The mode here of a directory that has this one in a layer."""
    return (mode & 0o777) | (mode & stat.S_ISVTX) | 0o700


def _make_file(tree: RootTree, parts: Parts, mode: int, content: IO[bytes]) -> None:
    try:
        opened = os.open(parts[-1], _NEW_FILE, 0o600, dir_fd=tree.directory(parts[:-1]))
    except FileExistsError:
        opened = os.open(parts[-1], _NEW_FILE, 0o600, dir_fd=_cleared(tree, parts))
    try:
        while piece := content.read(_PIECE):
            _write_all(opened, piece)
        # not by open's mode, of which the umask takes bits
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
            # a layer's link may point anywhere on the host
            follow_symlinks=False,
        )


@contextlib.contextmanager
def _held(descriptor: int) -> Iterator[int]:
    """A duplicate of a descriptor, which stays open while the tree opens others."""
    held = os.dup(descriptor)
    try:
        yield held
    finally:
        os.close(held)


def _add_mount_points(tree: RootTree, additions: Additions) -> None:
    """Create the sandbox's mount points; keeps what an image has there."""
    for path in MOUNT_DIRECTORIES:
        parts = tuple(path.encode().split(b"/"))
        with contextlib.suppress(OSError, ImageUnreadableError):
            if not _leads_to_directory(tree, parts):
                additions.expect(parts)
                tree.directory(parts)
    for path in MOUNT_FILES:
        parts = tuple(path.encode().split(b"/"))
        with contextlib.suppress(OSError, ImageUnreadableError):
            if tree.kind(parts) is None:
                additions.expect(parts)
                os.close(os.open(parts[-1], _NEW_FILE, 0o644, dir_fd=tree.directory(parts[:-1])))


def _leads_to_directory(tree: RootTree, parts: Parts) -> bool:
    try:
        tree.directory(parts, make=False)
    except FileNotFoundError:
        return False
    return True
