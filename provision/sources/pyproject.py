"""A pyproject.toml: the standard's dependencies, or Poetry's.

Extras and groups are for development, or for those who name them, and stay out.
https://packaging.python.org/en/latest/specifications/pyproject-toml/
https://python-poetry.org/docs/dependency-specification/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from images.text.printable import printable
from provision.model.environment import MOST_CHARACTERS, is_wheel_url
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
    read_toml,
    shown,
    table,
)
from provision.sources.packages import IndexSource, Position
from provision.sources.requirements import read_requirements
from provision.sources.setup_script import SETUP_READERS

_WILD = re.compile(r"(?:==)?\s*\d+(\.\d+)*\.\*")


def read_pyproject(path: Path, root: Path) -> Declaration | None:
    """What a pyproject.toml declares; None if it declares no dependencies: many only configure
    tools. ProjectError: it is invalid.
    """
    name = shown(path, root)
    text = read_text(path, root)
    document = read_toml(text, name)
    project, poetry = table(document, "project"), table(document, "tool", "poetry")
    if not project and not poetry:
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
        more, poetry_python = _poetry(poetry, text, name, left_out, sources)
        packages, python = packages + more, python or poetry_python
    left_out += _optional(document, name)
    own = Declaration(
        source=name,
        packages=tuple(packages),
        python=python,
        cuda=sources.cuda,
        left_out=tuple(left_out),
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
        self.cuda: Declared | None = None

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
                if self.read_cuda(row["index"]) is None:
                    url = self._indexes.get(str(row["index"])) or str(row["index"])
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


def _optional(document: Mapping[str, Any], name: str) -> Iterator[str]:
    kinds = {
        "extra": table(document, "project", "optional-dependencies"),
        "group": {
            **table(document, "dependency-groups"),
            **table(document, "tool", "poetry", "group"),
        },
    }
    for kind, found in kinds.items():
        if found:
            names = ", ".join(printable(one, limit=30) for one in list(found)[:6])
            yield f"{kind}{'s' if len(found) > 1 else ''} {names} ({name})"


def _poetry(
    poetry: Mapping[str, Any], text: str, name: str, left_out: list[str], sources: _Sources
) -> tuple[list[Declared], Declared | None]:
    """Poetry's main dependencies, in the standard's notation, and its Python."""
    packages: list[Declared] = []
    python = None
    for key, said in table(poetry, "dependencies").items():
        line = line_of(text, rf"[\"']?{re.escape(key)}[\"']?\s*=")
        at = Declared("", name, line)
        for one in said if isinstance(said, list) else [said]:
            row = one if isinstance(one, dict) else {"version": one}
            version = row.get("version", "*")
            if row.get("optional") is True:
                continue
            if not isinstance(version, str) or {"git", "path", "url"} & {*row}:
                left_out.append(
                    f"{printable(key, limit=60)} ({at.where}; not a release of an index)"
                )
                continue
            specifier = _constraint_of(version, at)
            if key.lower() == "python":
                python = read_python(specifier, name, line)
                continue
            if "source" in row:
                sources.read_cuda(row["source"])
            extras = ",".join(map(str, listed(row.get("extras"))))
            written = f"{key}{f'[{extras}]' if extras else ''}{specifier}{_marker(row, at)}"
            declared = read_requirement(written, name, line)
            packages += [declared] if declared is not None else []
    return packages, python


def _constraint_of(text: str, at: Declared) -> str:
    specifier = poetry_specifier(text)
    if specifier is None:
        raise ProjectError(
            f"{at.where}: {printable(text, limit=60)!r} is not a version constraint of Poetry.",
            fix="Write it like this: ^2.5, or >=2.5,<3",
        )
    return specifier


def _marker(row: Mapping[str, Any], at: Declared) -> str:
    """The marker of a row of Poetry: its own, its Pythons and its platform."""
    said = [f"({row['markers']})"] if isinstance(row.get("markers"), str) else []
    if isinstance(python := row.get("python"), str):
        specifier = _constraint_of(python, at)
        for clause in filter(None, specifier.split(",")):
            operator = re.match(r"[<>=!~]+", clause)
            if operator is not None:
                version = clause[operator.end() :]
                exact = operator[0] in {"==", "!="} or version.count(".") > 1
                key = "python_full_version" if exact else "python_version"
                said.append(f"{key} {operator[0]} '{version}'")
    if isinstance(platform := row.get("platform"), str):
        said.append(f"sys_platform == '{platform}'")
    return f" ; {' and '.join(said)}" if said else ""


def poetry_specifier(text: str) -> str | None:
    """A constraint of Poetry as a specifier set: "^1.2" -> ">=1.2,<2"; None: it has no such form,
    as "1.2 || 2.0".
    """
    clauses = []
    if len(text) > MOST_CHARACTERS:
        return None
    for part in filter(None, (one.strip() for one in text.replace("||", "|").split(","))):
        clause = _clause(part)
        if clause is None:
            return None
        clauses.append(clause)
    return ",".join(filter(None, clauses))


def _clause(text: str) -> str | None:
    if text == "*":
        return ""
    sign, rest = (text[0], text[1:].strip()) if text[0] in "^~" and text[:2] != "~=" else ("", text)
    if sign:
        return _range(sign, rest)
    if _WILD.fullmatch(rest):
        return f"=={rest.removeprefix('==').strip()}"
    if rest[:1].isdigit():
        return f"=={rest}" if _is_version(rest) else None
    operator = re.match(r"(===?|~=|!=|<=|>=|<|>|=)\s*(.+)", rest)
    if operator is None or not _is_version(operator[2].removesuffix(".*")):
        return None
    return f"{'==' if operator[1] == '=' else operator[1]}{operator[2].strip()}"


def _range(sign: str, text: str) -> str | None:
    """The releases that ^ and ~ allow: up to the first number that is not zero, or the minor."""
    if not _is_version(text):
        return None
    release = Version(text).release
    if sign == "~":
        upper = [release[0], release[1] + 1] if len(release) > 1 else [release[0] + 1]
    else:
        at = next((i for i, part in enumerate(release) if part), len(release) - 1)
        upper = [*release[:at], release[at] + 1]
    return f">={text},<{'.'.join(map(str, upper))}"


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
