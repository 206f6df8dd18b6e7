"""A uv.lock.

Every version in it holds. Which packages an image needs is left to uv, which evaluates the
markers for it: a lock's packages become constraints, and what the project itself requires is
installed.
https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs

from packaging.utils import canonicalize_name

from images.text.printable import printable
from provision.model.environment import is_wheel_url
from provision.sources.declaration import (
    Declaration,
    Declared,
    Lacking,
    OptionalPackages,
    read_python,
    read_requirement,
    together,
    why_missing,
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
from provision.sources.packages import IndexSource, Position, repository_url
from provision.sources.pyproject import conflicts_of, read_pyproject

_OWN = ("editable", "virtual", "directory")
_SHA256 = re.compile(r"sha256:([0-9a-f]{64})")
Row = Mapping[str, Any]


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
    lines = lines_of(text)
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
    own: Sequence[Row]
    rest: Sequence[Row]
    lines: Mapping[tuple[str, str], int]

    def part(self, rows: Iterable[object], chosen: str = "") -> Declaration:
        """What some of the project's dependencies install. `chosen` is the extra or group that they
        are of, as uv's markers name it ("extra-4-chat-cu126").
        """
        wanted: list[Row] = [
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
                if _is_installed(row) and ("git" not in _source(row) or row["name"] in reached)
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

    def _reached(self, rows: Iterable[Row], chosen: str) -> set[str]:
        """The names of all that these dependencies need."""
        by_name: dict[str, list[Row]] = {}
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

    def _missing(self, row: Row) -> Lacking:
        kind = printable(next(iter(_source(row)), "elsewhere"), limit=20)
        shown_ = printable(row["name"], limit=60)
        why = f"from {kind}, and images are built from wheels"
        line = self.lines[id_of(row)]
        return Lacking(canonicalize_name(shown_), shown_, self.name, line, why)


def _is_installed(row: Row) -> bool:
    """Whether an index or an address has the package's wheels."""
    source = _source(row)
    return bool(_release_of(row)) and (
        "registry" in source or is_wheel_url(str(source.get("url"))) or "git" in source
    )


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


def _is_needed(row: Row, chosen: str) -> bool:
    """Whether a dependency is for some Linux image."""
    marker = row.get("marker")
    written = f"x ; {_decided(marker, chosen)}" if isinstance(marker, str) else "x"
    return read_requirement(written, "uv.lock", 0) is not None


def id_of(row: Row) -> tuple[str, str]:
    """What tells the packages of a lock apart: name and version."""
    return str(row.get("name", "")), str(row.get("version", ""))


def lines_of(text: str) -> dict[tuple[str, str], int]:
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


def _source(row: Row) -> Row:
    return table(row, "source")


def _release_of(row: Row) -> str:
    """What follows the name of a package in a requirement: "==1.2", or the address of its wheel."""
    url = str(_source(row).get("url", ""))
    if is_wheel_url(url):
        return f" @ {url}"
    if (repository := _repository(_source(row))) and not why_missing(row["name"], repository):
        return f" @ {repository}"
    if "git" in _source(row):
        return ""
    return f"=={row['version']}" if isinstance(row.get("version"), str) else ""


def _repository(source: Mapping[str, Any]) -> str:
    """A commit as uv.lock has it ("https://HOST/NAME?rev=main#COMMIT"), as a requirement has it."""
    url, _, commit = str(source.get("git", "")).partition("#")
    place, _, query = url.partition("?")
    directory = parse_qs(query).get("subdirectory", [None])[0]
    return repository_url({"git": place, "rev": commit, "subdirectory": directory}) if url else ""


def _is_inside(place: str) -> bool:
    return not place.startswith("/") and ".." not in place.split("/")


def _constraint(row: Row, name: str, line: int, chosen: str) -> Iterator[Declared]:
    markers = [_decided(str(one), chosen) for one in listed(row.get("resolution-markers"))]
    where = " or ".join(f"({one})" for one in markers)
    text = f"{row['name']}{_release_of(row)}{f' ; {where}' if where else ''}"
    declared = read_requirement(text, name, line)
    yield from [declared] if declared is not None else []


def _dependency(
    row: Row,
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
    release = next(iter(known)) if len(known) == 1 else f"=={version}" if version else ""
    extras = ",".join(map(str, listed(row.get("extra"))))
    said = row.get("marker")
    marker = f" ; {_decided(said, chosen)}" if isinstance(said, str) else ""
    written = f"{row['name']}{f'[{extras}]' if extras else ''}{release}{marker}"
    version = release[2:] if release.startswith("==") else ""
    declared = read_requirement(written, name, lines[row["name"], version])
    if declared is not None:
        yield declared


def _registries(rows: Iterable[Row], name: str) -> Iterator[str]:
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


def _cuda(rows: Iterable[Row], name: str, lines: Mapping[tuple[str, str], int]) -> Declared | None:
    """The CUDA of the PyTorch index that torch comes from."""
    for row in rows:
        url = _source(row).get("registry")
        if row["name"] == "torch" and isinstance(url, str):
            cuda = IndexSource(url=url, at=Position(1)).cuda
            if cuda is not None:
                return Declared(cuda, name, lines[id_of(row)])
    return None


def _hashes(rows: Iterable[Row]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        files = [
            one
            for one in (*listed(row.get("wheels")), table(row, "sdist"))
            if isinstance(one, dict)
        ]
        hashes = {match[1] for one in files if (match := _SHA256.match(str(one.get("hash", ""))))}
        found.setdefault(canonicalize_name(row["name"]), set()).update(hashes)
    return {name: frozenset(hashes) for name, hashes in found.items() if hashes}
