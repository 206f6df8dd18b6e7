"""The wheels that this user has built from source: data, which no limit of the store removes.

    wheels/<sha256>/<file name>    the wheel
    wheels/<sha256>/about.json     what it was made from

A wheel takes minutes or hours to compile, and locks name its path.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from images.store.entries import is_hex, regular_size
from images.store.errors import StoreUnusableError
from images.store.upkeep import Cleared, StoreCheck, StoreItem, Usage, hash_file
from images.system.ownership import another_owner
from images.system.scratch import scratch_directory

_ABOUT = "about.json"
_MOST_ABOUT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltWheel:
    """A wheel that was built here, with what was written about it."""

    path: Path
    sha256: str
    size: int
    about: Mapping[str, Any]


class BuiltWheels:
    """The directory of these wheels, as an `images.store.upkeep.Storage`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, wheel: Path, about: Mapping[str, Any]) -> BuiltWheel:
        """Copy a wheel here, whole or not at all. OSError: the disk is full, or the like;
        StoreUnusableError: something else is in its place.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        with scratch_directory(self._directory) as work:
            whole = work / "whole"
            whole.mkdir()
            copy = whole / wheel.name
            shutil.copyfile(wheel, copy)
            (whole / _ABOUT).write_text(json.dumps(about, sort_keys=True), encoding="utf-8")
            sha256 = hash_file(copy) or ""
            with contextlib.suppress(OSError):  # the same bytes are there: then those are used
                whole.rename(self._directory / sha256)
        kept = next((one for one in self.all() if one.sha256 == sha256), None)
        if kept is None:
            place = self._directory / sha256
            raise StoreUnusableError(
                f"{place} is damaged, or belongs to another user: the wheel cannot be kept there.",
                fix=f"Remove it (rm -r {place}), or name another place: XDG_DATA_HOME=DIR",
            )
        return kept

    def all(self) -> tuple[BuiltWheel, ...]:
        """All whole wheels of this user; skips what is none, and what others have put here."""
        places = sorted(self._directory.glob("*")) if self._directory.is_dir() else []
        found = (_read(place) for place in places if is_hex(place.name))
        return tuple(one for one in found if one is not None)

    def du(self) -> tuple[Usage, ...]:
        """Measure the disk usage."""
        sizes = [one.size for one in self.all()]
        return (Usage(kind="built wheels", count=len(sizes), size=sum(sizes)),)

    def verify(self, on_bytes: Callable[[str, int], None]) -> StoreCheck:
        """Hash every wheel; remove damaged ones."""
        wheels = self.all()
        damaged = []
        for one in wheels:
            if hash_file(one.path, partial(on_bytes, one.path.name)) != one.sha256:
                why = "its sha256 is another than when it was built"
                title = one.path.name
                damaged.append(StoreItem(kind="built wheels", title=title, size=one.size, why=why))
                shutil.rmtree(one.path.parent, ignore_errors=True)
        size = sum(one.size for one in wheels)
        return StoreCheck(count=len(wheels), size=size, damaged=tuple(damaged))

    def gc(self, *, limit_bytes: int | None, everything: bool) -> Cleared:
        """Remove nothing: only the user may delete these wheels."""
        del limit_bytes, everything
        return Cleared(removed=(), kept=sum(one.size for one in self.all()), in_use=0)


def _read(place: Path) -> BuiltWheel | None:
    files = [path for path in sorted(place.glob("*.whl")) if regular_size(path) is not None]
    try:
        if another_owner(place, place.lstat()):
            return None
        with (place / _ABOUT).open("rb") as file:
            about = json.loads(file.read(_MOST_ABOUT_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if len(files) != 1 or not isinstance(about, dict):
        return None
    size = files[0].stat().st_size
    return BuiltWheel(path=files[0], sha256=place.name, size=size, about=about)
