"""Directories for a piece of work, gone after it; those of killed processes go with the next one.

Whoever works in one holds a lock on it (flock: it goes with the process).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "gpu-provision-run-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Between making one and locking it.
_YOUNG_S = 60.0


@contextlib.contextmanager
def scratch_directory(parent: Path | None = None) -> Iterator[Path]:
    """An empty directory that only we may enter, below `parent` (default: where temporary files
    go).
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    remove_leftovers(place)
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    lock = os.open(made, _DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # without locks what a killed process leaves stays
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def remove_leftovers(place: Path) -> None:
    """Remove what processes of this user left when they were killed."""
    with contextlib.suppress(OSError):
        for found in place.glob(f"{PREFIX}*"):
            _remove_unused(found)


def _remove_unused(found: Path) -> None:
    try:
        lock = os.open(found, _DIRECTORY)
    except OSError:
        return
    try:
        status = os.fstat(lock)
        if status.st_uid == os.geteuid() and time.time() - status.st_ctime > _YOUNG_S:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(found, ignore_errors=True)
    except OSError:  # somebody works in it
        return
    finally:
        os.close(lock)
