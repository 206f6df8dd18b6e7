"""Markdown for a job's summary: the verdict, what failed and why, all checks, what was measured.

GitHub accepts 1 MiB per step and drops a longer summary whole, so the page is truncated before
that, at a line end: a table that is truncated there still renders.
"""

from __future__ import annotations

import re
from typing import Iterator, List, Sequence

from verify.model.report import CheckRow, MetricRow, Report, TableRow
from verify.reports import compare_text, formatting
from verify.reports.html import verdict_words
from verify.reports.tables import cell_text

LIMIT_BYTES = 1_000_000
_TEXT_LIMIT = 4_000
_MARKS = {
    "pass": "\u2705 pass",
    "fail": "\u274c fail",
    "error": "\u274c error",
    "skip": "\u2796 skip",
}
_SPECIAL = re.compile(r"[\\`*_\[\]|~]")
_FIRST = re.compile(r"^(\d*)([#+\-=.):>])")  # would begin a heading, a list or a quotation
_ENTITIES = {"&": "&amp;", "<": "&lt;", "$": "&#36;", "@": "&#64;"}


def render(report: Report) -> str:
    """The page."""
    return cut("\n".join(_lines(report)) + "\n", LIMIT_BYTES)


def cut(text: str, limit: int) -> str:
    """As many whole lines as fit, and a note if some did not."""
    if len(text.encode("utf-8")) <= limit:
        return text
    note = "\n\n_Truncated: the page is limited to {} kB. The JSON report is complete._\n"
    note = note.format(limit // 1000)
    room = limit - len(note.encode("utf-8"))
    head = text.encode("utf-8")[:room]
    return head[: head.rfind(b"\n") + 1].decode("utf-8").rstrip("\n") + note


def escape(text: str) -> str:
    """One line of text, escaped so that Markdown renderers show it as plain text.

    CommonMark's escape is a backslash before punctuation; the entities are for syntax beyond
    CommonMark (HTML, GitHub's formulas and @names).
    """
    line = formatting.one_line(formatting.shortened(text, _TEXT_LIMIT))
    line = _FIRST.sub(r"\1\\\2", _SPECIAL.sub(lambda found: "\\" + found.group(), line))
    return "".join(_ENTITIES.get(letter, letter) for letter in line)


def _lines(report: Report) -> Iterator[str]:
    word, said = verdict_words(report)
    yield "## Verification: {}".format(word.lower())
    yield ""
    yield said
    yield ""
    yield from _facts(report)
    yield from _troubles(report)
    yield from _comparison(report)
    yield from _checks(report)
    yield from _of_spec(report)
    yield from _measured(report)


def _facts(report: Report) -> Iterator[str]:
    environment = report["environment"]
    facts = [
        formatting.framework_title(environment),
        "Python " + environment["python"],
        "GPUs: " + formatting.gpu_names(environment),
        "driver " + (environment["driver"] or "not visible"),
        "level " + report["level"],
        environment["started"],
    ]
    yield escape(", ".join(facts))


def _troubles(report: Report) -> Iterator[str]:
    found = formatting.troubles(report)
    if found:
        yield from _heading("What failed")
    for check, also in found:
        yield "- **{}**: {}".format(escape(check["id"]), escape(check["message"]))
        rows = (
            ("Cause", check["cause"]),
            ("Fix", check["fix"]),
            ("At fault", check.get("at_fault")),
            ("Also", ", ".join(also)),
        )
        yield from ("  - {}: {}".format(name, escape(text)) for name, text in rows if text)


def _comparison(report: Report) -> Iterator[str]:
    found = report.get("comparison")
    if not found:
        return
    yield from _heading("Compared with the baseline")
    yield escape(compare_text.result(found))
    if found["unlike"]:
        yield from ("", escape(compare_text.unlike(found)))
    for title, rows in (
        ("Worse", compare_text.worse(found)),
        ("Better", compare_text.better(found)),
        ("Changes in the environment", compare_text.around(found)),
        ("Not in both", compare_text.one_sided(found)),
    ):
        if rows:
            yield from ("", "**{}**".format(title), "")
            yield from ("- " + escape(row) for row in rows)


def _checks(report: Report) -> Iterator[str]:
    yield from _heading("Checks")
    rows = [
        [check["id"], check["message"], "{:.1f}".format(check["seconds"])]
        for check in report["checks"]
    ]
    marks = [_mark(check) for check in report["checks"]]
    yield from _table(["Check", "What was found", "Seconds"], rows, numbers=(2,), marks=marks)


def _mark(check: CheckRow) -> str:
    on_cpu = formatting.state(check) == "pass-on-cpu"
    return "\u2705 pass on the CPU" if on_cpu else _MARKS[check["status"]]


def _of_spec(report: Report) -> Iterator[str]:
    rows = [
        [
            "{}: {}".format(check["id"], formatting.named(metric)),
            formatting.quantity(metric["value"], metric["unit"]),
            formatting.quantity(metric["spec"], metric["unit"]),
            formatting.percent(metric["of_spec"]),
        ]
        for check in report["checks"]
        for metric in formatting.metrics_of(check)
        if metric["spec"] and metric["of_spec"] is not None
    ]
    if rows:
        yield from _heading("Compared with the GPU's specification")
        columns = ["Metric", "Measured", "Specification", "Share"]
        yield from _table(columns, rows, numbers=(1, 2, 3))


def _measured(report: Report) -> Iterator[str]:
    checks = [c for c in report["checks"] if formatting.metrics_of(c) or formatting.tables_of(c)]
    if checks:
        yield from _heading("Measured")
    for check in checks:
        metrics = formatting.metrics_of(check)
        if metrics:
            yield from ("", "**{}**".format(escape(check["id"])), "")
            rows = [_metric_row(metric) for metric in metrics]
            yield from _table(["Metric", "Median", "Spread", "Repeats"], rows, numbers=(1, 2, 3))
        for table in formatting.tables_of(check):
            yield from ("", "**{}**: {}".format(escape(check["id"]), escape(table["title"])), "")
            cells = [[cell_text(cell) for cell in row] for row in table["rows"]]
            yield from _table(table["columns"], cells, numbers=_numbers(table))


def _metric_row(metric: MetricRow) -> List[str]:
    return [
        formatting.named(metric),
        formatting.quantity(metric["value"], metric["unit"]),
        formatting.percent(metric["spread"]),
        str(metric["repeats"]),
    ]


def _numbers(table: TableRow) -> List[int]:
    """The columns without text."""
    return [
        i
        for i in range(len(table["columns"]))
        if table["rows"]
        and not any(i < len(row) and isinstance(row[i], str) for row in table["rows"])
    ]


def _heading(title: str) -> Sequence[str]:
    return ("", "### " + title, "")


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    marks: Sequence[str] = (),
) -> Iterator[str]:
    """A table; `marks` is a first column that is already Markdown."""
    lead = ["Status"] if marks else []
    rule = ["---"] * len(lead) + ["--:" if i in numbers else "---" for i in range(len(columns))]
    yield _row([*lead, *map(escape, columns)])
    yield _row(rule)
    for i, row in enumerate(rows):
        yield _row([*marks[i : i + 1], *map(escape, row)])


def _row(cells: Sequence[str]) -> str:
    return "| {} |".format(" | ".join(cell or " " for cell in cells))
