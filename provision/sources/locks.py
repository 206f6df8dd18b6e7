"""The locks of other tools: uv.lock, and a pylock.toml that is not ours.

Every version in them holds. Which packages an image needs is left to uv, which evaluates the
markers for it: a lock's packages become constraints, and what the project itself requires is
installed.
https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile https://peps.python.org/pep-0751/
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.utils import canonicalize_name

from images.text.printable import printable
from provision.catalog.loading import load
from provision.model.environment import environment_of, is_wheel_url
from provision.model.planfile import TOOL
from provision.sources.declaration import (
    Declaration,
    Declared,
    Lacking,
    OptionalPackages,
    pythons_of,
    read_python,
    read_requirement,
    together,
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
from provision.sources.pyproject import conflicts_of, read_pyproject

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
    lock = _UvLock(name, own, rest, lines)
    beside = root / "pyproject.toml"
    direct = read_pyproject(beside, root) if is_file(beside) else None
    default = {(one.kind, one.name) for one in direct.optional if one.default} if direct else set()
    return replace(
        lock.part([one for row in own for one in listed(row.get("dependencies"))]),
        python=read_python(document.get("requires-python"), name, line_of(text, "requires-python")),
        cuda=_cuda(rest, name, lines),
        hashes=_hashes(rest),
        left_out=tuple(_registries(rest, name)),
        optional=tuple(
            one._replace(default=(one.kind, one.name) in default) for one in lock.optional()
        ),
        conflicts=tuple(conflicts_of(document)),
        locked=True,
        members=tuple(
            str(place)
            for row in own
            if isinstance(place := _source(row).get("editable"), str) and _is_inside(place)
        ),
    )


@dataclass(frozen=True, slots=True)
class _UvLock:
    """The packages of a uv.lock: the project's own and the others, and the line of each."""

    name: str
    own: Sequence[_Row]
    rest: Sequence[_Row]
    lines: Mapping[tuple[str, str], int]

    def part(self, rows: Iterable[object], chosen: str = "") -> Declaration:
        """What some of the project's dependencies install. `chosen` is the extra or group that they
        are of, as uv's markers name it ("extra-4-chat-cu126").
        """
        wanted: list[_Row] = [
            one for one in rows if isinstance(one, dict) and isinstance(one.get("name"), str)
        ]
        versions: dict[str, set[str]] = {}
        for row in self.rest:  # what is from elsewhere must not be taken from an index
            if _is_installed(row):
                versions.setdefault(row["name"], set()).add(_release_of(row))
        ours = {canonicalize_name(one["name"]) for one in self.own}
        packages = [
            declared
            for row in wanted
            for declared in _dependency(row, versions, self.name, self.lines, chosen)
            if declared.name not in ours
        ]
        reached = self._reached(wanted, chosen)
        return Declaration(
            source=self.name,
            packages=tuple(dict.fromkeys(packages)),
            constraints=tuple(
                declared
                for row in self.rest
                if _is_installed(row)
                for declared in _constraint(row, self.name, self.lines[id_of(row)], chosen)
            ),
            missing=tuple(
                self._missing(row)
                for row in self.rest
                if row["name"] in reached and not _is_installed(row)
            ),
        )

    def optional(self) -> Iterator[OptionalPackages]:
        """The extras and groups of the project and its members."""
        kinds: tuple[tuple[Literal["extra", "group"], str], ...]
        kinds = (("extra", "optional-dependencies"), ("group", "dev-dependencies"))
        for kind, key in kinds:
            found: dict[str, list[Declaration]] = {}
            for row in self.own:
                for one, rows in table(row, key).items():
                    project = canonicalize_name(row["name"])
                    chosen = f"{kind}-{len(project)}-{project}-{one}"
                    found.setdefault(one, []).append(self.part(listed(rows), chosen))
            for one, parts in found.items():
                yield OptionalPackages(kind, canonicalize_name(one), together(self.name, *parts))

    def _reached(self, rows: Iterable[_Row], chosen: str) -> set[str]:
        """The names of all that these dependencies need."""
        by_name: dict[str, list[_Row]] = {}
        for row in (*self.own, *self.rest):
            by_name.setdefault(row["name"], []).append(row)
        seen: set[str] = set()
        waiting = list(rows)
        while waiting:
            one = waiting.pop()
            name = one.get("name")
            if not isinstance(name, str) or name in seen or not _is_needed(one, chosen):
                continue
            seen.add(name)
            for row in by_name.get(name, ()):
                extras = [
                    table(row, "optional-dependencies").get(e) for e in listed(one.get("extra"))
                ]
                for more in (row.get("dependencies"), *extras):
                    waiting += [each for each in listed(more) if isinstance(each, dict)]
        return seen

    def _missing(self, row: _Row) -> Lacking:
        kind = printable(next(iter(_source(row)), "elsewhere"), limit=20)
        shown_ = printable(row["name"], limit=60)
        why = f"from {kind}, and images are built from wheels"
        line = self.lines[id_of(row)]
        return Lacking(canonicalize_name(shown_), shown_, self.name, line, why)


def _is_installed(row: _Row) -> bool:
    """Whether an index or an address has the package's wheels."""
    source = _source(row)
    return bool(_release_of(row)) and ("registry" in source or is_wheel_url(str(source.get("url"))))


_CHOICE = re.compile(r"extra\s*(==|!=)\s*(['\"])((?:extra|group)-\d+-[^'\"]*)\2")


def _decided(marker: str, chosen: str) -> str:
    """A marker of uv without the extras and groups in it, of which only `chosen` is installed.
    https://docs.astral.sh/uv/concepts/projects/config/#conflicting-dependencies
    """
    return _CHOICE.sub(
        lambda found: (
            "python_version >= '0'"
            if (found[3] == chosen) == (found[1] == "==")
            else "python_version < '0'"
        ),
        marker,
    )


def _is_needed(row: _Row, chosen: str) -> bool:
    """Whether a dependency is for some Linux image."""
    marker = row.get("marker")
    written = f"x ; {_decided(marker, chosen)}" if isinstance(marker, str) else "x"
    return read_requirement(written, "uv.lock", 0) is not None


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


def _constraint(row: _Row, name: str, line: int, chosen: str) -> Iterator[Declared]:
    markers = [_decided(str(one), chosen) for one in listed(row.get("resolution-markers"))]
    where = " or ".join(f"({one})" for one in markers)
    text = f"{row['name']}{_release_of(row)}{f' ; {where}' if where else ''}"
    declared = read_requirement(text, name, line)
    yield from [declared] if declared is not None else []


def _dependency(
    row: _Row,
    versions: Mapping[str, set[str]],
    name: str,
    lines: Mapping[tuple[str, str], int],
    chosen: str,
) -> Iterator[Declared]:
    """A dependency of the project, at the version that the lock has of it."""
    if row["name"] not in versions:
        return
    known = versions[row["name"]]
    version = str(row.get("version", ""))
    release = f"=={version}" if version else next(iter(known)) if len(known) == 1 else ""
    extras = ",".join(map(str, listed(row.get("extra"))))
    said = row.get("marker")
    marker = f" ; {_decided(said, chosen)}" if isinstance(said, str) else ""
    written = f"{row['name']}{f'[{extras}]' if extras else ''}{release}{marker}"
    version = release.removeprefix("==")
    declared = read_requirement(written, name, lines[row["name"], version])
    if declared is not None:
        yield declared


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
    row: _Row, groups: set[str], name: str, line: int, missing: list[Lacking]
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
            shown_ = printable(row["name"], limit=60)
            missing.append(Lacking(canonicalize_name(shown_), shown_, name, line))
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
