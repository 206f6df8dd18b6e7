"""A pyproject.toml: the project's dependencies with each of its groups, as one install each.

uv's and Poetry's own tables say where to look for a package; other installers do not read them.
https://docs.astral.sh/uv/concepts/projects/dependencies/
https://python-poetry.org/docs/dependency-specification/
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from provision.doctor.lint.findings import RuleHit
from provision.doctor.lint.installs import Install
from provision.doctor.lint.package_rules import COMPANIONS, judge_install
from provision.doctor.lint.setting import Setting, applies_on_linux, known_pythons
from provision.errors import BadInputError
from provision.model.environment import MOST_CHARACTERS
from provision.sources.packages import IndexSource, Position, RequestedPackage, read_package

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from provision.catalog.catalog import Catalog

_PINNED = re.compile(r"=*\s*(\d[\w.!+-]*)")


def judge_pyproject(path: str, text: str, catalog: Catalog) -> Iterator[RuleHit]:
    """What the rules find in each install that the file describes; findings in a shared part come
    twice.
    """
    project = PyprojectFile(path, text)
    pythons = project.pythons(catalog)
    for install in project.installs(catalog):
        yield from judge_install(install, Setting(pythons=pythons), catalog)
        yield from _companions_elsewhere(install, project)


@dataclass(frozen=True)
class PyprojectFile:
    """A pyproject.toml. Values of the wrong type count as missing."""

    path: str
    text: str

    @cached_property
    def document(self) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = tomllib.loads(self.text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise BadInputError(
                f"{self.path} is not valid TOML: {str(error)[:200] or 'it is nested too deeply'}.",
                fix="Mend it; uv and pip cannot read it either.",
            ) from error
        return found

    def table(self, *keys: str) -> Mapping[str, Any]:
        """A table by its path; empty if there is none."""
        found: Any = self.document
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}

    def pythons(self, catalog: Catalog) -> tuple[str, ...]:
        """The known Pythons that requires-python allows; empty if it says nothing."""
        said = self.table("project").get("requires-python")
        try:
            text = said if isinstance(said, str) and len(said) <= MOST_CHARACTERS else ""
            allowed = SpecifierSet(text)
        except InvalidSpecifier:
            return ()
        # a bound such as >=3.12.1 admits 3.12 all the same
        fits = [one for one in known_pythons(catalog) if allowed.contains(f"{one}.99")]
        return tuple(fits) if allowed else ()

    def installs(self, catalog: Catalog) -> Iterator[Install]:
        """The project alone, and with each extra and each group."""
        base = [*self._listed(self.table("project").get("dependencies")), *self._poetry()]
        extras = self.table("project", "optional-dependencies")
        groups = self.table("dependency-groups")
        lists = [[], *map(self._listed, [*extras.values(), *groups.values()])]
        lists.append(self._listed(self.table("tool", "uv").get("dev-dependencies")))
        for packages in lists:
            # with an extra or a group the project's own dependencies are installed, too
            together = [one for one in [*base, *packages] if applies_on_linux(one, catalog)]
            yield Install(
                packages=tuple(map(self._placed, together)),
                at=Position(1),
                sources=tuple(self._sources({one.name for one in together})),
                complete=True,
            )

    def elsewhere(self, name: str) -> bool:
        """Whether uv's configuration says where to get a package."""
        return canonicalize_name(name) in self._told

    @cached_property
    def indexes(self) -> Mapping[str, Mapping[str, Any]]:
        """uv's indexes by name; one without a name is keyed by its position."""
        rows = self.table("tool", "uv").get("index")
        listed = [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []
        return {str(one.get("name", number)): one for number, one in enumerate(listed)}

    @cached_property
    def _told(self) -> Mapping[str, list[Mapping[str, Any]]]:
        """uv's sources, by package; each has one or, with markers, several."""
        return {
            canonicalize_name(name): [
                one for one in (said if isinstance(said, list) else [said]) if isinstance(one, dict)
            ]
            for name, said in self.table("tool", "uv", "sources").items()
        }

    def _placed(self, package: RequestedPackage) -> RequestedPackage:
        """A package with the URL that uv's configuration gives for it."""
        for one in self._told.get(package.name, []):
            address = next((str(one[key]) for key in ("url", "git", "path") if key in one), "")
            if address or "workspace" in one:
                return replace(package, address=address or "workspace")
        return package

    def _sources(self, names: set[str]) -> Iterator[IndexSource]:
        """The indexes that are used for these packages."""
        wanted = {
            str(one["index"])
            for name, told in self._told.items()
            for one in told
            if name in names and "index" in one and _is_for_linux(one)
        }
        for name, row in self.indexes.items():
            if name in wanted or not row.get("explicit"):
                yield self._source(row.get("url"), replaces=bool(row.get("default")))
        uv, pip = self.table("tool", "uv"), self.table("tool", "uv", "pip")
        for table in (uv, pip):
            yield from self._all(table.get("index-url"), replaces=True)
            yield from self._all(table.get("extra-index-url"))
            yield from self._all(table.get("find-links"))
        yield from self._poetry_sources(names)

    def _all(self, urls: object, *, replaces: bool = False) -> Iterator[IndexSource]:
        for url in urls if isinstance(urls, list) else [urls]:
            if isinstance(url, str):
                yield self._source(url, replaces=replaces)

    def _source(self, url: object, *, replaces: bool = False) -> IndexSource:
        return IndexSource(url=str(url), at=self._at(str(url)), replaces_default=replaces)

    def _listed(self, requirements: object) -> list[RequestedPackage]:
        """A list of requirements; entries that include another group are passed over."""
        if not isinstance(requirements, list):
            return []
        return [
            read_package(one, self._at(one)) for one in requirements if isinstance(one, str) and one
        ]

    def _poetry(self) -> list[RequestedPackage]:
        """Poetry's dependencies: of their versions, only a pin is understood by every installer."""
        groups = self.table("tool", "poetry", "group")
        tables = [
            self.table("tool", "poetry", "dependencies"),
            self.table("tool", "poetry", "dev-dependencies"),
            *(self.table("tool", "poetry", "group", name, "dependencies") for name in groups),
        ]
        return [
            self._poetry_package(name, said)
            for table in tables
            for name, said in table.items()
            if name.lower() != "python"
        ]

    def _poetry_package(self, name: str, said: object) -> RequestedPackage:
        row = said if isinstance(said, dict) else {"version": said}
        pin = _PINNED.fullmatch(str(row.get("version", "")).strip())
        extras = row.get("extras")
        inner = ",".join(map(str, extras)) if isinstance(extras, list) else ""
        written = f"{name}[{inner}]" if inner else name
        marker = f" ; {row['markers']}" if isinstance(row.get("markers"), str) else ""
        number = next(
            (
                number
                for number, line in enumerate(self.text.splitlines(), start=1)
                if re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=", line)
            ),
            1,
        )
        package = read_package(f"{written}{f'=={pin[1]}' if pin else ''}{marker}", Position(number))
        address = next((str(row[key]) for key in ("url", "git", "path") if key in row), "")
        return replace(package, address=address) if address else package

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

    def _at(self, written: str) -> Position:
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


def _companions_elsewhere(install: Install, project: PyprojectFile) -> Iterator[RuleHit]:
    """torch from an index that serves nothing else, and torchvision from the default one."""
    torch = install.named("torch")
    if torch is None or torch.address or not project.elsewhere("torch"):
        return
    if not any(one.torch_tag and not one.replaces_default for one in install.sources):
        return
    if any(not row.get("explicit") and _has_wheels(row) for row in project.indexes.values()):
        return
    for name in COMPANIONS:
        package = install.named(name)
        if package is not None and not package.address and not project.elsewhere(name):
            yield RuleHit(
                rule="torch-companion-elsewhere",
                at=package.at,
                message=f"torch comes from an index of PyTorch, and {name} from the default one: "
                "the two can be built for different CUDA.",
                fix=f"Name the same index for {name} under [tool.uv.sources].",
            )


def _has_wheels(row: Mapping[str, Any]) -> bool:
    return IndexSource(url=str(row.get("url")), at=Position(1)).torch_tag is not None
