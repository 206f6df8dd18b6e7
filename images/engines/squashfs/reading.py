"""Reads which image a squashfs is, from the record in it."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

from images.engines.sandbox.mounts import mounted
from images.engines.sandbox.plan import resolve
from images.engines.squashfs.files import MOST_RECORD_BYTES, RECORD, read_record
from images.oci.errors import ImageUnreadableError
from images.oci.sources import Image

ENDINGS = (".sqfs", ".sqsh", ".squashfs")
"""How the names of such files end; enroot calls them .sqsh."""

_MAGIC = b"hsqs"  # https://docs.kernel.org/filesystems/squashfs.html


def is_squashfs(path: Path) -> bool:
    """Whether a file is a squashfs, by its first bytes."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False


def open_squashfs(path: Path) -> Image:
    """The image that a squashfs is. MountError: this host cannot mount it; ImageUnreadableError:
    it has no record of an image.
    """
    with mounted(path) as tree:
        found, missing = resolve(tree, RECORD)
        content = b"" if missing else _small_file(tree / found.lstrip("/"))
    if not content:
        raise ImageUnreadableError(
            f"{path} does not say which image it is: it has no {RECORD}.",
            fix="Use a file that `provision build --output FILE.sqfs` has written; enroot and "
            "others write none.",
        )
    return replace(read_record(content, str(path)), squashfs=path.absolute())


def _small_file(file: Path) -> bytes:
    """A regular file's content; b"" if it is another kind, or too large."""
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_RECORD_BYTES:
        return b""
    return file.read_bytes()
