"""The simple effects of scripts: copies, files, directories and links, as rows of data."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from images.bootstrap.tree import PackageTree
from images.bootstrap.unpack import UnpackedPackage

Row = Mapping[str, Any]
_SCRIPTS = ("preinst", "postinst")


@functools.cache
def all_rows() -> tuple[Row, ...]:
    """Return the rows of data/scripts.json; its heading describes them."""
    data = resources.files("images.bootstrap").joinpath("data/scripts.json")
    return tuple(json.loads(data.read_text(encoding="utf-8"))["rows"])


def _copied() -> Iterable[str]:
    return (source for row in all_rows() for source in row.get("copies", {}).values())


WANTED = "|".join(sorted(re.escape(source) for source in _copied()))


def rows_for(suite: str, packages: Collection[str]) -> tuple[Row, ...]:
    """Select the rows of the given packages."""
    return tuple(
        row
        for row in all_rows()
        if row["package"] in packages and suite in row.get("suites", [suite])
    )


def apply(tree: PackageTree, rows: Iterable[Row]) -> None:
    """Apply the rows. Existing files stay unchanged, as with the scripts."""
    for row in rows:
        for path, how in row.get("directories", {}).items():
            tree.add_directory(
                path, mode=int(how.get("mode", "755"), 8), owner=_owner(how.get("owner", "0:0"))
            )
        for path, source in row.get("copies", {}).items():
            content = tree.read(source)
            if content is not None and not tree.has(path):
                tree.add_file(path, content)
        for path, how in row.get("files", {}).items():
            if not tree.has(path):
                tree.add_file(
                    path,
                    how.get("text", "").encode(),
                    mode=int(how.get("mode", "644"), 8),
                    owner=_owner(how.get("owner", "0:0")),
                )
        for path, target in row.get("links", {}).items():
            tree.add_link(path, target)


def _owner(text: str) -> tuple[int, int]:
    user, _, group = text.partition(":")
    return int(user), int(group)


def unknown(packages: Sequence[UnpackedPackage], rows: Iterable[Row]) -> frozenset[str]:
    """Return the names of the packages with scripts that have no row."""
    known = {row["package"] for row in rows}
    return frozenset(
        one.package.name
        for one in packages
        if any(script in one.control for script in _SCRIPTS) and one.package.name not in known
    )
