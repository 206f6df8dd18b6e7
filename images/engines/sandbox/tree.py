"""A directory that hostile names cannot escape.

Every name is resolved from the directory's descriptor, one component at a time, and the kernel
never follows a link (O_NOFOLLOW). Links are read and resolved here, with the directory as root, as
for programs that run in it. So an untrusted name is never passed to the kernel as a path, and a
mistake in this code is an error, not a file somewhere on the host.

Names are bytes: a layer may have any, whatever this host's locale.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import OrderedDict, deque
from pathlib import Path

from images.oci.errors import ImageUnreadableError
from images.oci.inflate import ANEW_FIX

_MOST_LINKS = 40
"""The kernel's limit."""
_MOST_DEPTH = 200
"""Deeper trees are made only to break programs that walk them."""
_KEPT_OPEN = 32
_NO_DIRECTORY = frozenset({errno.ENOTDIR, errno.ELOOP})
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RootTree:
    """The tree under `root`, which no other process may change meanwhile. Directories are created
    as needed, with modes that let their owner remove them.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _DIRECTORY)
        self._open: OrderedDict[tuple[bytes, ...], int] = OrderedDict()

    def __enter__(self) -> RootTree:  # noqa: PYI034  Self is newer than our oldest Python
        return self

    def __exit__(self, *error: object) -> None:
        self.forget()
        os.close(self._root)

    def forget(self) -> None:
        """Close the cached descriptors: after a removal their paths may lead elsewhere."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def directory(self, parts: tuple[bytes, ...], *, make: bool = True) -> int:
        """Open a directory; the descriptor belongs to this tree, and is valid until the next call.

        Without `make`, a missing directory raises FileNotFoundError.
        """
        if not parts:
            return self._root
        found = self._open.get(parts)
        if found is None:
            found = self._walk(parts, make=make)
            self._open[parts] = found
            if len(self._open) > _KEPT_OPEN:
                os.close(self._open.popitem(last=False)[1])
        return found

    def _walk(self, parts: tuple[bytes, ...], *, make: bool) -> int:
        todo = deque(parts)
        way = [os.dup(self._root)]
        links = 0
        try:
            while todo:
                part = todo.popleft()
                if part in {b"", b"."}:
                    continue
                if part == b"..":  # only from a link; above the root is the root
                    if len(way) > 1:
                        os.close(way.pop())
                    continue
                try:
                    following = os.open(part, _DIRECTORY, dir_fd=way[-1])
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(part, 0o755, dir_fd=way[-1])
                    os.chmod(part, 0o755, dir_fd=way[-1])  # noqa: S103  umask
                    following = os.open(part, _DIRECTORY, dir_fd=way[-1])
                except OSError as error:
                    if error.errno not in _NO_DIRECTORY:
                        raise
                    links += 1
                    target = _read_link(part, way[-1])
                    if links > _MOST_LINKS:
                        raise _too_much(f"more than {_MOST_LINKS} links", parts) from error
                    if target.startswith(b"/"):
                        while len(way) > 1:
                            os.close(way.pop())
                    todo.extendleft(reversed(target.split(b"/")))
                    continue
                way.append(following)
                if len(way) > _MOST_DEPTH:
                    raise _too_much(f"more than {_MOST_DEPTH} directories", parts)
            return way.pop()
        finally:
            for descriptor in way:
                os.close(descriptor)

    def status(self, parts: tuple[bytes, ...]) -> os.stat_result | None:
        """The status of an entry, without following a link; None if it is missing."""
        try:
            parent = self.directory(parts[:-1], make=False)
            return os.lstat(parts[-1], dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def kind(self, parts: tuple[bytes, ...]) -> int | None:
        """The type of an entry (`stat.S_IFMT`), without following a link; None if it is missing."""
        found = self.status(parts)
        return None if found is None else stat.S_IFMT(found.st_mode)

    def remove(self, parts: tuple[bytes, ...]) -> None:
        """Remove an entry and all that is below it; removes a link itself, not its target."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            parent = self.directory(parts[:-1], make=False)
            self.remove_in(parent, parts[-1])

    def remove_in(self, parent: int, name: bytes) -> None:
        """Remove an entry of an open directory."""
        try:
            os.unlink(name, dir_fd=parent)
        except IsADirectoryError:
            keep = os.dup(parent)  # `forget` may close the caller's
            try:
                self.forget()
                _remove_directory(keep, name)
            finally:
                os.close(keep)


def names_in(directory: int) -> list[bytes]:
    """The entries of an open directory."""
    return [os.fsencode(name) for name in os.listdir(directory)]


def _remove_directory(parent: int, name: bytes) -> None:
    opened = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        for entry in names_in(opened):
            if stat.S_ISDIR(os.lstat(entry, dir_fd=opened).st_mode):
                _remove_directory(opened, entry)
            else:
                os.unlink(entry, dir_fd=opened)
    finally:
        os.close(opened)
    os.rmdir(name, dir_fd=parent)


def _read_link(name: bytes, parent: int) -> bytes:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from error


def _too_much(what: str, parts: tuple[bytes, ...]) -> ImageUnreadableError:
    shown = b"/".join(parts).decode("utf-8", "backslashreplace")
    return ImageUnreadableError(
        f"A layer leads through {what} to {shown[:200]!r}.",
        fix=ANEW_FIX,
    )
