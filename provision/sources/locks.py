"""The locks of other tools: uv.lock, and a pylock.toml that is not ours.

Every version in them holds. Which packages an image needs is left to uv, which evaluates the
markers for it: a lock's packages become constraints, and what the project itself requires is
installed.
https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile https://peps.python.org/pep-0751/
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.utils import canonicalize_name

from images.text.printable import printable
from provision.catalog.loading import load
from provision.model.environment import environment_of, is_wheel_url
from provision.model.planfile import TOOL
from provision.sources.declaration import (
    Declaration,
    Declared,
    pythons_of,
    read_python,
    read_requirement,
)
from provision.sources.errors import ProjectError
from provision.sources.files import (
    LOCK_BYTES,
    is_file,
    line_of,
    listed,
    public,
    read_text,
    read_toml,
    shown,
    table,
)
from provision.sources.packages import IndexSource, Position
from provision.sources.pyproject import read_pyproject

_OWN = ("editable", "virtual", "directory")
_SHA256 = re.compile(r"sha256:([0-9a-f]{64})")
_Row = Mapping[str, Any]


def read_uv_lock(path: Path, root: Path) -> Declaration | None:
    """The declaration of a uv.lock: what the project and its members require, and all versions.
    ProjectError: it is invalid, or of another version.
    """
    name = shown(path, root)
    text = read_text(path, root, limit=LOCK_BYTES)
    document = read_toml(text, name)
    rows = [row for row in listed(document.get("package")) if isinstance(row, dict)]
    if document.get("version") != 1 or not all(isinstance(row.get("name"), str) for row in rows):
        raise ProjectError(
            f"{name} is not a lock of uv, version 1.", fix="Lock the project again: uv lock"
        )
    lines = _lines(text)
    own = [row for row in rows if set(_source(row)) & set(_OWN)]
    rest = [row for row in rows if not set(_source(row)) & set(_OWN)]
    left_out: list[str] = []
    constraints = [
        declared for row in rest for declared in _constraint(row, name, lines[id_of(row)], left_out)
    ]
    versions: dict[str, set[str]] = {}
    for row in rest:  # what is from elsewhere must not be taken from an index under its name
        if "registry" in _source(row) or is_wheel_url(str(_source(row).get("url", ""))):
            versions.setdefault(row["name"], set()).add(_release_of(row))
    packages = [
        declared
        for row in own
        for dependency in listed(row.get("dependencies"))
        for declared in _dependency(dependency, versions, name, lines)
        if declared.name not in {canonicalize_name(one["name"]) for one in own}
    ]
    left_out += _optional(own, name)
    left_out += _registries(rest, name)
    return Declaration(
        source=name,
        packages=tuple(dict.fromkeys(packages)),
        constraints=tuple(constraints),
        python=read_python(document.get("requires-python"), name, line_of(text, "requires-python")),
        cuda=_cuda(rest, name, lines),
        hashes=_hashes(rest),
        left_out=tuple(left_out),
        locked=True,
        members=tuple(
            str(place)
            for row in own
            if isinstance(place := _source(row).get("editable"), str) and _is_inside(place)
        ),
    )


def id_of(row: _Row) -> tuple[str, str]:
    """What tells the packages of a lock apart: name and version."""
    return str(row.get("name", "")), str(row.get("version", ""))


def _lines(text: str) -> dict[tuple[str, str], int]:
    """The line of each package; 0 for what is not found."""
    found: dict[tuple[str, str], int] = _Lines()
    at, name = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("name = "):
            at, name = number, line[7:].strip().strip("\"'")
            found.setdefault((name, ""), at)
        elif line.startswith("version = ") and name:
            found[name, line[10:].strip().strip("\"'")] = at
            name = ""
    return found


class _Lines(dict[tuple[str, str], int]):
    def __missing__(self, key: tuple[str, str]) -> int:
        return 0


def _source(row: _Row) -> _Row:
    return table(row, "source")


def _release_of(row: _Row) -> str:
    """What follows the name of a package in a requirement: "==1.2", or the address of its wheel."""
    url = str(_source(row).get("url", ""))
    if is_wheel_url(url):
        return f" @ {url}"
    return f"=={row['version']}" if isinstance(row.get("version"), str) else ""


def _is_inside(place: str) -> bool:
    return not place.startswith("/") and ".." not in place.split("/")


def _constraint(row: _Row, name: str, line: int, left_out: list[str]) -> Iterator[Declared]:
    source, release = _source(row), _release_of(row)
    at = Declared("", name, line)
    if release and ("registry" in source or "url" in source):
        markers = [str(one) for one in listed(row.get("resolution-markers"))]
        where = " or ".join(f"({one})" for one in markers)
        text = f"{row['name']}{release}{f' ; {where}' if where else ''}"
        declared = read_requirement(text, name, line)
        if declared is not None:
            yield declared
        return
    kind = next(iter(source), "unknown")
    left_out.append(
        f"{printable(row['name'], limit=60)} ({at.where}; from {printable(kind, limit=20)}, and "
        "images are built from wheels)"
    )


def _dependency(
    row: object, versions: Mapping[str, set[str]], name: str, lines: Mapping[tuple[str, str], int]
) -> Iterator[Declared]:
    """A dependency of the project, at the version that the lock has of it."""
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return
    if row["name"] not in versions:
        return
    known = versions[row["name"]]
    version = str(row.get("version", ""))
    release = f"=={version}" if version else next(iter(known)) if len(known) == 1 else ""
    extras = ",".join(map(str, listed(row.get("extra"))))
    marker = f" ; {row['marker']}" if isinstance(row.get("marker"), str) else ""
    written = f"{row['name']}{f'[{extras}]' if extras else ''}{release}{marker}"
    version = release.removeprefix("==")
    declared = read_requirement(written, name, lines[row["name"], version])
    if declared is not None:
        yield declared


def _optional(own: Iterable[_Row], name: str) -> Iterator[str]:
    kinds = {"extra": "optional-dependencies", "group": "dev-dependencies"}
    for kind, key in kinds.items():
        found = list(dict.fromkeys(one for row in own for one in table(row, key)))
        if found:
            names = ", ".join(printable(one, limit=30) for one in found[:6])
            yield f"{kind}{'s' if len(found) > 1 else ''} {names} ({name})"


def _registries(rows: Iterable[_Row], name: str) -> Iterator[str]:
    """The indexes that are neither the one of most packages nor PyTorch's."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if isinstance(url := _source(row).get("registry"), str):
            found.setdefault(url, []).append(row["name"])
    most = Counter({url: len(names) for url, names in found.items()}).most_common(1)
    for url, names in found.items():
        if url != most[0][0] and IndexSource(url=url, at=Position(1)).torch_tag is None:
            few = ", ".join(printable(one, limit=40) for one in names[:4])
            yield f"the index {public(url)}, which has {few} ({name}; to use it: --index URL)"


def _cuda(rows: Iterable[_Row], name: str, lines: Mapping[tuple[str, str], int]) -> Declared | None:
    """The CUDA of the PyTorch index that torch comes from."""
    for row in rows:
        url = _source(row).get("registry")
        if row["name"] == "torch" and isinstance(url, str):
            cuda = IndexSource(url=url, at=Position(1)).cuda
            if cuda is not None:
                return Declared(cuda, name, lines[id_of(row)])
    return None


def _hashes(rows: Iterable[_Row]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        files = [one for one in listed(row.get("wheels")) if isinstance(one, dict)]
        hashes = {match[1] for one in files if (match := _SHA256.match(str(one.get("hash", ""))))}
        found.setdefault(canonicalize_name(row["name"]), set()).update(hashes)
    return {name: frozenset(hashes) for name, hashes in found.items() if hashes}


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
    lines = _lines(text)
    left_out: list[str] = []
    pins = [
        declared
        for row in rows
        for declared in _pin(row, groups, name, lines[id_of(row)], left_out)
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
        left_out=tuple(left_out),
        locked=True,
    )


def _pin(
    row: _Row, groups: set[str], name: str, line: int, left_out: list[str]
) -> Iterator[Declared]:
    at = Declared("", name, line)
    marker = row.get("marker")
    if isinstance(marker, str) and re.search(r"\b(extras|dependency_groups)\b", marker):
        if not _selected(marker, groups, at):
            return
        marker = None
    version = row.get("version")
    url = str(table(row, "archive").get("url", ""))
    other = next((kind for kind in ("vcs", "directory") if kind in row), "")
    if other or not (isinstance(version, str) or is_wheel_url(url)):
        if other != "directory" or table(row, "directory").get("path") not in {".", "./"}:
            left_out.append(
                f"{printable(row['name'], limit=60)} ({at.where}; images are built from wheels)"
            )
        return
    written = f"{row['name']} @ {url}" if is_wheel_url(url) else f"{row['name']}=={version}"
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


def _pylock_hashes(rows: Iterable[_Row]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        for one in listed(row.get("wheels")):
            value = table(one, "hashes").get("sha256")
            if isinstance(value, str):
                found.setdefault(canonicalize_name(row["name"]), set()).add(value)
    return {name: frozenset(values) for name, values in found.items()}
