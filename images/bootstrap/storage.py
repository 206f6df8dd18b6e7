"""Disk usage of the bases that were built here: measures and removes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from images.bootstrap.store import archives, bases_directory, locked, remove_all
from images.store.locks import alone
from images.store.upkeep import Cleared, StoreCheck, StoreItem, Usage

KIND = "bases"


class BasesStorage:
    """The bases of a cache as an `images.store.upkeep.Storage`."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._bases = bases_directory(cache)

    def du(self) -> tuple[Usage, ...]:
        sizes = archives(self._bases).values()
        return (Usage(kind=KIND, count=len(sizes), size=sum(sizes)),)

    def verify(self, on_bytes: Callable[[str, int], None]) -> StoreCheck:
        """Check nothing: an archive is checked by its digests when it is read."""
        del on_bytes
        return StoreCheck(count=0, size=0, damaged=())

    def gc(self, *, limit_bytes: int | None, everything: bool) -> Cleared:
        """Remove all with `everything`, if no build is running: it may read one at any time."""
        del limit_bytes
        found = archives(self._bases)
        size = sum(found.values())
        if not everything:
            return Cleared(removed=(), kept=size, in_use=0)
        with alone(self._cache) as is_alone:
            if not is_alone:
                return Cleared(removed=(), kept=size, in_use=size)
            with locked(self._bases, lambda _: None):
                remove_all(self._bases)
        removed = tuple(
            StoreItem(kind=KIND, title=f"base {path.stem[:12]}", size=size, why="no build uses it")
            for path, size in found.items()
        )
        return Cleared(removed=removed, kept=0, in_use=0)
