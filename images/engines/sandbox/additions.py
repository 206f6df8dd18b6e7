"""Which paths the last layer adds to an unpacked image, so that another layer can take its place.

A layer that only adds can be removed again by removing these paths, and what is left is the tree of
the layers below it. One that replaces, hides or changes what is there cannot.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from images.engines.sandbox.tree import RootTree

Parts = tuple[bytes, ...]


class Additions:
    """The topmost paths that are new in a tree; each is recorded before it is made."""

    def __init__(self, tree: RootTree) -> None:
        self._tree = tree
        self._new: set[Parts] = set()
        self._directories: set[Parts] = set()
        self._only_adds = True

    @property
    def paths(self) -> tuple[str, ...] | None:
        """The paths, without what is below them; None: removing them would not restore the tree."""
        try:
            names = sorted(b"/".join(parts).decode() for parts in self._new)
        except UnicodeDecodeError:  # cannot be written to JSON
            return None
        return tuple(names) if self._only_adds else None

    def give_up(self) -> None:
        """Record that the layer does not only add."""
        self._only_adds = False

    def expect(self, parts: Parts, *, directory_mode: int | None = None) -> None:
        """Record what making an entry adds, with its parent directories. `directory_mode`: the mode
        that a directory gets; None for anything else.
        """
        if self._only_adds:
            self._only_adds = self._parents_add(parts) and self._entry_adds(parts, directory_mode)

    def _parents_add(self, parts: Parts) -> bool:
        for depth in range(1, len(parts)):
            parent = parts[:depth]
            if parent in self._directories:
                continue
            found = self._tree.status(parent)
            if found is None:
                self._add(parent)
            elif not stat.S_ISDIR(found.st_mode):  # a link may lead anywhere
                return False
            self._directories.add(parent)
        return True

    def _entry_adds(self, parts: Parts, directory_mode: int | None) -> bool:
        found = self._tree.status(parts)
        if found is None:
            self._add(parts)
            return True
        if directory_mode is None or not stat.S_ISDIR(found.st_mode):
            return False
        return stat.S_IMODE(found.st_mode) == directory_mode or self._is_new(parts)

    def _add(self, parts: Parts) -> None:
        if not self._is_new(parts):
            self._new.add(parts)

    def _is_new(self, parts: Parts) -> bool:
        return any(parts[:depth] in self._new for depth in range(1, len(parts) + 1))


def remove_additions(root: Path, paths: Iterable[str]) -> None:
    """Remove what a layer added, with all that has been written there since. OSError: something
    cannot be removed.
    """
    with RootTree(root) as tree:
        for path in paths:
            tree.remove(tuple(os.fsencode(path).split(b"/")))
