"""A requirements or constraints file as one install."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from provision.doctor.lint.findings import Position, RuleHit
from provision.doctor.lint.installs import IndexSource, Install, RequestedPackage, read_package
from provision.doctor.lint.package_rules import judge_install
from provision.doctor.lint.setting import Setting

if TYPE_CHECKING:
    from provision.catalog.catalog import Catalog

_OPTION = re.compile(
    r"(?P<flag>-i|--index-url|--extra-index-url|-f|--find-links|-r|--requirement|-c|--constraint"
    r"|-e|--editable|--no-index)(?:\s+|=|$)(?P<value>\S*)"
)
# One blank before, not all: a long line of blanks is then read once.
_COMMENT = re.compile(r"(^|\s)#.*$")
_TRAILING = re.compile(r"\s--(hash|config-settings?|global-option|install-option)\b.*$")


def judge_requirements(path: str, text: str, catalog: Catalog) -> Iterator[RuleHit]:
    """What the rules find in a file; its name says whether it is meant for CPUs.

    Flags of the command that reads the file can add an index, so a missing one is not certain.
    """
    install = read_requirements(text)
    name = path.rpartition("/")[2].lower()
    setting = Setting(for_cpus=any(word in path.lower() for word in ("cpu", "rocm", "xpu", "amd")))
    if name.startswith("constraints"):
        install = Install(packages=install.packages, at=install.at, options=install.options)
    yield from judge_install(install, setting, catalog)


def read_requirements(text: str) -> Install:
    """The packages and indexes of a file; other lines are skipped."""
    packages: list[RequestedPackage] = []
    sources: list[IndexSource] = []
    options: set[str] = set()
    for number, line in logical_lines(text):
        column = len(line) - len(line.lstrip()) + 1
        content = without_options(without_comment(line))
        if not content:
            continue
        option = _OPTION.match(content)
        at = Position(number, column)
        if option is None:
            if not content.startswith("-"):
                packages.append(read_package(content, at))
            continue
        flag, value = option["flag"], option["value"]
        options.add(flag)
        if flag in {"-e", "--editable"}:
            packages.append(read_package(value, at))
        elif "index-url" in flag or flag in {"-i", "-f", "--find-links"}:
            replaces = flag in {"-i", "--index-url"}
            sources.append(IndexSource(url=value, at=at, replaces_default=replaces))
    nested = options & {"-r", "--requirement", "--no-index"}
    return Install(
        packages=tuple(packages),
        sources=tuple(sources),
        at=Position(1),
        complete=not nested and not any("$" in one.url for one in sources),
        options=frozenset(options),
    )


def looks_like_requirements(text: str) -> bool:
    """Whether every line with content is a requirement or an option."""
    lines = [without_comment(line) for _, line in logical_lines(text)]
    said = [line for line in lines if line]
    return bool(said) and all(
        _OPTION.match(line) or read_package(without_options(line), Position(1)).requirement
        for line in said
    )


def without_comment(line: str) -> str:
    """A line without the comment at its end, and without blanks around it."""
    return _COMMENT.sub("", line).strip()


def without_options(line: str) -> str:
    """A requirement without the options after it, such as --hash."""
    return _TRAILING.sub("", line).rstrip()


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines joined with their backslash continuations, and the number of the first."""
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        first = first or number
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        yield first, pending + line
        pending, first = "", 0
    if pending:
        yield first, pending
