"""`verify judge REPORT`: the verdict that a report's checks amount to, whatever it says itself.

An image is other people's code, and so is the suite in it: its report is a claim. Whoever asked for
the run recomputes the verdict here, outside the image, by the suite's own rules, from the checks
and from what was asked for. Exit codes: those of the verdict; 1 where the report says another one;
2 where it is malformed, or is the report of another run.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from verify import cli, nvml
from verify.checks.devices import missing
from verify.core import EXIT_CODES, LEVELS, Check, Outcome, Result, Status, UsageError, demand
from verify.expectations import Expectations
from verify.report import document
from verify.reports import shape
from verify.usage import Parser, show

_MOST_NAMED = 5
_GPU = ("name", "uuid", "compute_capability", "mig")
_OUTCOME = ("status", "message", "cause", "fix", "measured", "expected")

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """What the run was to do: the command line of the suite, and its expectations."""

    level: str
    only: Optional[str] = None
    require: Optional[str] = None
    expect: Expectations = field(default_factory=Expectations)


def main(argv: Sequence[str]) -> int:
    """Recompute the verdict and print it beside the one that the report claims."""
    options = _parser().parse_args(list(argv))
    report = shape.read(options.report)
    expect = cli.read_expectations(options.expect)
    asked = Asked(options.level or report["level"], options.only, options.require, expect)
    found, why = recompute(report, cli.all_checks(), asked)
    claimed = report["verdict"]
    if options.json:
        values = {"schema": 1, "verdict": found, "claimed": claimed, "why": why}
        show(json.dumps(values, indent=2) + "\n")
    else:
        differs = "" if found == claimed else "; the report says " + claimed
        show("{}: {}{}\n".format(found, why, differs))
    return EXIT_CODES[found] if found == claimed else EXIT_CODES["unfit"]


def recompute(
    report: Report, lists: Mapping[str, Sequence[Check]], asked: Asked
) -> Tuple[str, str]:
    """The verdict by the suite's rules, and why; UsageError where the report is of another run.

    `report` has the shape of the schema.
    """
    environment, expect = report["environment"], asked.expect
    name = environment["framework"]["name"]
    _same("level", report["level"], asked.level)
    _same("framework", name, expect.framework_name or name)
    if expect.digest is not None:
        _same("image", environment["image"], expect.digest)
    checks, required = cli.choose(lists[name], asked.level, asked.only, asked.require)
    results = [
        demand(_on_the_gpus_given(result, environment, expect), required)
        for result in _results(report, checks)
    ]
    emulator = expect.emulator or environment.get("emulator")
    verdict = document(asked.level, {**environment, "emulator": emulator}, results)["verdict"]
    return verdict, _why(verdict, results)


def _same(what: str, said: object, asked: object) -> None:
    if said != asked:
        raise UsageError("it is of another run: its {} is {}, not {}".format(what, said, asked))


def _results(report: Report, checks: Sequence[Check]) -> List[Result]:
    """The checks that were asked for with what the report says of each; it says neither more nor
    less.
    """
    rows: Dict[str, Mapping[str, Any]] = {row["id"]: row for row in report["checks"]}
    twice = [
        name for name, count in Counter(r["id"] for r in report["checks"]).items() if count > 1
    ]
    lacking = [check.id for check in checks if check.id not in rows]
    more = sorted(rows.keys() - {check.id for check in checks})
    problems = (
        ("checks that are in it twice: {}", twice),
        ("checks that were asked for and are missing: {}", lacking),
        ("checks that were not asked for: {}", more),
    )
    said = "; ".join(text.format(_listed(names)) for text, names in problems if names)
    if said:
        raise UsageError(said)
    return [
        Result(check, Outcome.from_dict({key: row[key] for key in _OUTCOME}), row["seconds"])
        for check in checks
        for row in (rows[check.id],)
    ]


def _on_the_gpus_given(
    result: Result, environment: Mapping[str, Any], expect: Expectations
) -> Result:
    """The result, unless it claims GPUs that the run did not have, or has not seen those it had."""
    if not (result.check.gpu and result.proven()) or expect.gpus is None:
        return result
    if not expect.gpus:
        return _not_run(result, "the run was given no GPU")
    if result.check.id == "devices.nvml" and environment["driver_error"] is None:
        seen = [nvml.Gpu(*map(gpu.get, _GPU)) for gpu in environment["gpus"]]
        unseen = missing(seen, expect.gpus)
        if unseen:
            return _not_run(result, "not in the environment: " + ", ".join(unseen))
    return result


def _not_run(result: Result, why: str) -> Result:
    return replace(result, outcome=Outcome(Status.SKIP, "it claims to have passed, yet " + why))


def _why(verdict: str, results: Sequence[Result]) -> str:
    if verdict == "unfit":
        failed = [r for r in results if r.outcome.status in (Status.FAIL, Status.ERROR)]
        return "{} failed".format(_listed([result.check.id for result in failed]))
    if verdict == "no-verdict":
        unproven = [r for r in results if r.check.gpu and not r.proven()]
        said = next((r.outcome.message for r in unproven if r.outcome.message), "")
        names = _listed([result.check.id for result in unproven])
        return "not shown on a GPU: {} ({:.200})".format(names, said) if names else "nothing shown"
    return "nothing failed"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    shown = ", ".join("{:.60}".format(name) for name in names[:_MOST_NAMED])
    return shown + (" and {} more".format(more) if more > 0 else "")


def _parser() -> Parser:
    parser = Parser(prog="verify judge", description="The verdict that a report's checks make.")
    add = parser.add_argument
    add("report", metavar="REPORT", help="a report, as JSON")
    add("--level", choices=LEVELS, help="the level that was asked for (default: the report's)")
    add("--expect", metavar="FILE", help="what the image should be, as JSON")
    add("--require", metavar="NAMES", help="whose skip is a failure")
    add("--only", metavar="NAMES", help="the checks that were to run")
    add("--json", action="store_true", help="the verdict, the one claimed, and why, as JSON")
    return parser
