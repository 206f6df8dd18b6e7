"""`verify judge REPORT`: recompute the verdict of a report from its checks.

The suite inside an image is untrusted code, so its report is only a claim. This command recomputes
the verdict outside the image with the same rules, from the checks and the options of the run. Exit
codes: those of the verdict; 1 if the report claims a different verdict; 2 if it is malformed or
belongs to another run.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from verify.checks.devices.missing import missing
from verify.commands import main as cli
from verify.commands.usage import Parser, show
from verify.device import nvml
from verify.model.check import (
    EXIT_CODES,
    LEVELS,
    Check,
    Outcome,
    Result,
    Status,
    UsageError,
    demand,
)
from verify.model.expectations import Expectations
from verify.model.report import CheckRow, Environment, Report
from verify.reports import shape
from verify.reports.formatting import interruption
from verify.reports.report import document, exit_code
from verify.running.faults import CheckFault, decisive, faults

_MOST_NAMED = 5


@dataclass(frozen=True)
class JudgeRequest:
    """What the run was asked to do: the suite's command line and its expectations."""

    level: str
    only: Optional[str] = None
    require: Optional[str] = None
    expect: Expectations = field(default_factory=Expectations)


class JudgedReport(NamedTuple):
    """The verdict of a report by its checks, why, and each failed check's fault."""

    verdict: str
    why: str
    faults: Sequence[CheckFault]


def main(argv: Sequence[str]) -> int:
    """Recompute the verdict and print it with the one that the report claims."""
    options = _parser().parse_args(list(argv))
    report = shape.read(options.report)
    expect = cli.read_expectations(options.expect)
    asked = JudgeRequest(options.level or report["level"], options.only, options.require, expect)
    found, why, failed = recompute(report, cli.all_checks(), asked)
    claimed = report["verdict"]
    if options.json:
        fault = decisive(failed)
        values = {
            "schema": 1,
            "verdict": found,
            "claimed": claimed,
            "why": why,
            "exit_code": exit_code({**report, "verdict": found}),
            "at_fault": fault.at_fault if fault else None,
            "faults": {one.check: one.at_fault for one in failed},
        }
        show(json.dumps(values, indent=2) + "\n")
    else:
        differs = "" if found == claimed else "; the report says " + claimed
        show("{}: {}{}\n".format(found, why, differs))
    return EXIT_CODES[found] if found == claimed else EXIT_CODES["unfit"]


def recompute(
    report: Report, lists: Mapping[str, Sequence[Check]], asked: JudgeRequest
) -> JudgedReport:
    """The verdict by the suite's rules. Raises UsageError for a report of another run.

    `report` has the shape of the schema.
    """
    environment, expect = report["environment"], asked.expect
    name = environment["framework"]["name"]
    _same("level", report["level"], asked.level)
    _same("framework", name, expect.framework_name or name)
    if expect.digest is not None:
        _same("image", environment["image"], expect.digest)
    checks, required = cli.choose(
        lists[name], asked.level, asked.only, asked.require, expect.packages
    )
    results = [
        demand(
            _on_the_gpus_given(result, environment, expect),
            () if "interrupted" in environment else required,
        )
        for result in _results(report, checks)
    ]
    seen: Environment = {**environment}
    if expect.emulator:
        seen["emulator"] = expect.emulator
    shown = document(asked.level, seen, results)
    verdict = shown["verdict"]
    why = (verdict == "no-verdict" and interruption(report)) or _why(verdict, results)
    return JudgedReport(verdict, why, faults(shown["checks"]))


def _same(what: str, said: object, asked: object) -> None:
    if said != asked:
        raise UsageError(
            "it is the report of another run: its {} is {}, not {}".format(what, said, asked)
        )


def _results(report: Report, checks: Sequence[Check]) -> List[Result]:
    """The requested checks with the report's outcomes; the report must have exactly these."""
    rows: Dict[str, CheckRow] = {row["id"]: row for row in report["checks"]}
    twice = [
        name for name, count in Counter(r["id"] for r in report["checks"]).items() if count > 1
    ]
    lacking = [check.id for check in checks if check.id not in rows]
    more = sorted(rows.keys() - {check.id for check in checks})
    problems = (
        ("duplicate checks: {}", twice),
        ("requested checks are missing: {}", lacking),
        ("checks that were not requested: {}", more),
    )
    said = "; ".join(text.format(_listed(names)) for text, names in problems if names)
    if said:
        raise UsageError(said)
    return [
        Result(check, _outcome(row), row["seconds"])
        for check in checks
        for row in (rows[check.id],)
    ]


def _outcome(row: CheckRow) -> Outcome:
    status, measured, expected = Status(row["status"]), row["measured"], row["expected"]
    whose = row.get("at_fault")
    return Outcome(status, row["message"], row["cause"], row["fix"], measured, expected, whose)


def _on_the_gpus_given(result: Result, environment: Environment, expect: Expectations) -> Result:
    """The result, unless it claims GPUs that the run did not have, or misses some that it had."""
    if not (result.check.gpu and result.proven()) or expect.gpus is None:
        return result
    if not expect.gpus:
        return _not_run(result, "the run had no GPU")
    if result.check.id == "devices.nvml" and environment["driver_error"] is None:
        seen = [
            nvml.NvmlGpu(gpu["name"], gpu["uuid"], gpu["compute_capability"], mig=gpu["mig"])
            for gpu in environment["gpus"]
        ]
        unseen = missing(seen, expect.gpus)
        if unseen:
            return _not_run(result, "not in the environment: " + ", ".join(unseen))
    return result


def _not_run(result: Result, why: str) -> Result:
    return replace(result, outcome=Outcome(Status.SKIP, "reported as passed, but " + why))


def _why(verdict: str, results: Sequence[Result]) -> str:
    if verdict == "unfit":
        failed = [r for r in results if r.outcome.status in (Status.FAIL, Status.ERROR)]
        return "{} failed".format(_listed([result.check.id for result in failed]))
    if verdict == "no-verdict":
        unproven = [r for r in results if r.check.gpu and not r.proven()]
        said = next((r.outcome.message for r in unproven if r.outcome.message), "")
        names = _listed([result.check.id for result in unproven])
        return (
            "not tested on a GPU: {} ({:.200})".format(names, said)
            if names
            else "nothing was tested"
        )
    return "nothing failed"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    shown = ", ".join("{:.60}".format(name) for name in names[:_MOST_NAMED])
    return shown + (" and {} more".format(more) if more > 0 else "")


def _parser() -> Parser:
    parser = Parser(
        prog="verify judge", description="Recompute the verdict of a report from its checks."
    )
    add = parser.add_argument
    add("report", metavar="REPORT", help="the report (JSON)")
    add("--level", choices=LEVELS, help="requested level (default: that of the report)")
    add("--expect", metavar="FILE", help="expectations about the image (JSON)")
    add("--require", metavar="NAMES", help="fail if these checks were skipped")
    add("--only", metavar="NAMES", help="checks that should have run")
    add("--json", action="store_true", help="print the result as JSON")
    return parser
