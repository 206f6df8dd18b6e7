"""A pyproject.toml as it is written: lists, extras, groups and indexes, before any is chosen.

uv's and Poetry's own tables say where to look for a package; other installers do not read them.
https://docs.astral.sh/uv/concepts/projects/dependencies/
https://python-poetry.org/docs/dependency-specification/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from packaging.utils import canonicalize_name

from provision.sources.files import listed, read_toml, table
from provision.sources.packages import IndexSource, Position, RequestedPackage, read_package
from provision.sources.poetry import PoetryDependency, poetry_dependencies

_MOST_GROUPS = 200
"""More than any project has; each is judged with all that it includes."""


@dataclass(frozen=True)
class PyprojectFile:
    """A pyproject.toml by its name and text. Values of the wrong type count as missing."""

    name: str
    text: str

    @cached_property
    def document(self) -> Mapping[str, Any]:
        return read_toml(self.text, self.name)

    def table(self, *keys: str) -> Mapping[str, Any]:
        """A table by its path; empty if there is none."""
        return table(self.document, *keys)

    @cached_property
    def dependencies(self) -> tuple[RequestedPackage, ...]:
        """What the standard's table requires."""
        return self._listed(self.table("project").get("dependencies"))

    @cached_property
    def extras(self) -> Mapping[str, tuple[RequestedPackage, ...]]:
        """The optional dependencies, by the name of their extra."""
        rows = self.table("project", "optional-dependencies")
        return {name: self._listed(rows[name]) for name in rows}

    @cached_property
    def groups(self) -> Mapping[str, tuple[RequestedPackage, ...]]:
        """The dependency groups, with those that they include; uv's older list is "dev".
        https://packaging.python.org/en/latest/specifications/dependency-groups/
        """
        names = list(self.table("dependency-groups"))[:_MOST_GROUPS]
        found = {name: tuple(self._group(name)) for name in names}
        older = self._listed(self.table("tool", "uv").get("dev-dependencies"))
        return {**found, "dev": (*found.get("dev", ()), *older)} if older else found

    @cached_property
    def poetry(self) -> tuple[PoetryDependency, ...]:
        """Poetry's main dependencies, "python" among them."""
        rows = self.table("tool", "poetry", "dependencies")
        return tuple(poetry_dependencies(rows, self.text))

    @cached_property
    def poetry_groups(self) -> Mapping[str, tuple[PoetryDependency, ...]]:
        """Poetry's groups; its older table is "dev"."""
        names = self.table("tool", "poetry", "group")
        tables = {
            name: self.table("tool", "poetry", "group", name, "dependencies") for name in names
        }
        if older := self.table("tool", "poetry", "dev-dependencies"):
            tables["dev"] = {**older, **tables.get("dev", {})}
        return {name: tuple(poetry_dependencies(rows, self.text)) for name, rows in tables.items()}

    @cached_property
    def _entries(self) -> Mapping[str, list[RequestedPackage | str]]:
        """What each group lists: packages, and the canonical names of groups that it includes."""
        found: dict[str, list[RequestedPackage | str]] = {}
        for name, rows in self.table("dependency-groups").items():
            entries = found.setdefault(canonicalize_name(name), [])
            for one in listed(rows):
                entries += self._listed([one])
                if isinstance(other := table(one).get("include-group"), str):
                    entries.append(canonicalize_name(other))
        return found

    def _group(self, name: str) -> Iterator[RequestedPackage]:
        """A group with what it includes; each group comes once."""
        seen: set[str] = {canonicalize_name(name)}
        waiting = [iter(self._entries[canonicalize_name(name)])]
        while waiting:
            one = next(waiting[-1], None)
            if one is None:
                waiting.pop()
            elif isinstance(one, RequestedPackage):
                yield one
            elif one not in seen:
                seen.add(one)
                waiting.append(iter(self._entries.get(one, ())))

    def elsewhere(self, name: str) -> bool:
        """Whether uv's configuration says where to get a package."""
        return canonicalize_name(name) in self.uv_sources

    @cached_property
    def indexes(self) -> Mapping[str, Mapping[str, Any]]:
        """uv's indexes by name; one without a name is keyed by its position."""
        rows = self.table("tool", "uv").get("index")
        listed = [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []
        return {str(one.get("name", number)): one for number, one in enumerate(listed)}

    @cached_property
    def uv_sources(self) -> Mapping[str, list[Mapping[str, Any]]]:
        """uv's sources, by package; each has one or, with markers, several."""
        return {
            canonicalize_name(name): [
                one for one in (said if isinstance(said, list) else [said]) if isinstance(one, dict)
            ]
            for name, said in self.table("tool", "uv", "sources").items()
        }

    def placed(self, package: RequestedPackage) -> RequestedPackage:
        """A package with the URL that uv's configuration gives for it."""
        for one in self.uv_sources.get(package.name, []):
            address = next((str(one[key]) for key in ("url", "git", "path") if key in one), "")
            if address or "workspace" in one:
                return replace(package, address=address or "workspace")
        return package

    def index_sources(self, names: set[str]) -> Iterator[IndexSource]:
        """The indexes that are used for these packages."""
        wanted = {
            str(one["index"])
            for name, said in self.uv_sources.items()
            for one in said
            if name in names and "index" in one and _is_for_linux(one)
        }
        for name, row in self.indexes.items():
            if name in wanted or not row.get("explicit"):
                yield self._source(row.get("url"), replaces=bool(row.get("default")))
        uv, pip = self.table("tool", "uv"), self.table("tool", "uv", "pip")
        for place in (uv, pip):
            yield from self._all(place.get("index-url"), replaces=True)
            yield from self._all(place.get("extra-index-url"))
            yield from self._all(place.get("find-links"))
        yield from self._poetry_sources(names)

    def _all(self, urls: object, *, replaces: bool = False) -> Iterator[IndexSource]:
        for url in urls if isinstance(urls, list) else [urls]:
            if isinstance(url, str):
                yield self._source(url, replaces=replaces)

    def _source(self, url: object, *, replaces: bool = False) -> IndexSource:
        return IndexSource(url=str(url), at=self.at(str(url)), replaces_default=replaces)

    def _listed(self, requirements: object) -> tuple[RequestedPackage, ...]:
        """The texts of a list of requirements."""
        return tuple(
            read_package(one, self.at(one))
            for one in listed(requirements)
            if isinstance(one, str) and one
        )

    def _poetry_sources(self, names: set[str]) -> Iterator[IndexSource]:
        rows = self.table("tool", "poetry").get("source")
        dependencies = self.table("tool", "poetry", "dependencies")
        wanted = {
            said.get("source")
            for name, said in dependencies.items()
            if isinstance(said, dict) and canonicalize_name(name) in names
        }
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and "url" in row:
                explicit = row.get("priority") in {"explicit", "supplemental"}
                if not explicit or row.get("name") in wanted:
                    yield self._source(row["url"])

    def at(self, written: str) -> Position:
        """The position of a text's first occurrence in quotes in the document; else the
        first line.
        """
        for quote in ('"', "'"):
            offset = self.text.find(f"{quote}{written}{quote}")
            if offset >= 0:
                before = self.text[:offset]
                return Position(before.count("\n") + 1, offset - before.rfind("\n"))
        return Position(1)


def _is_for_linux(source: Mapping[str, Any]) -> bool:
    """Whether uv uses a source on Linux: true unless its marker clearly excludes it."""
    marker = str(source.get("marker", ""))
    elsewhere = re.search(
        r"(sys_platform|platform_system)\s*==\s*['\"](darwin|win32|Darwin|Windows)['\"]"
        r"|(sys_platform|platform_system)\s*!=\s*['\"](linux|Linux)['\"]",
        marker,
    )
    return elsewhere is None or " or " in marker
