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


@functools.cache
def all_rows() -> tuple[Row, ...]:
    """Return the rows of data/scripts.json; its heading describes them."""
    data = resources.files("images.bootstrap").joinpath("data/scripts.json")
    return tuple(json.loads(data.read_text(encoding="utf-8"))["rows"])


WANTED = "|".join(
    sorted(re.escape(source) for row in all_rows() for source in row.get("copies", {}).values())
)


def rows_for(suite: str, packages: Collection[str], triplet: str) -> tuple[Row, ...]:
    """Select the rows of the given packages, for the architecture of `triplet`."""
    return tuple(
        _filled(row, triplet)
        for row in all_rows()
        if row["package"] in packages and suite in row.get("suites", [suite])
    )


def _filled(value: Any, triplet: str) -> Any:  # noqa: ANN401  any JSON value
    if isinstance(value, str):
        return value.replace("{triplet}", triplet)
    if isinstance(value, Mapping):
        return {_filled(key, triplet): _filled(one, triplet) for key, one in value.items()}
    return [_filled(one, triplet) for one in value] if isinstance(value, list) else value


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


def unknown(
    packages: Sequence[UnpackedPackage], rows: Iterable[Row], readings: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the packages whose scripts would leave what is not known, each with the reason.
    `readings`: the packages without a row that have scripts, and what of these was not understood
    ("": nothing).
    """
    found = {name: f"its script runs {line!r}" for name, line in readings.items() if line}
    for row in rows:
        name = row["package"]
        others = [one.files for one in packages if one.package.name != name]
        if "refused" in row:
            found[name] = row["refused"]
        for place, why in row.get("unless", {}).items():
            if any(path.startswith(place) for files in others for path in files):
                found[name] = why
    return found


def modes(suite: str, package: str) -> Mapping[str, tuple[int, tuple[int, int]]]:
    """Return the files of a package whose modes and owners its scripts change."""
    return {
        path: (int(how["mode"], 8), _owner(how["owner"]))
        for row in all_rows()
        if row["package"] == package and suite in row.get("suites", [suite])
        for path, how in row.get("modes", {}).items()
    }
