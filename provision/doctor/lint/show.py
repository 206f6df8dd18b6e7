"""Findings as text, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from provision.doctor.lint.findings import LEVELS, LintFinding
from provision.output.text import filled

_INDENT = "    "
_SILENCE = "To silence one, on its line or the line before: # provision: ignore=RULE"


def describe_findings(findings: Sequence[LintFinding], paths: tuple[str, ...]) -> str:
    """Each with its position first and the fix below; the counts at the end."""
    if not findings:
        return f"No problems found in {', '.join(paths)}."
    lines: list[str] = []
    for one in findings:
        lines += [*_described(one), ""]
    return "\n".join([*lines, _counted(findings)])


def findings_json(findings: Sequence[LintFinding]) -> dict[str, Any]:
    """{"schema": 1, "findings": [...], "counts": {"error": 1, ...}}"""
    return {
        "schema": 1,
        "findings": [{**asdict(one), "links": list(one.links)} for one in findings],
        "counts": {level: sum(one.level == level for one in findings) for level in LEVELS},
    }


def _described(one: LintFinding) -> Iterator[str]:
    yield f"{one.path}:{one.line}:{one.column}: {one.level} [{one.rule}]"
    yield from _wrapped(one.message, "  ")
    first, *rest = one.fix.splitlines()
    yield from _wrapped(f"fix: {first}", "  ")
    yield from (f"{_INDENT}{line}" for line in rest)


def _wrapped(text: str, indent: str) -> list[str]:
    return filled(text, indent, indent)


def _counted(findings: Sequence[LintFinding]) -> str:
    parts = []
    for level in LEVELS:
        number = sum(one.level == level for one in findings)
        if number:
            parts.append(f"{number} {level}{'' if number == 1 else 's'}")
    return f"{', '.join(parts)}.\n{_SILENCE}"
