"""A file by its content: its sha256, and the state that the file had while it was hashed.

Any change alters the state, since nobody but root can set the time of the last change (ctime). A
write through a mapping (mmap) alters it if the page was clean, which is why a file is synced before
it is hashed; on tmpfs it never does, and the server of a FUSE file system may show any time.
Measured with ext4 and Linux 6.18. Runs on nodes, with Python 3.8.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from images.errors import Failure

_PIECE_BYTES = 1 << 20


class FileState(NamedTuple):
    """What `stat` says of a file that shows whether it was changed or replaced; times in ns."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


class HashedFile(NamedTuple):
    """A file, its digest ("sha256:..."), and its state when it had this digest."""

    path: Path
    digest: str
    state: FileState


class FileChangedError(Failure):
    """A file was changed or replaced while it was used: what was read is not known."""

    code = "file-changed"
    exit_code = 7


def state_of(file: FileIO) -> FileState:
    """The state of an open file. A network file system asks its server when a file is opened."""
    status = os.fstat(file.fileno())
    return FileState(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


def hash_open_file(
    file: FileIO, path: Path, on_bytes: Callable[[int], None] = lambda _: None
) -> HashedFile:
    """Hash a file that was opened just now, named `path`. `on_bytes` is called with how many more
    bytes were hashed, and may raise. FileChangedError: it was changed meanwhile; OSError: it cannot
    be read.
    """
    state = state_of(file)
    with contextlib.suppress(OSError):  # not every file system syncs
        os.fsync(file.fileno())
    digest = hashlib.sha256()
    piece = memoryview(bytearray(_PIECE_BYTES))
    while True:
        count = file.readinto(piece)
        if not count:
            break
        digest.update(piece[:count])
        on_bytes(count)
    if state_of(file) != state:
        raise changed(path)
    return HashedFile(path, f"sha256:{digest.hexdigest()}", state)


def hash_file(path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> HashedFile:
    """Hash a file, as `hash_open_file` does."""
    with path.open("rb", buffering=0) as file:
        return hash_open_file(file, path, on_bytes)


def check_unchanged(hashed: HashedFile) -> None:
    """FileChangedError: what the path names is no longer in the state in which it was hashed."""
    try:
        with hashed.path.open("rb", buffering=0) as file:
            now = state_of(file)
    except OSError as error:
        raise changed(hashed.path) from error
    if now != hashed.state:
        raise changed(hashed.path)


def changed(path: Path) -> FileChangedError:
    """The error for a file that was changed while it was used."""
    return FileChangedError(
        f"{path} was changed or replaced while it was used, so nothing is proven about it.",
        fix="Repeat the command when nothing writes the file any more. Write new versions under "
        "another name, and rename them.",
    )
