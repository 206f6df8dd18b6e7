"""Writes blobs atomically: under a temporary name, synced, then renamed.

A killed process or a power cut leaves at most a file under a name that nothing reads.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO

from images.errors import DiskFullError
from images.oci.errors import DigestMismatchError, TargetError
from images.oci.inflate import ANEW_FIX, PIECE_BYTES
from images.oci.model import Descriptor
from images.oci.sources import Stream, Unpacked, Written

PARTIAL = ".partial-"
"""The prefix of the name of a file that is being written."""


@contextlib.contextmanager
def partial_file(directory: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Yield a new file, which is removed unless it was renamed meanwhile."""
    descriptor, name = tempfile.mkstemp(prefix=PARTIAL, dir=directory)
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, path
    finally:
        path.unlink(missing_ok=True)


def keep(file: IO[bytes], path: Path, target: Path) -> None:
    """Sync a file to disk and rename it to its final name."""
    os.fchmod(file.fileno(), 0o666 & ~current_umask())
    file.flush()
    os.fsync(file.fileno())
    path.replace(target)
    sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """Sync a directory's names to disk; some file systems do not support that."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)


def current_umask() -> int:
    """Read the umask without changing it, which would affect other threads."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def take(
    stream: Stream, file: IO[bytes], expected: Descriptor | None, on_bytes: Callable[[int], None]
) -> Written:
    """Write a layer to a file. DigestMismatchError: other bytes than the expected ones."""
    digest = hashlib.sha256()
    size = 0
    unpacked: Unpacked
    with contextlib.closing(stream):
        while True:
            try:
                piece = next(stream)
            except StopIteration as end:
                unpacked = end.value
                break
            digest.update(piece)
            file.write(piece)
            size += len(piece)
            on_bytes(len(piece))
            if expected is not None and size > expected.size:
                break
        found = f"sha256:{digest.hexdigest()}"
        if expected is not None and (found, size) != (expected.digest, expected.size):
            raise DigestMismatchError(
                f"The layer {expected.digest} ({expected.size} bytes) came as {found}"
                f" ({size} bytes{' so far' if size > expected.size else ''}).",
                fix=ANEW_FIX,
            )
    return Written(digest=found, size=size, unpacked=unpacked)


@contextlib.contextmanager
def told_as_failure(target: Path, shown: str) -> Iterator[None]:
    """Turn an OSError into a TargetError, or a DiskFullError with numbers. Not one of a process
    that has too many files open: it says nothing of the target.
    """
    try:
        yield
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise _full(target, shown, error) from error
        raise TargetError(
            f"{shown} cannot be written: {error.strerror or error}.",
            fix=f"Check that you may write there (ls -ld {target.parent}), or name another place.",
        ) from error


def _full(target: Path, shown: str, error: OSError) -> DiskFullError:
    existing = next(path for path in (target, *target.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    why = error.strerror or str(error)
    return DiskFullError(
        f"{shown} cannot be written: {why}; {existing} has {free / 1e9:.2f} GB free, which was not"
        " enough. Nothing of it was kept.",
        fix=f"Free space (df -h {existing}; provision store gc), or name a place on another disk.",
    )


def read_pieces(file: IO[bytes], size: int | None = None) -> Generator[bytes, None, None]:
    """Yield an open file's bytes from its current position, and close it."""
    left = size
    with file:
        while piece := file.read(PIECE_BYTES if left is None else min(PIECE_BYTES, left)):
            if left is not None:
                left -= len(piece)
            yield piece
