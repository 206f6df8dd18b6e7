"""The report: one document for machines, one page of 80 columns for people."""

from __future__ import annotations

import json
import os
import textwrap
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from verify.core import EXIT_CODES, Result, Status, gpus, verdict
from verify.frameworks import FRAMEWORKS

WIDTH = 80
_LEFT = 29  # status word and id


def document(
    level: str, environment: Mapping[str, Any], results: Sequence[Result]
) -> Dict[str, Any]:
    """The report as `report.schema.json` describes it."""
    return {
        "schema": 1,
        "verdict": verdict(results),
        "level": level,
        "environment": dict(environment),
        "checks": [result.as_dict() for result in results],
    }


def dump(report: Mapping[str, Any]) -> str:
    """The report as JSON text."""
    return json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write(path: str, report: Mapping[str, Any]) -> None:
    """Write the whole report or nothing: a reader never sees half of one."""
    partial = "{}.{}.partial".format(path, os.getpid())
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(dump(report))
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def table(report: Mapping[str, Any], results: Sequence[Result]) -> str:
    """The report for people."""
    lines = [_heading(report["environment"]), ""]
    said: Dict[Tuple[Optional[str], ...], str] = {}
    for result in results:
        lines += _rows(result, said)
    lines += ["", "Verdict: {0} (exit code {1})".format(report["verdict"], exit_code(report))]
    lines += _named("Proven:", [r.check.id for r in results if r.proven()])
    lines += _named("Not proven:", [r.check.id for r in results if not r.proven()])
    return "\n".join(lines) + "\n"


def exit_code(report: Mapping[str, Any]) -> int:
    """The exit code that the verdict stands for."""
    return EXIT_CODES[report["verdict"]]


def _heading(environment: Mapping[str, Any]) -> str:
    framework = environment["framework"]
    parts = [
        "Python " + str(environment["python"]),
        FRAMEWORKS[framework["name"]].module + " " + str(framework["version"] or "not installed"),
        "driver " + str(environment["driver"] or "not visible"),
        gpus(len(environment["gpus"])),
        "{} CPUs".format(environment["cpus"]),
    ]
    return textwrap.fill(", ".join(parts), WIDTH)


def _rows(result: Result, said: Dict[Tuple[Optional[str], ...], str]) -> List[str]:
    """One check's lines. Trouble that an earlier check told in full is not told again."""
    outcome = result.outcome
    head = "{:<5}  {:<22}".format(outcome.status.value.upper(), result.check.id)
    if outcome.status in (Status.PASS, Status.SKIP):
        return _wrap(head, outcome.message)
    first = said.setdefault((outcome.message, outcome.cause, outcome.fix), result.check.id)
    if first != result.check.id:
        return _wrap(head, "the same as " + first)
    rows = _wrap(head, outcome.message)
    for word, text in (("cause", outcome.cause), ("fix", outcome.fix)):
        rows += _wrap("{:>27}  ".format(word + ":"), text) if text else []
    return rows


def _wrap(head: str, text: str) -> List[str]:
    indent = " " * _LEFT
    return textwrap.wrap(text, WIDTH, initial_indent=head.ljust(_LEFT), subsequent_indent=indent)


def _named(head: str, ids: Sequence[str]) -> List[str]:
    text = ", ".join(ids) or "nothing"
    indent = " " * 12
    return textwrap.wrap(text, WIDTH, initial_indent=head.ljust(12), subsequent_indent=indent)
