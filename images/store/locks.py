"""Locks between processes: flock, which the kernel releases when the holder dies.

The gate is held for moments only, shared by users of the store or exclusively by what clears it. A
lease is a file that a process keeps locked as long as it lives; its lines name what it uses. Builds
and tests are present in the cache: then nothing is removed there that has no lock of its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from images.store.errors import StoreUnusableError

GATE_PATIENCE_S = 60.0
"""Processes hold the gate for milliseconds; one that holds it longer than this hangs."""
PRESENCE = ".in-use"
_PAUSE_S = 0.01
_BUSY = {errno.EAGAIN, errno.EACCES}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}


class NoLocks(Exception):  # noqa: N818  never leaves the package
    """This file system has no locks: some network file systems have none."""


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file; False if another holds it. NoLocks: the file system has no locks."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno in _NO_LOCKS:
            raise NoLocks from error
        raise
    return True


@contextlib.contextmanager
def gate(path: Path, *, shared: bool) -> Iterator[bool]:
    """Hold the store's gate: shared to use the store, exclusively to clear it.

    Yields whether it is locked: without locks on the file system, it never is.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _wait(descriptor, path, shared=shared)
    finally:
        os.close(descriptor)


def _wait(descriptor: int, path: Path, *, shared: bool) -> bool:
    end = time.monotonic() + GATE_PATIENCE_S
    try:
        while not try_lock(descriptor, shared=shared):
            if time.monotonic() > end:
                raise StoreUnusableError(
                    f"The store {path.parent} has been locked by another process for "
                    f"{GATE_PATIENCE_S:.0f} s, far too long: that process is stopped or hangs.",
                    fix=f"Find the process that holds it, then end or continue it: fuser -v {path}",
                )
            time.sleep(_PAUSE_S)
    except NoLocks:
        return False
    return True


@contextlib.contextmanager
def present(cache: Path) -> Iterator[None]:
    """Show other processes that this one works with what is in the cache; waits for one that clears
    it. Without a place for the lock, or without locks, nothing is shown.
    """
    with _presence(cache, fcntl.LOCK_SH, make=True):
        yield


@contextlib.contextmanager
def alone(cache: Path) -> Iterator[bool]:
    """Whether no other process works with the cache; while this is held, none begins to."""
    with _presence(cache, fcntl.LOCK_EX | fcntl.LOCK_NB, make=False) as is_locked:
        yield is_locked


@contextlib.contextmanager
def _presence(cache: Path, kind: int, *, make: bool) -> Iterator[bool]:
    descriptor = None
    try:
        if make:
            cache.mkdir(parents=True, exist_ok=True)
        if cache.is_dir():
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(cache / PRESENCE, flags, 0o600)
            fcntl.flock(descriptor, kind)
        locked = True
    except OSError as error:
        locked = error.errno in _NO_LOCKS
    try:
        yield locked
    finally:
        if descriptor is not None:
            os.close(descriptor)


class Lease:
    """Shows other processes what this one uses. Written while the gate is held."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f"{os.getpid()}-{secrets.token_hex(4)}"
        self._descriptor: int | None = None
        self._names: set[str] = set()
        self._ended = False
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """Protect this from being cleared as long as the process lives."""
        with self._lock:
            if self._ended or name in self._names:
                return
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
                with contextlib.suppress(NoLocks):
                    try_lock(self._descriptor)
            os.write(self._descriptor, f"{name}\n".encode())
            self._names.add(name)

    def end(self) -> None:
        """Release everything."""
        with self._lock:
            self._ended = True
            if self._descriptor is not None:
                with contextlib.suppress(OSError):
                    self._path.unlink()
                os.close(self._descriptor)
                self._descriptor = None


def leased(directory: Path) -> frozenset[str]:
    """Return the names of all that is in use, and remove the leases of dead processes.

    Requires the exclusive gate, so that no process creates a lease meanwhile.
    """
    names: set[str] = set()
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # its process has just ended it
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if try_lock(descriptor):
                    path.unlink()
                else:
                    names |= set(path.read_text("ascii", "replace").split())
            finally:
                os.close(descriptor)
    return frozenset(names)
