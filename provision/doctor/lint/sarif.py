"""Findings as SARIF 2.1.0, the format that code scanning reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from provision.doctor.lint.findings import LintFinding, Rule, rules

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def to_sarif(findings: Sequence[LintFinding], version: str) -> dict[str, Any]:
    """One run with every rule of the table, the findings, and the changes that fix them."""
    table = list(rules().values())
    index = {rule.code: number for number, rule in enumerate(table)}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "provision doctor",
                        "semanticVersion": version,
                        "rules": [_rule(rule) for rule in table],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(one, index[one.rule]) for one in findings],
            }
        ],
    }


def uri_of(path: str) -> str:
    """A path relative to the working directory where it lies below it, as a URI reference."""
    given = Path(path)
    if given.is_absolute():
        here = Path.cwd()
        if not given.is_relative_to(here):
            return given.as_uri()
        given = given.relative_to(here)
    return quote(str(PurePosixPath(*given.parts)))


def _rule(rule: Rule) -> dict[str, Any]:
    links = "\n".join(rule.links)
    listed = "\n".join(f"- <{link}>" for link in rule.links)
    return {
        "id": rule.code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.help},
        "help": {"text": f"{rule.help}\n{links}", "markdown": f"{rule.help}\n\n{listed}"},
        "helpUri": rule.links[0],
        "defaultConfiguration": {"level": rule.level},
    }


def _result(one: LintFinding, rule_index: int) -> dict[str, Any]:
    artifact = {"uri": uri_of(one.path)}
    result: dict[str, Any] = {
        "ruleId": one.rule,
        "ruleIndex": rule_index,
        "level": one.level,
        "message": {"text": f"{one.message} {one.fix}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": artifact,
                    "region": {
                        "startLine": one.line,
                        "startColumn": one.column,
                        "endLine": one.end_line,
                    },
                }
            }
        ],
    }
    if one.replacement is not None:
        region = {"startLine": one.line, "startColumn": 1, "endLine": one.end_line + 1}
        change = {
            "deletedRegion": {**region, "endColumn": 1},
            "insertedContent": {"text": f"{one.replacement}\n"},
        }
        result["fixes"] = [
            {
                "description": {"text": one.fix},
                "artifactChanges": [{"artifactLocation": artifact, "replacements": [change]}],
            }
        ]
    return result
