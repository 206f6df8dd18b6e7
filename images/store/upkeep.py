"""Maintains the store: measures it, removes damaged files, clears unused ones.

Nothing that a running build uses is removed, unless it is damaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from images.store.entries import KINDS, Kind, StoreEntry, entries, remove_files, unknown_files
from images.store.incoming import read_pieces
from images.store.locks import NoLocks, gate, leased, try_lock
from images.store.memo import read_memo

LEFTOVER_S = 3 * 86400.0
"""How long a partial download is kept for a later build to resume."""
MEMO_S = 180 * 86400.0
"""How long an unused memo is kept."""
UNLOCKED_S = 86400.0
"""Without locks, what was used in the last day may be in use."""
_LOST_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Disk usage of one kind: "wheels", "blobs", "memo", "unfinished", or another storage's."""

    kind: str
    count: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreItem:
    """An item that was found damaged or was removed, and why."""

    kind: str
    title: str
    size: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    """The result of verifying everything; damaged items have been removed."""

    count: int
    size: int
    damaged: tuple[StoreItem, ...]
    unknown_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """What was removed, and what is left; `in_use` bytes of it belong to running builds."""

    removed: tuple[StoreItem, ...]
    kept: int
    in_use: int

    @property
    def freed(self) -> int:
        return sum(one.size for one in self.removed)


class Storage(Protocol):
    """A directory that takes up disk and can be maintained, such as a `Store`."""

    def du(self) -> tuple[Usage, ...]:
        """Measure the disk usage of each kind."""

    def verify(self, on_bytes: Callable[[str, int], None]) -> StoreCheck:
        """Hash everything, and remove what is damaged."""

    def gc(self, *, limit_bytes: int | None, everything: bool) -> Cleared:
        """Remove what is not used, down to a limit (None: the storage's default)."""


def measure(directory: Path) -> tuple[Usage, ...]:
    """Measure the disk usage of each kind."""
    rows = []
    for kind in KINDS:
        found = list(entries(directory, kind))
        size = sum(entry.size for entry in found)
        rows.append(Usage(kind=f"{kind}s", count=len(found), size=size))
    for kind_, part, pattern in (("memo", "memo", "*/*.json"), ("unfinished", "partial", "*")):
        sizes = [size for path in (directory / part).glob(pattern) if (size := _size(path)) >= 0]
        rows.append(Usage(kind=kind_, count=len(sizes), size=sum(sizes)))
    return tuple(rows)


def verify(directory: Path, on_bytes: Callable[[str, int], None]) -> StoreCheck:
    """Hash everything; remove and report what does not match its digest.

    `on_bytes` is called with the item's title and how many more bytes of it were read.
    """
    count = size = 0
    damaged: list[StoreItem] = []
    for kind in KINDS:
        for entry in entries(directory, kind):
            # its names are links to one file, or were when they were created
            found = {hash_file(path, partial(on_bytes, entry.title)) for path in entry.files}
            hexa = next(iter(found - {entry.hex}), entry.hex)
            if hexa is None:  # cleared by another process
                continue
            count, size = count + 1, size + entry.size
            if hexa != entry.hex:
                why = f"its sha256 is {hexa}, not {entry.hex}" if hexa else "it cannot be read"
                damaged.append(_found(entry, why))
                discard(directory, entry.kind, entry.hex)
    for path in sorted((directory / "memo").glob("*/*.json")):
        if read_memo(path) is None and path.exists():
            title = f"{path.parent.name}/{path.stem[:12]}"
            why = "it is no whole memo"
            damaged.append(StoreItem(kind="memo", title=title, size=max(_size(path), 0), why=why))
            path.unlink(missing_ok=True)
    return StoreCheck(
        count=count,
        size=size,
        damaged=tuple(damaged),
        unknown_files=tuple(str(path.relative_to(directory)) for path in unknown_files(directory)),
    )


def discard(directory: Path, kind: Kind, hexa: str) -> None:
    """Remove a damaged item, even if a build uses it: that build had better fail."""
    with gate(directory / "gate", shared=False):
        for entry in [found for found in entries(directory, kind) if found.hex == hexa]:
            remove_files(entry)


def clear(
    directory: Path,
    *,
    limit_bytes: int,
    needed_free: int = 0,
    leftover_s: float = LEFTOVER_S,
    everything: bool = False,
) -> Cleared:
    """Remove what was used longest ago until at most `limit_bytes` are left and `needed_free` free.

    Also removes what killed processes left more than `leftover_s` ago, and memos unused for half a
    year; with `everything`, all that is not in use.
    """
    now = time.time()
    with gate(directory / "gate", shared=False) as locked:
        in_use = leased(directory / "leases") if locked else frozenset[str]()
        removed = _sweep(directory, now, leftover_s, locked=locked)
        removed += _forget(directory, now, 0.0 if everything else MEMO_S)
        kept = sorted(
            (entry for kind in KINDS for entry in entries(directory, kind)),
            key=lambda entry: (entry.used, entry.hex),
        )
        total = sum(entry.size for entry in kept)
        free = [
            entry
            for entry in kept
            if entry.hex not in in_use and (locked or now - entry.used > UNLOCKED_S)
        ]
        held = total - sum(entry.size for entry in free)
        if _free(directory) + total - held < needed_free:
            needed_free = 0  # clearing would remove much and still not be enough
        for entry in free:
            if everything or total > limit_bytes or _free(directory) < needed_free:
                remove_files(entry)
                removed.append(_found(entry, f"last used {in_age(now - entry.used)} ago"))
                total -= entry.size
    return Cleared(removed=tuple(removed), kept=total, in_use=held)


def sweep(directory: Path) -> None:
    """Remove what killed processes left long ago, if no process holds the gate."""
    descriptor = os.open(directory / "gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(NoLocks):
            if try_lock(descriptor):
                leased(directory / "leases")
                _sweep(directory, time.time(), LEFTOVER_S, locked=True)
    finally:
        os.close(descriptor)


def _sweep(directory: Path, now: float, age_s: float, *, locked: bool) -> list[StoreItem]:
    removed = []
    for path in sorted((directory / "partial").iterdir()):
        with contextlib.suppress(OSError):
            status = path.lstat()
            age = max(0.0, now - status.st_mtime)  # a clock may have been set back
            if path.name.startswith("memo-"):  # written quickly, and never locked
                old = age > _LOST_S
            else:
                # an empty file has nothing to resume
                spared_s = (age_s if status.st_size else 0.0) if locked else max(age_s, UNLOCKED_S)
                old = age >= spared_s
            if old and _remove_unlocked(path, status):
                why = "its download was never finished"
                size = status.st_size
                removed.append(StoreItem(kind="unfinished", title=path.name, size=size, why=why))
    return removed


def _remove_unlocked(path: Path, status: os.stat_result) -> bool:
    """Remove a file that no process writes; our lock keeps others from starting to."""
    if not stat.S_ISREG(status.st_mode):
        path.unlink()
        return True
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        with contextlib.suppress(NoLocks):
            if not try_lock(descriptor):
                return False
        path.unlink()
        return True
    finally:
        os.close(descriptor)


def _forget(directory: Path, now: float, age_s: float) -> list[StoreItem]:
    """Remove old memos. They are many, small, and named by hashes: one item stands for all."""
    ages, size = [], 0
    for path in (directory / "memo").glob("*/*.json"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            age = max(0.0, now - status.st_mtime)
            if age >= age_s:
                path.unlink()
                ages.append(age)
                size += status.st_size
    if not ages:
        return []
    title = f"{len(ages)} memo{'' if len(ages) == 1 else 's'}"
    return [
        StoreItem(kind="memo", title=title, size=size, why=f"last used {in_age(min(ages))} ago")
    ]


def hash_file(path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> str | None:
    """Compute a file's sha256; "" if it cannot be read, None if it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError:
        return ""
    sha256 = hashlib.sha256()
    try:
        for piece in read_pieces(descriptor):
            sha256.update(piece)
            on_bytes(len(piece))
    except OSError:  # the disk cannot read it
        return ""
    finally:
        os.close(descriptor)
    return sha256.hexdigest()


def _found(entry: StoreEntry, why: str) -> StoreItem:
    return StoreItem(kind=entry.kind, title=entry.title, size=entry.size, why=why)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return -1


def _free(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def in_age(seconds: float) -> str:
    """A time for people, as its largest unit: "3 days"."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
