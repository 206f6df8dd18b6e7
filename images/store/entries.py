"""The directories of a store, and the entries in them.

    store-1/wheels/<sha256>/<file name>    a wheel; its file name contains version and tags
    store-1/blobs/<sha256>                 a blob of an image
    store-1/memo/<namespace>/<hash>.json   cached results
    store-1/partial/                       files being written, or left by a writer that died
    store-1/leases/, store-1/gate          locks: what each process uses

The number is the version of the format: another version uses a separate directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["wheel", "blob"]
KINDS: tuple[Kind, ...] = ("wheel", "blob")
PARTS = ("wheels", "blobs", "memo", "partial", "leases")

_FORMAT = "store-1"
_LONGEST_NAME = 255  # bytes, on every file system of Linux
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEntry:
    """One wheel or blob; `used` is when it was last used, in seconds since the epoch."""

    kind: Kind
    hex: str
    files: tuple[Path, ...]
    size: int
    used: float

    @property
    def title(self) -> str:
        """For people: a wheel's file name, a blob's digest."""
        return self.files[0].name if self.kind == "wheel" else f"sha256:{self.hex}"


def store_directory(root: Path) -> Path:
    """The directory of this version's store below the cache's root."""
    return root.absolute() / _FORMAT


def kind_directory(directory: Path, kind: Kind) -> Path:
    return directory / f"{kind}s"


def is_hex(text: str) -> bool:
    """Whether it is a sha256 in hexadecimal digits, and so safe as a file name."""
    return _HEX.fullmatch(text) is not None


def entries(directory: Path, kind: Kind) -> Iterator[StoreEntry]:
    """Yield all entries of a kind; skips what disappears meanwhile."""
    for place in _names(kind_directory(directory, kind)):
        if not is_hex(place.name):
            continue
        files = _names(place) if kind == "wheel" else [place]
        found = [(path, status) for path in files if (status := _regular(path))]
        if found:
            inodes = {status.st_ino: status for _, status in found}.values()
            yield StoreEntry(
                kind=kind,
                hex=place.name,
                files=tuple(path for path, _ in found),
                size=sum(status.st_size for status in inodes),
                used=max(status.st_mtime for status in inodes),
            )


def unknown_files(directory: Path) -> list[Path]:
    """List files among the wheels and blobs that are neither: we must not remove them."""
    found = []
    for kind in KINDS:
        for place in _names(kind_directory(directory, kind)):
            directory_of_wheels = place.is_dir() and not place.is_symlink()
            right = directory_of_wheels if kind == "wheel" else _regular(place)
            if not is_hex(place.name) or not right:
                found.append(place)
            elif kind == "wheel":
                found += [path for path in _names(place) if not _regular(path)]
    return found


def file_name_of(hexa: str, wanted: str | None) -> str:
    """Choose the file name of a wheel: the wanted one, if it is valid."""
    if wanted is None or not wanted or wanted.startswith(".") or not set(wanted).isdisjoint("/\0"):
        return f"{hexa}.whl"
    return wanted if len(os.fsencode(wanted)) <= _LONGEST_NAME else f"{hexa}.whl"


def find_file(directory: Path, kind: Kind, hexa: str, file_name: str | None) -> Path | None:
    """Find the file of a digest; a wheel under its own file name, which its readers parse."""
    place = kind_directory(directory, kind) / hexa
    if kind == "blob":
        return place if _regular(place) else None
    files = [path for path in _names(place) if _regular(path)]
    if file_name is None or not files:
        return files[0] if files else None
    wanted = place / file_name_of(hexa, file_name)
    if wanted not in files:
        try:  # the same bytes are stored under another name
            os.link(files[0], wanted)
        except FileExistsError:
            return wanted if _regular(wanted) else None
        except OSError:
            return None
    return wanted


def remove_files(entry: StoreEntry) -> None:
    """Remove an entry from the store; requires the exclusive gate."""
    for path in entry.files:
        path.unlink(missing_ok=True)
    if entry.kind == "wheel":
        with contextlib.suppress(OSError):  # it contains a file that is not ours
            entry.files[0].parent.rmdir()


def regular_size(path: Path) -> int | None:
    """The size of a regular file; None if it is missing, or a link or a device."""
    status = _regular(path)
    return status.st_size if status else None


def _regular(path: Path) -> os.stat_result | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _names(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []
