"""The report: JSON for machines, and a page for people."""

from __future__ import annotations

import json
import re
import signal
import textwrap
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from verify.model.check import EXIT_CODES, Result, gpus, verdict
from verify.model.frameworks import FRAMEWORKS
from verify.model.report import CheckRow, Environment, MetricRow, Report
from verify.reports import compare_text, formatting
from verify.running.faults import decisive, faults

WIDTH = 80
_LEFT = 31  # status word and id
_MOST_METRICS = 12
_HALF_PAIRS = re.compile("[\ud800-\udfff]")


def document(
    level: str,
    environment: Environment,
    results: Sequence[Result],
    only: Optional[str] = None,
) -> Report:
    """The report as `report.schema.json` describes it. A run under an emulator proves nothing about
    a real processor, and one that was interrupted has not run all checks.
    """
    found = verdict(results)
    part = environment.get("emulator") is not None or "interrupted" in environment
    rows = [result.as_dict() for result in results]
    fault = decisive(faults(rows))
    shown: Report = {
        "schema": 1,
        "verdict": "no-verdict" if found == "fit" and part else found,
        "level": level,
        **({"only": only} if only else {}),  # type: ignore[typeddict-item,unused-ignore]
        "environment": environment,
        **({"at_fault": fault.at_fault} if fault else {}),  # type: ignore[typeddict-item,unused-ignore]
        "checks": rows,
    }
    return shown


def dump(report: Mapping[str, object]) -> str:
    """A report, or what is made of one, as JSON text. Lone surrogates (from file names that are not
    UTF-8) become U+FFFD, and unprintable characters are escaped, since the text may be shown on a
    terminal.
    """
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
    text = _HALF_PAIRS.sub("\ufffd", text)
    escaped = (c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    return "".join(escaped) + "\n"


def table(report: Report, width: int = WIDTH) -> str:
    """The report for people: a line per check, then what matters most, the verdict last. `width`:
    its columns; 80 are the fewest.
    """
    width, checks = max(width, WIDTH), report["checks"]
    lines = [*_wrap("", _heading(report["environment"]), width), ""]
    same: Dict[Tuple[Any, ...], str] = {}
    for check in checks:
        lines += _row(check, same, width)
    lines += _of_spec(checks, width) + _troubles(report, width)
    if "comparison" in report:
        lines += ["", *compare_text.page(report["comparison"], width).splitlines()]
    lines += ["", *_answer(report, width)]
    lines += _named("proven", [check["id"] for check in checks if formatting.proven(check)], width)
    on_cpu = [check["id"] for check in checks if formatting.state(check) == "pass-on-cpu"]
    if on_cpu:
        lines += _wrap("on the CPU  ", ", ".join(on_cpu) + "; not tested on a GPU", width)
    skipped = [check["id"] for check in checks if check["status"] == "skip"]
    skipped += ["all checks that --only excludes"] if "only" in report else []
    lines += _named("not run", skipped, width) if skipped else []
    return "\n".join(lines) + "\n"


def exit_code(report: Report) -> int:
    """The exit code of the run: the verdict's, or a failure's if a baseline was better; a signal's
    if that ended the run before anything failed.
    """
    worse = report.get("comparison", {}).get("worse", False)
    name = report["environment"].get("interrupted")
    if name and report["verdict"] != "unfit":
        return 128 + signal.Signals[name]
    return EXIT_CODES["unfit" if worse else report["verdict"]]


def _heading(environment: Environment) -> str:
    framework = environment["framework"]
    parts = [
        "Python " + str(environment["python"]),
        FRAMEWORKS[framework["name"]].module + " " + str(framework["version"] or "not installed"),
        "driver " + str(environment["driver"] or "not visible"),
        gpus(len(environment["gpus"])),
        "{} CPUs".format(environment["cpus"]),
    ]
    if environment.get("replayed"):
        parts.append("a recording of {}".format(environment["replayed"]))
    if environment.get("emulator"):
        parts.append("emulated by {}".format(environment["emulator"]))
    return ", ".join(parts)


def _row(check: CheckRow, same: Dict[Tuple[Any, ...], str], width: int) -> List[str]:
    """One check's line. A failure is shown in full below, a skip here, and neither twice."""
    head = "{:<5}  {:<22}".format(check["status"].upper(), check["id"]).ljust(_LEFT)
    message = formatting.one_line(check["message"])
    if check["status"] == "pass":
        where = "(CPU) " if formatting.state(check) == "pass-on-cpu" else ""
        return [head + _cut(where + message, width - _LEFT)]
    key = (check["status"], check["message"], check["cause"], check["fix"])
    first = same.setdefault(key, check["id"])
    if first != check["id"]:
        return [head + "same as " + first]
    if check["status"] == "skip":
        return _wrap(head, message, width)
    return [head + _cut(message, width - _LEFT)]


def _cut(text: str, width: int) -> str:
    """As many words as fit; the JSON report has all of them."""
    return textwrap.shorten(text, width, placeholder=" ...") if len(text) > width else text


def _troubles(report: Report, width: int) -> List[str]:
    lines: List[str] = []
    for check, also in formatting.troubles(report):
        lines += ["", "{:<5}  {}".format(check["status"].upper(), check["id"])]
        lines += _wrap(" " * 7, check["message"], width)
        rows = [
            ("cause: ", check["cause"]),
            ("fix:   ", check["fix"]),
            ("fault: ", check.get("at_fault")),
            ("also:  ", ", ".join(also)),
        ]
        for head, text in rows:
            lines += _wrap(" " * 7 + head, text, width) if text else []
    return lines


def _of_spec(checks: Sequence[CheckRow], width: int) -> List[str]:
    rows = _lowest(checks)
    if not rows:
        return []
    lines = ["", "Measurements, and their share of the GPU's specification"]
    for name, metric in rows[:_MOST_METRICS]:
        value = formatting.quantity(metric["value"], metric["unit"])
        share = formatting.percent(metric["of_spec"] or 0.0)
        cells = _cut(name, width - 35), _cut(value, 20), _cut(share, 11)
        lines.append("  {:<{}}{:>20}{:>12}".format(cells[0], width - 34, *cells[1:]))
    if len(rows) > _MOST_METRICS:
        lines.append("  and {} more, in the report".format(len(rows) - _MOST_METRICS))
    return lines


def _lowest(checks: Sequence[CheckRow]) -> List[Tuple[str, MetricRow]]:
    """One metric per kind: the slowest of several GPUs, since it holds up the others."""
    groups: Dict[Tuple[str, str, str], List[MetricRow]] = {}
    for check in checks:
        for metric in formatting.metrics_of(check):
            if metric["of_spec"] is not None:
                rest = {k: v for k, v in metric["labels"].items() if k != "gpu"}
                key = (check["id"], metric["name"], formatting.labels(rest))
                groups.setdefault(key, []).append(metric)
    return [(_group_name(*key, len(group)), _least(group)) for key, group in groups.items()]


def _least(group: Sequence[MetricRow]) -> MetricRow:
    return min(group, key=lambda metric: metric["of_spec"] or 0.0)


def _group_name(check: str, name: str, labels: str, count: int) -> str:
    parts = ([labels] if labels else []) + (["lowest of {}".format(count)] if count > 1 else [])
    return "{}  {}{}".format(check, name, " ({})".format(", ".join(parts)) if parts else "")


def _answer(report: Report, width: int) -> List[str]:
    """The verdict as a sentence, as the build says it."""
    code, found = exit_code(report), report["verdict"]
    statuses = [check["status"] for check in report["checks"]]
    failed, left_out = statuses.count("fail") + statuses.count("error"), statuses.count("skip")
    ran = len(statuses) - left_out
    what = formatting.framework_title(report["environment"])
    if found == "unfit":
        head, text = "No", "{} failed {} of {} checks on this machine".format(what, failed, ran)
    elif code == EXIT_CODES["unfit"]:
        head, text = "No", "{} passed {} checks, worse than the baseline".format(what, ran)
    elif found == "fit":
        head, text = "Yes", "{} works on this machine: {} checks passed".format(what, ran)
    else:
        head, text = "Not proven", "{} passed {} checks".format(what, ran)
        on_cpu = sum(formatting.state(check) == "pass-on-cpu" for check in report["checks"])
        text += ", {} of them on the CPU".format(on_cpu) if on_cpu else ""
    more = "; {} did not run".format(left_out) if left_out else ""
    more += ", only those of --only {}".format(report["only"]) if "only" in report else ""
    more += "; " + formatting.interruption(report) if formatting.interruption(report) else ""
    tail = " ({}, exit code {})".format(found, code)
    return _wrap("", "{}: {}{}{}".format(head, text, more, tail), width, " " * 5)


def _named(head: str, ids: Sequence[str], width: int) -> List[str]:
    return _wrap(head.ljust(12), ", ".join(ids) or "nothing", width)


def _wrap(head: str, text: str, width: int, indent: str = "") -> List[str]:
    """Wrap text, but not at hyphens and in words, so that paths and names can be copied."""
    indent = indent or " " * len(head)
    return textwrap.wrap(
        formatting.one_line(text),
        width,
        initial_indent=head,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
