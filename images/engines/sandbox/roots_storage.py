"""Disk usage of the unpacked images: measures them, and removes those that nothing uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from images.engines.sandbox.roots import Roots
from images.store.upkeep import Cleared, StoreCheck, StoreItem, Usage
from images.system.disk_use import disk_bytes

KIND = "unpacked images"


class RootsStorage:
    """The directory of unpacked images as an `images.store.upkeep.Storage`."""

    def __init__(self, directory: Path) -> None:
        self._roots = Roots(directory)

    def du(self) -> tuple[Usage, ...]:
        count = len(self._roots.entries())
        size = disk_bytes(self._roots.directory) if count else 0  # roots may share files
        return (Usage(kind=KIND, count=count, size=size),)

    def verify(self, on_bytes: Callable[[str, int], None]) -> StoreCheck:
        """Check nothing: a root has no digest, and its owner may change it."""
        del on_bytes
        return StoreCheck(count=0, size=0, damaged=())

    def gc(self, *, limit_bytes: int | None, everything: bool) -> Cleared:
        """Remove every root that no process uses, whatever the limit: an image that is run again is
        unpacked again.
        """
        del limit_bytes, everything
        before = self._sizes()
        self._roots.clear()
        left = {place: size for place, size in before.items() if place.is_dir()}
        removed = tuple(
            StoreItem(kind=KIND, title=f"root {place.name[:12]}", size=size, why="nothing uses it")
            for place, size in before.items()
            if place not in left
        )
        kept = sum(left.values())
        return Cleared(removed=removed, kept=kept, in_use=kept)

    def _sizes(self) -> dict[Path, int]:
        return {place: disk_bytes(place) for place in self._roots.entries()}
