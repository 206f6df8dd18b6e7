"""Temporary directories, removed after use; the next use removes those of killed processes.

A process holds a lock on its directory (flock, which ends with the process).
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
# Covers the time between making a directory and locking it.
_YOUNG_S = 60.0


@contextlib.contextmanager
def scratch_directory(parent: Path | None = None) -> Iterator[Path]:
    """An empty directory that only this user may enter, below `parent` (default: the system's
    directory for temporary files).
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    remove_leftovers(place)
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    lock = os.open(made, _DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # without locks, a killed process's directory stays
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def remove_leftovers(place: Path) -> None:
    """Remove the directories that killed processes of this user left."""
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
    except OSError:  # a process works in it
        return
    finally:
        os.close(lock)
