"""Where things lie in a store, and what there is of them.

    store-1/wheels/<sha256>/<file name>    a wheel, under the name that tells its version and tags
    store-1/blobs/<sha256>                 a blob of an image
    store-1/memo/<namespace>/<hash>.json   what was found out once
    store-1/partial/                       what is being written, or was when its writer died
    store-1/leases/, store-1/gate          who uses what

The number is the format's: another version keeps to a directory of its own.
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
class ShelfEntry:
    """One thing that is kept; `used` is when it was last, in seconds since the epoch."""

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
    """Say where the store of this version lies below the directory of all that is kept."""
    return root.absolute() / _FORMAT


def shelf(directory: Path, kind: Kind) -> Path:
    return directory / f"{kind}s"


def is_hex(text: str) -> bool:
    """Whether it is a sha256 in hexadecimal digits, and so may become a file's name."""
    return _HEX.fullmatch(text) is not None


def entries(directory: Path, kind: Kind) -> Iterator[ShelfEntry]:
    """Give all of a kind; what is gone in the meantime is left out."""
    for place in _names(shelf(directory, kind)):
        if not is_hex(place.name):
            continue
        files = _names(place) if kind == "wheel" else [place]
        found = [(path, status) for path in files if (status := _regular(path))]
        if found:
            inodes = {status.st_ino: status for _, status in found}.values()
            yield ShelfEntry(
                kind=kind,
                hex=place.name,
                files=tuple(path for path, _ in found),
                size=sum(status.st_size for status in inodes),
                used=max(status.st_mtime for status in inodes),
            )


def strangers(directory: Path) -> list[Path]:
    """Name what lies among the wheels and blobs and is none: it is not ours to remove."""
    found = []
    for kind in KINDS:
        for place in _names(shelf(directory, kind)):
            directory_of_wheels = place.is_dir() and not place.is_symlink()
            right = directory_of_wheels if kind == "wheel" else _regular(place)
            if not is_hex(place.name) or not right:
                found.append(place)
            elif kind == "wheel":
                found += [path for path in _names(place) if not _regular(path)]
    return found


def file_name_of(hexa: str, wanted: str | None) -> str:
    """Choose the name of a wheel's file: the one that is wanted, if it can be one."""
    if wanted is None or not wanted or wanted.startswith(".") or not set(wanted).isdisjoint("/\0"):
        return f"{hexa}.whl"
    return wanted if len(os.fsencode(wanted)) <= _LONGEST_NAME else f"{hexa}.whl"


def find_file(directory: Path, kind: Kind, hexa: str, file_name: str | None) -> Path | None:
    """Find the file of a digest; a wheel under its name, which counts for whoever reads it."""
    place = shelf(directory, kind) / hexa
    if kind == "blob":
        return place if _regular(place) else None
    files = [path for path in _names(place) if _regular(path)]
    if file_name is None or not files:
        return files[0] if files else None
    wanted = place / file_name_of(hexa, file_name)
    if wanted not in files:
        try:  # the same bytes came under another name
            os.link(files[0], wanted)
        except FileExistsError:
            return wanted if _regular(wanted) else None
        except OSError:
            return None
    return wanted


def remove_files(entry: ShelfEntry) -> None:
    """Take an entry out of the store; needs the gate alone."""
    for path in entry.files:
        path.unlink(missing_ok=True)
    if entry.kind == "wheel":
        with contextlib.suppress(OSError):  # a stranger lies in it
            entry.files[0].parent.rmdir()


def regular_size(path: Path) -> int | None:
    """Give the size of a file; None where there is none, or a link or a device in its place."""
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
