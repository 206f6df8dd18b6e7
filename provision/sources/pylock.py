"""A pylock.toml that is not ours: its versions hold, as those of a uv.lock.

https://peps.python.org/pep-0751/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.utils import canonicalize_name

from images.text.printable import printable
from provision.catalog.loading import load
from provision.model.environment import environment_of
from provision.model.planfile import TOOL
from provision.sources.declaration import (
    Declaration,
    Declared,
    Lacking,
    pythons_of,
    read_python,
    read_requirement,
    why_missing,
)
from provision.sources.errors import ProjectError
from provision.sources.files import (
    LOCK_BYTES,
    is_file,
    line_of,
    listed,
    read_text,
    read_toml,
    shown,
    table,
)
from provision.sources.locks import Row, id_of, lines_of
from provision.sources.packages import repository_url
from provision.sources.pyproject import read_pyproject


def read_pylock(path: Path, root: Path) -> Declaration | None:
    """The declaration of a pylock.toml; None if `provision lock` wrote it: that decides everything,
    and is given with --lock. ProjectError: it is invalid.
    """
    name = shown(path, root)
    text = read_text(path, root, limit=LOCK_BYTES)
    document = read_toml(text, name)
    if table(document, "tool", TOOL):
        return None
    rows = [row for row in listed(document.get("packages")) if isinstance(row, dict)]
    known = str(document.get("lock-version", "")).partition(".")[0] == "1"
    whole = isinstance(document.get("packages"), list)
    if not (known and whole and all(isinstance(row.get("name"), str) for row in rows)):
        raise ProjectError(
            f"{name} is not a lock of PEP 751, version 1.",
            fix="Lock the project again: uv export --format pylock.toml -o pylock.toml",
        )
    groups = {str(one) for one in listed(document.get("default-groups"))}
    lines = lines_of(text)
    missing: list[Lacking] = []
    pins = [
        declared for row in rows for declared in _pin(row, groups, name, lines[id_of(row)], missing)
    ]
    beside = root / "pyproject.toml"
    direct = read_pyproject(beside, root) if is_file(beside) else None
    roots = {one.name for one in direct.packages} if direct else set()
    python = document.get("requires-python")
    return Declaration(
        source=name,
        packages=tuple(one for one in pins if not roots or one.name in roots),
        constraints=tuple(pins) if roots else (),
        python=read_python(python, name, line_of(text, "requires-python")),
        hashes=_pylock_hashes(rows),
        missing=tuple(missing),
        locked=True,
    )


def _pin(
    row: Row, groups: set[str], name: str, line: int, missing: list[Lacking]
) -> Iterator[Declared]:
    at = Declared("", name, line)
    marker = row.get("marker")
    if isinstance(marker, str) and re.search(r"\b(extras|dependency_groups)\b", marker):
        if not _selected(marker, groups, at):
            return
        marker = None
    version = row.get("version")
    url = str(table(row, "archive").get("url", ""))
    vcs = table(row, "vcs")
    commit = {"git": vcs.get("url"), "rev": vcs.get("commit-id")}
    repository = repository_url({**commit, "subdirectory": vcs.get("subdirectory")})
    if repository and not why_missing(row["name"], repository):
        url, other = repository, ""
    else:
        other = next((kind for kind in ("vcs", "directory") if kind in row), "")
    placed = bool(url) and not why_missing(row["name"], url)
    if other or not (isinstance(version, str) or placed):
        if other != "directory" or table(row, "directory").get("path") not in {".", "./"}:
            shown_ = printable(row["name"], limit=60)
            missing.append(Lacking(canonicalize_name(shown_), shown_, name, line))
        return
    written = f"{row['name']} @ {url}" if placed else f"{row['name']}=={version}"
    declared = read_requirement(f"{written}{f' ; {marker}' if marker else ''}", name, line)
    if declared is not None:
        yield declared


def _selected(marker: str, groups: set[str], at: Declared) -> bool:
    """Whether a package that is for extras or groups is installed by default."""
    environment: dict[str, Any] = {
        **environment_of(pythons_of(load())[-1], "x86_64"),
        "extras": set(),
        "dependency_groups": groups,
    }
    try:
        return Marker(marker).evaluate(environment, context="lock_file")
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, RecursionError) as error:
        raise ProjectError(
            f"{at.where}: {printable(marker, limit=100)!r} is not a valid marker.",
            fix="Lock the project again.",
        ) from error


def _pylock_hashes(rows: Iterable[Row]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        for one in (*listed(row.get("wheels")), table(row, "sdist")):
            value = table(one, "hashes").get("sha256")
            if isinstance(value, str):
                found.setdefault(canonicalize_name(row["name"]), set()).add(value)
    return {name: frozenset(values) for name, values in found.items()}
