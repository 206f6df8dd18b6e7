"""The findings of rules, and the table of all rules.

A rule is a pure function that yields a `RuleHit`: where, what, what to type. Its code, level, title
and links are in `data/rules.toml`; `finding` joins the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

from provision.doctor import tables
from provision.sources.packages import Position

Level: TypeAlias = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A row of the table. `level` is the default for its findings."""

    code: str
    level: Level
    title: str
    help: str
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleHit:
    """What a rule has found. The reader of the file fills in `start`, the line on which the
    instruction or service begins (0: `at`'s own).

    `swap` is a text of that line and its replacement; None: there is no such simple change.
    """

    rule: str
    at: Position
    message: str
    fix: str
    level: Level | None = None
    start: int = 0
    swap: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """A finding as it is shown. `replacement`: the corrected lines `line` to `end_line`."""

    rule: str
    level: Level
    path: str
    line: int
    column: int
    end_line: int
    message: str
    fix: str
    replacement: str | None
    links: tuple[str, ...]


@cache
def rules() -> Mapping[str, Rule]:
    """Every rule by its code, in the order of the file."""
    return {
        code: Rule(
            code=code,
            level=row["level"],
            title=row["title"],
            help=row["help"],
            links=tuple(row["links"]),
        )
        for code, row in table("rules.toml").items()
    }


def table(name: str) -> Mapping[str, Any]:
    """A file of the linter's `data/`."""
    return tables.table(name, "lint/data")


def finding(found: RuleHit, path: str, lines: tuple[str, ...]) -> LintFinding:
    """Joins a rule's row with what it has found in the file of these lines."""
    rule = rules()[found.rule]
    return LintFinding(
        rule=rule.code,
        level=found.level or rule.level,
        path=path,
        line=found.at.line,
        column=found.at.column,
        end_line=found.at.line,
        message=found.message,
        fix=found.fix,
        replacement=_replacement(found, lines),
        links=rule.links,
    )


def _replacement(found: RuleHit, lines: tuple[str, ...]) -> str | None:
    """The line with the swap made; None if the text does not occur exactly once."""
    if found.swap is None or not 1 <= found.at.line <= len(lines):
        return None
    old, new = found.swap
    line = lines[found.at.line - 1]
    return line.replace(old, new) if line.count(old) == 1 else None
