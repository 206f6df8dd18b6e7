"""A file being written into the store: under another name, and hashed on the way.

Its writer holds a lock on it. A killed writer leaves the file behind, and the next one resumes
where it stopped: the content does not count before the digest of the whole file matches.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from images.errors import DiskFullError
from images.store.errors import (
    ELSEWHERE_FIX,
    CalledOffError,
    StoreUnusableError,
    in_units,
)
from images.store.locks import NoLocks, try_lock

PIECE_BYTES = 1 << 20
STALLED_S = 300.0
"""How long to wait for another writer whose file does not grow: longer means that it hangs."""
_LOOK_S = 0.05
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class IncomingFile:
    """A growing file, not trusted before its digest is verified."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.size = 0
        self.resumed = 0
        """The number of bytes that an earlier process left."""
        self._descriptor = descriptor
        self._sha256 = hashlib.sha256()

    @property
    def hex(self) -> str:
        return self._sha256.hexdigest()

    def take_up(self) -> None:
        """Hash the existing content, to append to it."""
        for piece in read_pieces(self._descriptor):
            self._sha256.update(piece)
            self.size += len(piece)
        self.resumed = self.size

    def write(self, piece: bytes) -> None:
        with storing(self.path.parent, len(piece)):
            view = memoryview(piece)
            while view:
                # near a full disk a write may take only a part
                view = view[os.write(self._descriptor, view) :]
        self._sha256.update(piece)
        self.size += len(piece)

    def restart(self) -> None:
        """Drop the content."""
        with storing(self.path.parent, 0):
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._sha256 = hashlib.sha256()
        self.size = self.resumed = 0

    def sync(self) -> None:
        """Flush the content to disk, so that a power cut cannot lose it after the rename."""
        with storing(self.path.parent, self.size):
            os.fsync(self._descriptor)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()


@contextlib.contextmanager
def receiving(
    path: Path,
    *,
    is_there: Callable[[], bool],
    on_wait: Callable[[int], None],
    called_off: Callable[[], bool] = lambda: False,
) -> Iterator[IncomingFile | None]:
    """Yield the file to write; None if another process or thread has finished it meanwhile.

    While another one writes it, `on_wait` is called repeatedly with its size in bytes.
    """
    descriptor, place = _claim(path, is_there, on_wait, called_off)
    if descriptor is None:
        yield None
        return
    try:
        incoming = IncomingFile(place, descriptor)
        incoming.take_up()
        yield incoming
    finally:
        os.close(descriptor)


def _claim(
    path: Path,
    is_there: Callable[[], bool],
    on_wait: Callable[[int], None],
    called_off: Callable[[], bool],
) -> tuple[int | None, Path]:
    seen, since = -1, time.monotonic()
    while not is_there():
        try:
            descriptor, size = _try(path, is_there)
        except NoLocks:
            path.unlink(missing_ok=True)
            return _claim_own(path)
        if descriptor is not None:
            return descriptor, path
        if size is not None:
            on_wait(size)
            if size != seen:
                seen, since = size, time.monotonic()
            elif time.monotonic() - since > STALLED_S:
                return _claim_own(path)
        if called_off():
            raise CalledOffError("The download was cancelled.", fix="Build again.")
        time.sleep(_LOOK_S)
    return None, path


def _try(path: Path, is_there: Callable[[], bool]) -> tuple[int | None, int | None]:
    """Open and lock the file; if another writer has the lock, return the size instead."""
    with contextlib.ExitStack() as stack:
        with storing(path.parent, 0):
            descriptor = _open(path)
        stack.callback(os.close, descriptor)
        if not try_lock(descriptor):
            return None, os.fstat(descriptor).st_size
        if is_there():  # finished between our check and our lock
            path.unlink(missing_ok=True)
        elif _is(path, descriptor):
            stack.pop_all()
            return descriptor, None
    return None, None


def _claim_own(path: Path) -> tuple[int, Path]:
    """Open a file that only this process writes, because the lock does not help."""
    own = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    with storing(path.parent, 0):
        return _open(own), own


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.open(path, flags, 0o600)


def _is(path: Path, descriptor: int) -> bool:
    """Whether the path still is the file that we locked: its writer may have renamed it."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def read_pieces(descriptor: int) -> Generator[bytes, None, None]:
    """Read an open file to its end."""
    while piece := os.read(descriptor, PIECE_BYTES):
        yield piece


@contextlib.contextmanager
def storing(directory: Path, needed: int) -> Iterator[None]:
    """Turn an OSError of the disk into DiskFullError or StoreUnusableError."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise full(directory, needed, error.errno) from error
        raise StoreUnusableError(
            f"The store {directory} cannot be written: {error.strerror or error}.",
            fix=ELSEWHERE_FIX,
        ) from error


def full(directory: Path, needed: int, reason: int = errno.ENOSPC) -> DiskFullError:
    """The error for a full disk, an exceeded quota or a file too large."""
    limits = {errno.EDQUOT: "your quota", errno.EFBIG: "the largest size of a file"}
    short = limits.get(reason, f"{in_units(free_bytes(directory))} free")
    return DiskFullError(
        f"The store {directory} has no room: {in_units(needed)} more are needed, and it "
        f"has {short}.",
        fix="Free space: provision store gc --max-size 5GB; or keep the store on a larger disk: "
        "XDG_CACHE_HOME=DIRECTORY provision ...",
    )


def free_bytes(directory: Path) -> int:
    """The free bytes on the directory's disk; 0 if unknown."""
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return 0
