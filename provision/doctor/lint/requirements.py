"""A requirements or constraints file as one install."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from provision.catalog.catalog import Catalog
from provision.doctor.lint.findings import RuleHit
from provision.doctor.lint.installs import Install
from provision.doctor.lint.package_rules import judge_install
from provision.doctor.lint.setting import Setting, setting_by_name
from provision.sources.packages import Position
from provision.sources.requirements import FILES, INDEXES, read_lines

_OPTIONS = INDEXES | FILES | {"--editable", "--no-index"}


def judge_requirements(path: str, text: str, catalog: Catalog) -> Iterator[RuleHit]:
    """What the rules find in a file."""
    yield from judge_install(*install_of(path, text), catalog)


def install_of(path: str, text: str) -> tuple[Install, Setting]:
    """What a file installs; its name says whether it is meant for CPUs.

    Flags of the command that reads the file can add an index, so a missing one is not certain.
    """
    install = read_requirements(text)
    name = path.rpartition("/")[2].lower()
    setting = replace(setting_by_name(path), is_pip=True)
    if name.startswith("constraints"):
        install = Install(packages=install.packages, at=install.at, options=install.options)
    return install, setting


def read_requirements(text: str) -> Install:
    """The packages and indexes of a file; other lines are skipped."""
    lines = list(read_lines(text))
    sources = tuple(line.index for line in lines if line.index)
    options = frozenset(line.option for line in lines if line.option)
    return Install(
        packages=tuple(line.package for line in lines if line.package),
        sources=sources,
        at=Position(1),
        complete=not options & {"--requirement", "--no-index"}
        and not any("$" in one.url for one in sources),
        options=options,
    )


def looks_like_requirements(text: str) -> bool:
    """Whether every line with content is a requirement or an option."""
    lines = list(read_lines(text))
    return bool(lines) and all(
        line.package.requirement if line.package else line.option in _OPTIONS for line in lines
    )
