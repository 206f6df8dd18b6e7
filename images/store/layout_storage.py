"""Disk usage of an image layout: measures, verifies and prunes it.

Named images are data and stay; pruning removes blobs that no image needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from images.oci.layout import LayoutTarget
from images.store.upkeep import Cleared, StoreCheck, StoreItem, Usage, hash_file


class LayoutStorage:
    """A layout as an `images.store.upkeep.Storage`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def du(self) -> tuple[Usage, ...]:
        sizes = [size for _, size in self._blobs()]
        return (Usage(kind="images", count=len(sizes), size=sum(sizes)),)

    def verify(self, on_bytes: Callable[[str, int], None]) -> StoreCheck:
        """Verify every blob; remove damaged ones: the next build of an image writes them again."""
        count = size = 0
        damaged: list[StoreItem] = []
        for path, length in self._blobs():
            found = hash_file(path, partial(on_bytes, path.name))
            if found is None:  # pruned by another process
                continue
            count, size = count + 1, size + length
            if found != path.name:
                why = f"its sha256 is {found}" if found else "it cannot be read"
                title = f"blob {path.name[:12]} of an image"
                damaged.append(StoreItem(kind="images", title=title, size=length, why=why))
                path.unlink(missing_ok=True)
        return StoreCheck(count=count, size=size, damaged=tuple(damaged))

    def gc(self, *, limit_bytes: int | None, everything: bool) -> Cleared:
        """Remove blobs that no named image needs; the store must not remove named images."""
        del limit_bytes, everything
        before = dict(self._blobs())
        with closing(LayoutTarget.open(self._root)) as layout:
            pruned = layout.prune()
        left = dict(self._blobs())
        removed = tuple(
            StoreItem(
                kind="images", title=f"blob {path.name[:12]}", size=size, why="no image needs it"
            )
            for path, size in before.items()
            if path not in left
        )
        kept = sum(left.values())
        return Cleared(removed=removed, kept=kept, in_use=kept if pruned.busy else 0)

    def _blobs(self) -> Iterator[tuple[Path, int]]:
        for path in sorted((self._root / "blobs" / "sha256").glob("*")):
            with contextlib.suppress(FileNotFoundError):  # pruned meanwhile
                yield path, path.stat().st_size
