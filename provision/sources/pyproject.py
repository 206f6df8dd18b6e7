"""A pyproject.toml: the standard's dependencies, or Poetry's.

Extras and groups are for those who name them, and groups for development stay out.
https://packaging.python.org/en/latest/specifications/pyproject-toml/
https://python-poetry.org/docs/dependency-specification/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from images.text.printable import printable
from provision.model.environment import public_requirement
from provision.model.plan import DeclaredIndex, IndexKind
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
    is_file,
    line_of,
    line_with,
    listed,
    public,
    read_text,
    shown,
    table,
)
from provision.sources.packages import IndexSource, Position, repository_url
from provision.sources.poetry import PoetryDependency
from provision.sources.pyproject_file import PyprojectFile
from provision.sources.requirements import read_requirements
from provision.sources.setup_script import SETUP_READERS

_DEVELOPMENT = frozenset({"dev", "test", "tests", "lint", "docs", "doc", "typing"})


def read_pyproject(path: Path, root: Path) -> Declaration | None:
    """What a pyproject.toml declares; None if it declares no dependencies: many only configure
    tools. ProjectError: it is invalid.
    """
    name = shown(path, root)
    text = read_text(path, root)
    file = PyprojectFile(name, text)
    document, project = file.document, file.table("project")
    if not project and not file.table("tool", "poetry"):
        return None
    if not isinstance(project.get("dependencies", []), list):
        raise ProjectError(
            f"{name}: dependencies is not a list.",
            fix="Write it like this: dependencies = ['transformers>=4.40']",
        )
    own = _standard(file, listed(project.get("dependencies")))
    computed = None
    if "dependencies" in listed(project.get("dynamic")):
        computed = _computed(document, path, root)
        if computed is None:
            why = "the build backend computes them"
            line = line_of(text, r"dynamic\s*=")
            own = replace(
                own,
                missing=(*own.missing, Lacking("dependencies", "dependencies", name, line, why)),
            )
    python = read_python(
        project.get("requires-python"), name, line_of(text, r"requires-python\s*=")
    )
    if not project.get("dependencies"):
        more, poetry_python = _poetry(file, file.poetry)
        own, python = together(name, own, more), python or poetry_python
    conflicts = tuple(conflicts_of(file.table("tool", "uv")))
    own = replace(own, python=python, optional=tuple(_optional(file)), conflicts=conflicts)
    return own if computed is None else together(name, own, computed)


def _standard(file: PyprojectFile, rows: Iterable[object]) -> Declaration:
    """A list of requirements in the standard's notation."""
    sources = _Sources(file.document, file.text, file.name)
    packages: list[Declared] = []
    missing: list[Lacking] = []
    left_out: list[str] = []
    for one in rows:
        line = line_with(file.text, f'"{one}"', f"'{one}'")
        declared = read_requirement(one if isinstance(one, str) else repr([one]), file.name, line)
        if declared is None:
            continue
        if (repository := sources.repository_of(declared)) and not declared.requirement.url:
            declared = _from(declared, repository)
        url = declared.requirement.url
        if url is not None:
            why = why_missing(declared.name, url)
        else:
            why = sources.not_an_index(declared, left_out)
        if why:
            missing.append(Lacking(declared.name, public(declared.text), file.name, line, why))
        else:
            packages.append(declared)
    return Declaration(
        source=file.name,
        packages=tuple(packages),
        cuda=sources.cuda,
        missing=tuple(missing),
        left_out=tuple(left_out),
        indexes=sources.indexes,
    )


def _from(declared: Declared, url: str) -> Declared:
    """A requirement that is taken from this address, whatever versions it allows."""
    requirement = declared.requirement
    requirement.specifier, requirement.url = SpecifierSet(), url
    text, address = public_requirement(requirement)
    return declared._replace(text=text, address=address)


def _computed(document: Mapping[str, Any], path: Path, root: Path) -> Declaration | None:
    """The dependencies that setuptools reads from other files; None: another backend computes them.
    https://setuptools.pypa.io/en/latest/userguide/pyproject_config.html#dynamic-metadata
    """
    said = table(document, "tool", "setuptools", "dynamic", "dependencies").get("file")
    files = [one for one in (said if isinstance(said, list) else [said]) if isinstance(one, str)]
    if files:
        return together(
            shown(path, root), *(read_requirements(path.parent / one, root) for one in files)
        )
    for name, read in SETUP_READERS:
        beside = path.parent / name
        found = read(beside, root) if is_file(beside) else None
        if found is not None:
            return found
    return None


class _Sources:
    """Where uv takes packages from: what is not from an index must not be taken from one under its
    name. `cuda` is that of the PyTorch index that a package comes from.
    https://docs.astral.sh/uv/concepts/projects/dependencies/#dependency-sources
    """

    def __init__(self, document: Mapping[str, Any], text: str, name: str) -> None:
        uv = table(document, "tool", "uv")
        self._text, self._name = text, name
        self._rows: dict[str, Any] = {
            canonicalize_name(key): row for key, row in table(uv, "sources").items()
        }
        rows = [*listed(uv.get("index")), *listed(table(document, "tool", "poetry").get("source"))]
        self._indexes = {
            str(one.get("name")): str(one.get("url", "")) for one in rows if isinstance(one, dict)
        }
        self.indexes = tuple(self._places(rows, uv))
        self.cuda: Declared | None = None

    def _places(self, rows: Iterable[object], uv: Mapping[str, Any]) -> Iterator[DeclaredIndex]:
        """The indexes of uv and Poetry, then pages of links, in the order of the file; of explicit
        ones those that have a package.
        """
        used = {
            str(row.get("index"))
            for said in self._rows.values()
            for row in (said if isinstance(said, list) else [said])
            if isinstance(row, dict)
        }
        for row in rows:
            if isinstance(row, dict) and (
                row.get("explicit") is not True or row.get("name") in used
            ):
                is_default = row.get("default") is True or row.get("priority") == "default"
                kind: IndexKind = "default" if is_default else "index"
                name = str(row.get("name") or "")
                yield from self._place(
                    row.get("url"), "links" if row.get("format") == "flat" else kind, name
                )
        for place in (uv, table(uv, "pip")):
            for url in listed(place.get("extra-index-url")):
                yield from self._place(url, "index")
            for url in listed(place.get("find-links")):
                yield from self._place(url, "links")
            yield from self._place(place.get("index-url"), "default")

    def _place(self, url: object, kind: IndexKind, name: str = "") -> Iterator[DeclaredIndex]:
        if isinstance(url, str):
            line = line_with(self._text, url)
            place = IndexSource(url=url, at=Position(1)).declared(
                kind, Declared("", self._name, line).where
            )
            yield from [place._replace(name=name)] if place else []

    def read_cuda(self, index: object) -> str | None:
        """The tag of a PyTorch index, by the name that the project gives it; its CUDA is kept."""
        url = self._indexes.get(str(index), "")
        index = IndexSource(url=url, at=Position(1))
        if index.cuda is not None:
            self.cuda = Declared(index.cuda, self._name, line_with(self._text, url))
        return index.torch_tag

    def repository_of(self, declared: Declared) -> str:
        """The address of the git repository that a package comes from; "" for another place."""
        said = self._rows.get(declared.name)
        rows = [
            row for row in (said if isinstance(said, list) else [said]) if isinstance(row, dict)
        ]
        return next((repository_url(row) for row in rows if self._counts(row)), "")

    def not_an_index(self, declared: Declared, left_out: list[str]) -> str:
        """Why a package does not come from an index; "" if it does."""
        said = self._rows.get(declared.name)
        for row in said if isinstance(said, list) else [said]:
            if not isinstance(row, dict) or not self._counts(row):
                continue
            if "index" in row:
                url = self._indexes.get(str(row["index"])) or str(row["index"])
                asked = IndexSource(url=url, at=Position(1)).declared("index", "") is not None
                if self.read_cuda(row["index"]) is None and not asked:
                    left_out.append(
                        f"the index {public(url)}, which has {declared.name} ({self._name}; to "
                        "use it: --index URL)"
                    )
            else:
                kind = printable(next(iter(row), "elsewhere"), limit=30)
                return f"from {kind}, and images are built from wheels of an index"
        return ""

    def _counts(self, row: Mapping[str, Any]) -> bool:
        """Whether a source is for Linux."""
        marker = row.get("marker")
        written = f"x ; {marker}" if isinstance(marker, str) else "x"
        return read_requirement(written, self._name, 0) is not None


def _optional(file: PyprojectFile) -> Iterator[OptionalPackages]:
    """The extras and groups of a project; those that it names as default are installed, as by uv
    and Poetry, but those for development.
    https://docs.astral.sh/uv/concepts/projects/dependencies/#default-groups
    """
    own = canonicalize_name(str(file.table("project").get("name", "")))
    for name in file.extras:
        declared = _standard(file, _extra(file, name, own))
        yield OptionalPackages("extra", canonicalize_name(name), declared)
    said = file.table("tool", "uv").get("default-groups")
    default = list(file.groups) if said == "all" else listed(said)
    names = {canonicalize_name(one) for one in default if isinstance(one, str)}
    for name, rows in file.groups.items():
        declared = _standard(file, [one.written for one in rows])
        yield _group(name, declared, default=canonicalize_name(name) in names)
    for name, poetry in file.poetry_groups.items():
        said = file.table("tool", "poetry", "group", name).get("optional")
        yield _group(name, _poetry(file, poetry)[0], default=said is not True)


def _group(name: str, declared: Declaration, *, default: bool) -> OptionalPackages:
    name = canonicalize_name(name)
    return OptionalPackages("group", name, declared, default=default and name not in _DEVELOPMENT)


def _extra(file: PyprojectFile, name: str, own: str) -> Iterator[str]:
    """What an extra requires, with that of the project's other extras that it names."""
    by_name = {canonicalize_name(one): rows for one, rows in file.extras.items()}
    seen, waiting = {canonicalize_name(name)}, [canonicalize_name(name)]
    while waiting:
        for one in by_name.get(waiting.pop(0), ()):
            if not own or one.name != own:
                yield one.written
                continue
            more = sorted({canonicalize_name(extra) for extra in one.extras} - seen)
            seen.update(more)
            waiting += more


def conflicts_of(uv: Mapping[str, Any]) -> Iterator[frozenset[str]]:
    """The extras and groups that exclude each other, of uv's configuration or of its lock.
    https://docs.astral.sh/uv/concepts/projects/config/#conflicting-dependencies
    """
    for rows in listed(uv.get("conflicts")):
        found = {
            f"{kind} {canonicalize_name(one[kind])}"
            for one in listed(rows)
            for kind in ("extra", "group")
            if isinstance(one, dict) and isinstance(one.get(kind), str)
        }
        if len(found) > 1:
            yield frozenset(found)


def _poetry(
    file: PyprojectFile, rows: Iterable[PoetryDependency]
) -> tuple[Declaration, Declared | None]:
    """Dependencies of Poetry, in the standard's notation, and its Python."""
    sources = _Sources(file.document, file.text, file.name)
    packages: list[Declared] = []
    missing: list[Lacking] = []
    python = None
    for one in rows:
        at = Declared("", file.name, one.line)
        if one.optional:
            continue
        if repository := repository_url(one.row):
            declared = read_requirement(one.written, file.name, one.line)
            if declared is None:
                continue
            if not (why := why_missing(declared.name, repository)):
                packages.append(_from(declared, repository))
            else:
                missing.append(Lacking(declared.name, declared.name, file.name, one.line, why))
            continue
        if one.address or one.version is None:
            name, why = printable(one.name, limit=60), "not a release of an index"
            missing.append(Lacking(canonicalize_name(name), name, file.name, one.line, why))
            continue
        if one.unknown is not None:
            raise ProjectError(
                f"{at.where}: {printable(one.unknown, limit=60)!r} is not a version constraint of "
                "Poetry.",
                fix="Write it like this: ^2.5, or >=2.5,<3",
            )
        if one.name.lower() == "python":
            python = read_python(one.specifier, file.name, one.line)
            continue
        if "source" in one.row:
            sources.read_cuda(one.row["source"])
        declared = read_requirement(one.written, file.name, one.line)
        packages += [declared] if declared is not None else []
    own = Declaration(
        source=file.name,
        packages=tuple(packages),
        cuda=sources.cuda,
        missing=tuple(missing),
        indexes=sources.indexes,
    )
    return own, python
