"""A comparison for people: the same sentences on the terminal and in the rendered reports."""

from __future__ import annotations

import textwrap
from typing import List, Sequence

from verify.model.report import MetricKey, MovedCheck, MovedMetric, ReportComparison, RunRow
from verify.reports.formatting import counted, named, one_line, percent, quantity, short_digest

WIDTH = 80


def page(found: ReportComparison, width: int = WIDTH) -> str:
    """The whole comparison in lines of at most `width` columns, the result last."""
    lines = _wrap("Baseline: ", _run(found["baseline"]), width)
    lines += _wrap("Current:  ", _run(found["current"]), width)
    if found["unlike"]:
        lines += ["", *_wrap("", unlike(found), width)]
    lines += _block("Changes in the environment", around(found), width)
    lines += _block("Worse", worse(found), width)
    lines += _block("Better", better(found), width)
    lines += _block("Not in both", one_sided(found), width)
    return "\n".join([*lines, "", *_wrap("", result(found), width)]) + "\n"


def result(found: ReportComparison) -> str:
    """The answer in one sentence."""
    tail = "{} compared, with a tolerance of {}".format(
        counted(found["metrics"]["compared"], "metric"), percent(found["tolerance"])
    )
    if not found["worse"]:
        return "Not worse than the baseline; {}.".format(tail)
    parts = [
        counted(len(found[kind]["worse"]), kind[:-1])
        for kind in ("checks", "metrics")
        if found[kind]["worse"]
    ]
    return "Worse than the baseline: {}; {}.".format(", ".join(parts or ["the verdict"]), tail)


def unlike(found: ReportComparison) -> str:
    """Why the numbers of the two runs are hard to compare."""
    return "The two runs are not comparable: {}.".format("; ".join(found["unlike"]))


def around(found: ReportComparison) -> List[str]:
    """What changed around the image."""
    return [
        "{}: {} -> {}".format(row["name"], row["baseline"] or "none", row["current"] or "none")
        for row in found["environment"]
    ]


def worse(found: ReportComparison) -> List[str]:
    """What got worse, checks first."""
    return [
        *_verdict(found, "worse"),
        *map(_check, found["checks"]["worse"]),
        *map(moved, found["metrics"]["worse"]),
    ]


def better(found: ReportComparison) -> List[str]:
    """What got better, and the checks that fail differently."""
    return [
        *_verdict(found, "better"),
        *map(_check, found["checks"]["better"]),
        *map(moved, found["metrics"]["better"]),
        *map(_check, found["checks"]["changed"]),
    ]


def one_sided(found: ReportComparison) -> List[str]:
    """What only one of the reports has."""
    lines = []
    checks, metrics = found["checks"], found["metrics"]
    for said, ids, keys in (
        ("only in the baseline", checks["missing"], metrics["missing"]),
        ("only in the current run", checks["new"], metrics["new"]),
    ):
        names = [*ids, *map(metric_name, keys)]
        if names:
            lines.append("{}: {}".format(said, ", ".join(names)))
    return lines


def metric_name(row: MetricKey) -> str:
    """A metric with its check: "speed.gemm: gemm (dtype bf16)"."""
    return "{}: {}".format(row["check"], named(row))


def _verdict(found: ReportComparison, way: str) -> List[str]:
    if found["verdict"] != way:
        return []
    before, after = found["baseline"]["verdict"], found["current"]["verdict"]
    return ["the verdict: {} -> {}".format(before, after)]


def _check(row: MovedCheck) -> str:
    return "{}: {} -> {}: {}".format(row["id"], row["baseline"], row["current"], row["message"])


def moved(row: MovedMetric) -> str:
    """One metric's change: old and new value, by how much, and how much was allowed."""
    old, new = row["baseline"], row["current"]
    way = "more" if new > old else "less"
    step = "{} {}".format(percent(abs(new / old - 1)), way) if _ratio(old, new) else "from 0"
    said = "{}: {} -> {}, {} (allowed: {})"
    values = (_bare(old, new, row["unit"]), quantity(new, row["unit"]))
    return said.format(metric_name(row), *values, step, percent(row["allowance"]))


def _ratio(old: float, new: float) -> bool:
    return bool(old) and abs(new / old) < 1e6


def _bare(old: float, new: float, unit: str) -> str:
    """The first number, without its unit if the second has the same unit."""
    first, second = quantity(old, unit), quantity(new, unit)
    same = first.partition(" ")[2] == second.partition(" ")[2]
    return first.partition(" ")[0] if same else first


def _run(run: RunRow) -> str:
    """A run, with its digest shortened as Docker does; `around` shows differing ones in full."""
    image = ", image " + short_digest(run["image"]) if run["image"] else ""
    return "{}, {}, level {}{}".format(run["started"], run["verdict"], run["level"], image)


def _block(title: str, rows: Sequence[str], width: int) -> List[str]:
    return ["", title, *(line for row in rows for line in _wrap("  ", row, width))] if rows else []


def _wrap(head: str, text: str, width: int) -> List[str]:
    indent = " " * len(head) if head.strip() or not head else head + "  "
    return textwrap.wrap(
        one_line(text), width, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False
    )
