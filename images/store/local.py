"""Wheels on this machine: used in place, after their digest is verified.

Copying them would take their size a second time. A hashed file is recognised by its stat data; its
change time cannot be set back, unlike its modification time.
"""

from __future__ import annotations

import os
import stat
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from images.store.store import Store, mismatch
from images.store.upkeep import hash_file
from images.wheels.errors import WheelUnreachableError, WheelUnreadableError

_NAMESPACE = "local-files"
_SETTLED_S = 2.0
"""A file that changed this recently may change again unnoticed: timestamps are coarse."""


def local_path(url: str) -> Path | None:
    """The path of a `file:` URL or a plain path; None: it is an http(s) URL.
    WheelUnreadableError: an unsupported or malformed URL.
    """
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError as error:
        raise _no_address(url) from error
    if parts.scheme in {"http", "https"}:
        return None
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        return Path(urllib.parse.unquote(parts.path, errors="surrogateescape"))
    if not parts.scheme and url:
        return Path(url)
    raise _no_address(url)


def checked_file(path: Path, sha256: str, store: Store, on_bytes: Callable[[int], None]) -> Path:
    """Return the path if the file there matches the lock."""
    status = _status(path)
    seen = {**_signs(status), "sha256": sha256}
    if store.facts(_NAMESPACE, str(path.absolute())) == seen:
        on_bytes(status.st_size)
        return path
    found = hash_file(path, on_bytes)
    if not found:
        raise _unreachable(path, "cannot be read")
    if found != sha256:
        raise mismatch(str(path), sha256, found)
    after = _status(path)
    newest = max(after.st_mtime, after.st_ctime)
    if _signs(after) == _signs(status) and time.time() - newest > _SETTLED_S:
        store.remember_facts(_NAMESPACE, str(path.absolute()), seen)
    return path


def _status(path: Path) -> os.stat_result:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        why = "is not there" if isinstance(error, FileNotFoundError) else "cannot be read"
        raise _unreachable(path, why) from error
    if not stat.S_ISREG(status.st_mode):
        raise _unreachable(path, "is no file")
    return status


def _signs(status: os.stat_result) -> dict[str, Any]:
    return {
        "device": status.st_dev,
        "inode": status.st_ino,
        "size": status.st_size,
        "changed": status.st_ctime_ns,
        "modified": status.st_mtime_ns,
    }


def _unreachable(path: Path, why: str) -> WheelUnreachableError:
    return WheelUnreachableError(
        f"The wheel {path} of the lock {why}.",
        fix="Put it there, or lock again: provision lock",
    )


def _no_address(url: str) -> WheelUnreadableError:
    return WheelUnreadableError(
        f"Wheels cannot be fetched from URLs like {url[:80]!r}.",
        fix="A URL begins with https://, http:// or file:///; lock again: provision lock",
    )
