"""Chooses the packages of a base: Debian's required ones, the named ones, and what those need.

Like apt on an empty system: the newest version of each package, the first available alternative of
a relation, no recommended packages.

https://www.debian.org/doc/debian-policy/ch-relationships.html
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from images.bootstrap.errors import BootstrapUnfitError
from images.bootstrap.index import PackageIndex, SuitePackage
from images.bootstrap.versions import OPERATORS, compare
from images.text.suggestions import alike, did_you_mean

_RELATION = re.compile(
    r"\s*([a-z0-9][a-z0-9+.-]*)(?::\w+)?\s*(?:\(\s*(<<|<=|=|>=|>>)\s*([^\s)]+)\s*\))?\s*"
)
_ALWAYS_WANTED = ("apt",)
"""Without apt no other package could be installed into the base."""
_PREFERRED = frozenset({"usr-is-merged"})
"""Chosen whenever a relation names it: /usr is merged in a base from the start, and the alternative
needs 50 MB of Perl to merge it."""


@dataclass(frozen=True, slots=True)
class Relation:
    """One alternative of a dependency: a package, and a version to compare with."""

    name: str
    operator: str = ""
    version: str = ""

    def accepts(self, version: str | None) -> bool:
        """Whether a version matches; None (a name provided without one) only without operator."""
        if not self.operator:
            return True
        return version is not None and OPERATORS[self.operator](compare(version, self.version))

    def __str__(self) -> str:
        return f"{self.name} ({self.operator} {self.version})" if self.operator else self.name


def parse_relations(text: str) -> tuple[tuple[Relation, ...], ...]:
    """Parse "a (>= 1), b | c": a tuple of groups; one alternative of each group is needed."""
    return tuple(
        tuple(_relation(alternative) for alternative in group.split("|"))
        for group in text.split(",")
        if group.strip()
    )


def _relation(text: str) -> Relation:
    match = _RELATION.fullmatch(text)
    if match is None:
        raise BootstrapUnfitError(
            f"The relation {text.strip()!r} in the package index could not be read.",
            fix="Use another mirror of Debian.",
        )
    return Relation(match[1], match[2] or "", match[3] or "")


def choose_packages(
    indexes: Sequence[PackageIndex], named: Iterable[str], *, suite: str
) -> tuple[SuitePackage, ...]:
    """Choose the packages of a base, sorted by name.

    BootstrapUnfitError: a package or one of its dependencies does not exist, or two conflict.
    """
    chooser = _Chooser(indexes, suite)
    always = {name for index in indexes for name in index.always()}
    for name in sorted({*always, *_ALWAYS_WANTED, *named}):
        chooser.want(name)
    chosen = chooser.complete()
    _check_conflicts(chosen)
    return tuple(sorted(chosen, key=lambda package: package.name))


class _Chooser:
    def __init__(self, indexes: Sequence[PackageIndex], suite: str) -> None:
        self._indexes = indexes
        self._suite = suite
        self._chosen: dict[str, SuitePackage] = {}
        self._provided: dict[str, list[str | None]] = {}
        self._open: list[tuple[SuitePackage, tuple[Relation, ...]]] = []
        self.candidate = functools.cache(self._candidate)

    def want(self, name: str) -> None:
        package = self.candidate(name)
        if package is None:  # like apt, which takes the only package that provides a name
            providers = list(self._providers(Relation(name)))
            package = providers[0] if len(providers) == 1 else None
            if package is None:
                raise self._no_package(name, [one.name for one in providers])
        self._take(package)

    def _no_package(self, name: str, providers: Sequence[str]) -> BootstrapUnfitError:
        if providers:
            return BootstrapUnfitError(
                f"{name} is not a package of Debian {self._suite}; several provide it.",
                fix=f"Name one of them: {', '.join(providers)}",
            )
        begin = name[:2]
        known = {one for index in self._indexes for one in index.names() if one.startswith(begin)}
        return BootstrapUnfitError(
            f"Debian {self._suite} has no package {name}.",
            fix=did_you_mean(alike(name, known)) or "Omit it, or name a suite that has it.",
        )

    def complete(self) -> list[SuitePackage]:
        """Add the dependencies of the chosen packages. Those with one alternative come first: they
        may satisfy others with several.
        """
        while self._open:
            single = next((i for i, (_, group) in enumerate(self._open) if len(group) == 1), 0)
            package, group = self._open.pop(single)
            if not any(self._is_met(relation) for relation in group):
                self._take(self._first(package, group))
        return list(self._chosen.values())

    def _take(self, package: SuitePackage) -> None:
        if package.name in self._chosen:
            return
        self._chosen[package.name] = package
        for name, version in provided_by(package):
            self._provided.setdefault(name, []).append(version)
        self._open += [(package, group) for group in parse_relations(package.depends)]

    def _is_met(self, relation: Relation) -> bool:
        chosen = self._chosen.get(relation.name)
        if chosen is not None and relation.accepts(chosen.version):
            return True
        return any(relation.accepts(version) for version in self._provided.get(relation.name, ()))

    def _first(self, package: SuitePackage, group: tuple[Relation, ...]) -> SuitePackage:
        for relation in sorted(group, key=lambda relation: relation.name not in _PREFERRED):
            found = self.candidate(relation.name)
            if found is not None and relation.accepts(found.version):
                return found
            for provider in self._providers(relation):
                return provider
        raise BootstrapUnfitError(
            f"{package.name} {package.version} of Debian {self._suite} needs"
            f" {' | '.join(map(str, group))}, which the mirror does not have.",
            fix="The mirror may be in the middle of an update: try again later, or use another.",
        )

    def _providers(self, relation: Relation) -> Iterator[SuitePackage]:
        names = {p.name for index in self._indexes for p in index.providing(relation.name)}
        for name in sorted(names):
            package = self.candidate(name)
            offers = provided_by(package) if package else ()
            if package and any(n == relation.name and relation.accepts(v) for n, v in offers):
                yield package

    def _candidate(self, name: str) -> SuitePackage | None:
        """Find the newest version; of equal ones, the first index's."""
        newest: SuitePackage | None = None
        for index in self._indexes:
            for package in index.named(name):
                if newest is None or compare(package.version, newest.version) > 0:
                    newest = package
        return newest


def provided_by(package: SuitePackage) -> tuple[tuple[str, str | None], ...]:
    """Return the names that a package provides, each with its version if it has one."""
    groups = parse_relations(package.provides)
    return tuple((group[0].name, group[0].version or None) for group in groups)


def _check_conflicts(chosen: Sequence[SuitePackage]) -> None:
    versions = {package.name: package.version for package in chosen}
    for package in chosen:
        for relation, *_ in parse_relations(package.conflicts):
            other = versions.get(relation.name)
            if relation.name != package.name and other is not None and relation.accepts(other):
                raise BootstrapUnfitError(
                    f"{package.name} {package.version} conflicts with {relation.name} {other}.",
                    fix="Name other packages.",
                )
