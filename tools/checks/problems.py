"""The problems that rules of `tools.checks` report, names of rows, and shared
helpers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from functools import cache
from typing import NamedTuple, TypeAlias

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from provision.catalog.catalog import Catalog
from provision.catalog.rows.bases import StartRule
from provision.catalog.rows.frameworks import JaxPlugin, TorchBuild
from provision.catalog.rows.nvidia import CudnnRelease, KernelModules, NcclRelease
from provision.model.plan import ComputeCapability

_PYTHON_TAG = re.compile(r"(cp3\d+)-(?:\1[mt]?)")
_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}(T[\d:]+)?)?")


class Problem(NamedTuple):
    """A row that breaks a rule. `name` is how an exception would name the row."""

    rule: str
    place: str
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.place} ({self.name}): {self.what} [{self.rule}]"


Rule: TypeAlias = Callable[[Catalog], Iterable[Problem]]
"""A rule for a catalog. The place of the broken row in the file is put before the problem."""


def doubled(table: str, names: Sequence[str]) -> Iterator[Problem]:
    """One row per fact."""
    for name, count in Counter(names).items():
        if count > 1:
            position = len(names) - 1 - names[::-1].index(name)
            yield Problem("no-duplicates", f"{table}[{position}]", name, f"{count} times")


def rising(rule: str, table: str, rows: Sequence[tuple[str, str | None]]) -> Iterator[Problem]:
    """(name, value) rows must have rising names, and values that never fall; None is skipped."""
    highest = Version("0")
    for position, (name, text) in enumerate(rows):
        place = f"{table}[{position}]"
        if position and not below(rows[position - 1][0], name):
            yield Problem(rule, place, name, f"stands after {rows[position - 1][0]}")
        value = as_version(text) if text else None
        if value is not None and value < highest:
            yield Problem(rule, place, name, f"{text} is older than the {highest} before it")
        highest = max(highest, value or highest)


def wrong_python_tags(tags: Iterable[str], requires_python: str | None) -> Iterator[str]:
    """cp311-cp311, cp313-cp313t; and allowed by the release's requires-python."""
    wanted = requires_python if requires_python and is_specifier(requires_python) else ""
    for tag in tags:
        if not _PYTHON_TAG.fullmatch(tag):
            yield f"{tag!r} is no Python tag"
        elif not _allows(wanted, f"3.{tag.partition('-')[0][3:]}.99"):
            yield f"{tag} is outside {wanted}"


@cache
def _allows(specifier: str, version: str) -> bool:
    return SpecifierSet(specifier).contains(version)


def wrong_targets(
    cuda: str,
    sm: Sequence[ComputeCapability],
    ptx: ComputeCapability | None,
    possible: Iterable[ComputeCapability],
) -> Iterator[str]:
    """Targets that toolkits of CUDA X.Y, which compile for `possible`, cannot have produced."""
    targets = set(possible)
    if not targets:
        yield f"CUDA {cuda} has no toolkit"
        return
    for major, minor in (*sm, *((ptx,) if ptx else ())):
        if (major, minor) not in targets:
            yield f"CUDA {cuda} cannot compile for sm_{major}{minor}"
    if list(sm) != sorted(set(sm)):
        yield "architectures are not in order, or doubled"


def build_name(build: TorchBuild) -> str:
    """How problems and exceptions name a build: "2.0.1 cu117 x86_64"."""
    return f"{build.version} {build.tag} {build.arch}"


def modules_name(row: KernelModules) -> str:
    """How problems name a row of kernel modules: "7.5", "9.0 NVIDIA GH200 480GB"."""
    return " ".join(["{}.{}".format(*row.capability), *row.gpus])


def plugin_name(row: JaxPlugin) -> str:
    """How problems and exceptions name a plugin: "0.7.2 cuda12"."""
    return f"{row.version} cuda{row.cuda_major}"


def library_name(row: CudnnRelease | NcclRelease) -> str:
    """How problems and exceptions name a library: "9.1.0.70 cu12"."""
    return f"{row.version} cu{row.cuda_major}"


def rule_name(row: StartRule) -> str:
    """How problems and exceptions name a start rule: "12.8.1 ubuntu24.04"."""
    return f"{row.cuda} {row.os[0]}"


def below(one: str, other: str) -> bool:
    """Whether one version is older; False if either is invalid."""
    first, second = as_version(one), as_version(other)
    return first is not None and second is not None and first < second


@cache
def as_version(text: str) -> Version | None:
    """None for an invalid version."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def is_specifier(text: str) -> bool:
    """Whether it is a set of version specifiers."""
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def is_day(text: str) -> bool:
    """Whether it is a valid date, such as "2026-11-21"."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def is_date(text: str) -> bool:
    """Whether it is a month, a date or a timestamp."""
    return _DATE.fullmatch(text) is not None
