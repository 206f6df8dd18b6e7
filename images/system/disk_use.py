"""How much disk a file or a directory uses, as `du` counts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's blocks are


def disk_bytes(path: Path) -> int:
    """The bytes on disk of a file, or of a directory with all that is in it; 0 if it is gone.

    A file with several names counts once. What is mounted in the directory does not count, and
    links are not followed. Skips what cannot be read.
    """
    try:
        top = path.lstat()
    except OSError:
        return 0
    counted: set[int] = set()
    total = top.st_blocks * _BLOCK_BYTES
    for entry in _below(str(path), top.st_dev):
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if status.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
            if status.st_ino in counted:
                continue
            counted.add(status.st_ino)
        total += status.st_blocks * _BLOCK_BYTES
    return total


def _below(path: str, device: int) -> Iterator[os.DirEntry[str]]:
    waiting = [path]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.stat(follow_symlinks=False).st_dev != device:
                            continue
                        waiting.append(entry.path)
                    yield entry
        except OSError:  # removed meanwhile, not readable, or not a directory
            continue
