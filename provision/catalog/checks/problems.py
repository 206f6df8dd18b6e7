"""What a rule of `provision.catalog.checks` says, how it calls rows, and what rules ask alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from typing import NamedTuple, TypeAlias

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from provision.catalog.catalog import Catalog
from provision.catalog.rows import (
    CudnnRelease,
    JaxPlugin,
    KernelModules,
    NcclRelease,
    StartRule,
    TorchBuild,
)
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
"""What holds of a catalog. A row that breaks it has its table's place in the file put before it."""


def doubled(table: str, names: Sequence[str]) -> Iterator[Problem]:
    """One row a fact."""
    for name, count in Counter(names).items():
        if count > 1:
            position = len(names) - 1 - names[::-1].index(name)
            yield Problem("no-duplicates", f"{table}[{position}]", name, f"{count} times")


def rising(rule: str, table: str, rows: Sequence[tuple[str, str | None]]) -> Iterator[Problem]:
    """(name, value) rows whose names rise, and whose values never fall; None is passed over."""
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
    """cp311-cp311, cp313-cp313t; and within what the release asks for."""
    wanted = requires_python if requires_python and is_specifier(requires_python) else ""
    for tag in tags:
        if not _PYTHON_TAG.fullmatch(tag):
            yield f"{tag!r} is no Python tag"
        elif not SpecifierSet(wanted).contains(f"3.{tag.partition('-')[0][3:]}.99"):
            yield f"{tag} is outside {wanted}"


def wrong_targets(
    cuda: str,
    sm: Sequence[ComputeCapability],
    ptx: ComputeCapability | None,
    possible: Iterable[ComputeCapability],
) -> Iterator[str]:
    """What the toolkits of CUDA X.Y, which compile for `possible`, cannot have made."""
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
    """How one build is called in problems and exceptions: "2.0.1 cu117 x86_64"."""
    return f"{build.version} {build.tag} {build.arch}"


def modules_name(row: KernelModules) -> str:
    """How a row of kernel modules is called in problems: "7.5", "9.0 NVIDIA GH200 480GB"."""
    return " ".join(["{}.{}".format(*row.capability), *row.gpus])


def plugin_name(row: JaxPlugin) -> str:
    """How a plugin is called in problems and exceptions: "0.7.2 cuda12"."""
    return f"{row.version} cuda{row.cuda_major}"


def library_name(row: CudnnRelease | NcclRelease) -> str:
    """How a library is called in problems and exceptions: "9.1.0.70 cu12"."""
    return f"{row.version} cu{row.cuda_major}"


def rule_name(row: StartRule) -> str:
    """How a start rule is called in problems and exceptions: "12.8.1 ubuntu24.04"."""
    return f"{row.cuda} {row.os[0]}"


def below(one: str, other: str) -> bool:
    """Whether one version is older; False where either is none."""
    first, second = as_version(one), as_version(other)
    return first is not None and second is not None and first < second


def as_version(text: str) -> Version | None:
    """None for what is no version."""
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
    """Whether it is a day of the calendar, as "2026-11-21"."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def is_date(text: str) -> bool:
    """Whether it is a month, a day or a moment."""
    return _DATE.fullmatch(text) is not None
