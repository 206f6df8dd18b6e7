"""A pyproject.toml: the standard's dependencies, or Poetry's.

Extras and groups are for development, or for those who name them, and stay out.
https://packaging.python.org/en/latest/specifications/pyproject-toml/
https://python-poetry.org/docs/dependency-specification/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from images.text.printable import printable
from provision.model.environment import is_wheel_url
from provision.model.plan import DeclaredIndex, IndexKind
from provision.sources.declaration import (
    Declaration,
    Declared,
    read_python,
    read_requirement,
    together,
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
from provision.sources.packages import IndexSource, Position
from provision.sources.pyproject_file import PyprojectFile
from provision.sources.requirements import read_requirements
from provision.sources.setup_script import SETUP_READERS


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
    packages: list[Declared] = []
    left_out: list[str] = []
    for one in listed(project.get("dependencies")):
        line = line_with(text, f'"{one}"', f"'{one}'")
        declared = read_requirement(one if isinstance(one, str) else repr([one]), name, line)
        if declared is not None:
            packages += _wheels_only(declared, left_out)
    sources = _Sources(document, text, name)
    packages = [one for one in packages if sources.are_an_index(one, left_out)]
    computed = None
    if "dependencies" in listed(project.get("dynamic")):
        computed = _computed(document, path, root)
        if computed is None:
            left_out.append(f"dependencies that the build backend computes ({name}: dynamic)")
    python = read_python(
        project.get("requires-python"), name, line_of(text, r"requires-python\s*=")
    )
    if not project.get("dependencies"):
        more, poetry_python = _poetry(file, left_out, sources)
        packages, python = packages + more, python or poetry_python
    left_out += _optional(file)
    own = Declaration(
        source=name,
        packages=tuple(packages),
        python=python,
        cuda=sources.cuda,
        left_out=tuple(left_out),
        indexes=sources.indexes,
    )
    return own if computed is None else together(name, own, computed)


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
                yield from self._place(
                    row.get("url"), "links" if row.get("format") == "flat" else kind
                )
        for place in (uv, table(uv, "pip")):
            for url in listed(place.get("extra-index-url")):
                yield from self._place(url, "index")
            for url in listed(place.get("find-links")):
                yield from self._place(url, "links")
            yield from self._place(place.get("index-url"), "default")

    def _place(self, url: object, kind: IndexKind) -> Iterator[DeclaredIndex]:
        if isinstance(url, str):
            line = line_with(self._text, url)
            place = IndexSource(url=url, at=Position(1)).declared(
                kind, Declared("", self._name, line).where
            )
            yield from [place] if place else []

    def read_cuda(self, index: object) -> str | None:
        """The tag of a PyTorch index, by the name that the project gives it; its CUDA is kept."""
        url = self._indexes.get(str(index), "")
        index = IndexSource(url=url, at=Position(1))
        if index.cuda is not None:
            self.cuda = Declared(index.cuda, self._name, line_with(self._text, url))
        return index.torch_tag

    def are_an_index(self, declared: Declared, left_out: list[str]) -> bool:
        """Whether a package comes from an index; else it is added to `left_out`."""
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
                left_out.append(
                    f"{declared.name} ({declared.where}; from {kind}, and images are built from "
                    "wheels of an index)"
                )
                return False
        return True

    def _counts(self, row: Mapping[str, Any]) -> bool:
        """Whether a source is for Linux."""
        marker = row.get("marker")
        written = f"x ; {marker}" if isinstance(marker, str) else "x"
        return read_requirement(written, self._name, 0) is not None


def _wheels_only(declared: Declared, left_out: list[str]) -> Iterator[Declared]:
    url = declared.requirement.url
    if url is None or is_wheel_url(url):
        yield declared
    else:
        left_out.append(f"{public(declared.text)} ({declared.where}; images are built from wheels)")


def _optional(file: PyprojectFile) -> Iterator[str]:
    kinds = {"extra": file.extras, "group": {**file.groups, **file.poetry_groups}}
    for kind, found in kinds.items():
        if found:
            names = ", ".join(printable(one, limit=30) for one in list(found)[:6])
            yield f"{kind}{'s' if len(found) > 1 else ''} {names} ({file.name})"


def _poetry(
    file: PyprojectFile, left_out: list[str], sources: _Sources
) -> tuple[list[Declared], Declared | None]:
    """Poetry's main dependencies, in the standard's notation, and its Python."""
    packages: list[Declared] = []
    python = None
    for one in file.poetry:
        at = Declared("", file.name, one.line)
        if one.optional:
            continue
        if one.address or one.version is None:
            left_out.append(
                f"{printable(one.name, limit=60)} ({at.where}; not a release of an index)"
            )
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
    return packages, python
