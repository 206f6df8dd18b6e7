"""A dependency of Poetry, in the standard's notation.

https://python-poetry.org/docs/dependency-specification/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from provision.model.environment import MOST_CHARACTERS
from provision.sources.files import line_of, listed

_WILD = re.compile(r"(?:==)?\s*\d+(\.\d+)*\.\*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoetryDependency:
    """A row of a table of Poetry. `version` is the constraint as it is written, None if that is not
    a text; `line` counts from 1, 0 if unknown.
    """

    name: str
    row: Mapping[str, Any]
    line: int

    @property
    def version(self) -> str | None:
        version = self.row.get("version", "*")
        return version if isinstance(version, str) else None

    @property
    def address(self) -> str:
        """Where it is from if that is not an index; "" for an index."""
        return next((str(self.row[key]) for key in ("url", "git", "path") if key in self.row), "")

    @property
    def optional(self) -> bool:
        return self.row.get("optional") is True

    @property
    def specifier(self) -> str | None:
        """The constraint as a specifier set; None: it has no such form."""
        return None if self.version is None else poetry_specifier(self.version)

    @property
    def unknown(self) -> str | None:
        """The first of its constraints that has no form as a specifier set."""
        said = (self.version, self.row.get("python"))
        return next(
            (one for one in said if isinstance(one, str) and poetry_specifier(one) is None), None
        )

    @property
    def written(self) -> str:
        """The requirement, without constraints that are `unknown`."""
        extras = ",".join(map(str, listed(self.row.get("extras"))))
        markers = " and ".join(self._markers())
        return (
            f"{self.name}{f'[{extras}]' if extras else ''}{self.specifier or ''}"
            f"{f' ; {markers}' if markers else ''}"
        )

    def _markers(self) -> Iterator[str]:
        if isinstance(said := self.row.get("markers"), str):
            yield f"({said})"
        python = self.row.get("python")
        specifier = poetry_specifier(python) if isinstance(python, str) else None
        for clause in filter(None, (specifier or "").split(",")):
            operator = re.match(r"[<>=!~]+", clause)
            if operator is not None:
                version = clause[operator.end() :]
                exact = operator[0] in {"==", "!="} or version.count(".") > 1
                key = "python_full_version" if exact else "python_version"
                yield f"{key} {operator[0]} '{version}'"
        if isinstance(platform := self.row.get("platform"), str):
            yield f"sys_platform == '{platform}'"


def poetry_dependencies(rows: Mapping[str, Any], text: str) -> Iterator[PoetryDependency]:
    """The packages of a table, from the text of its file; one with several constraints comes for
    each of them.
    """
    for key, said in rows.items():
        line = line_of(text, rf"[\"']?{re.escape(key)}[\"']?\s*=")
        for one in said if isinstance(said, list) else [said]:
            row = one if isinstance(one, dict) else {"version": one}
            yield PoetryDependency(name=key, row=row, line=line)


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
