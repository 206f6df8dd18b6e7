"""The page's tables: numbers are rounded and right-aligned. A wide table scrolls by itself."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

from verify.model.report import CheckRow, MetricRow, TableRow
from verify.reports import formatting
from verify.reports.markup import Markup, tag


class Aligned(str):
    """A number already formatted as text; it is right-aligned like other numbers."""

    __slots__ = ()


def table(found: TableRow) -> Markup:
    """A `measures.Table` below its title."""
    return _titled(found["title"], found["title"], found["columns"], found["rows"])


def metrics(check: CheckRow) -> List[Markup]:
    """A check's metrics, with the card's own figures if there are any."""
    found = formatting.metrics_of(check)
    if not found:
        return []
    columns = ["Metric", "Median", "Spread", "Repeats"]
    with_spec = any(metric["spec"] for metric in found)
    columns += ["Specification", "Share"] if with_spec else []
    rows = [_metric_row(metric, with_spec=with_spec) for metric in found]
    return [_titled("Metrics", "Metrics of " + check["id"], columns, rows)]


def _titled(title: str, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    return tag("div", tag("h4", title), grid(name, columns, rows), class_="titled")


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """A table. A column is right-aligned if it contains only numbers."""
    aligned = [
        any(_is_number(row[i]) for row in rows if i < len(row))
        and all(_is_number(row[i]) or row[i] is None for row in rows if i < len(row))
        for i in range(len(columns))
    ]
    head = header([(name, "number" if right else "") for name, right in zip(columns, aligned)])
    body = tag("tbody", *(_row(row, aligned) for row in rows))
    whole = tag("table", head, body)
    return tag("div", whole, class_="wide", role="group", aria_label=title, tabindex=0)


def _row(row: Sequence[Any], aligned: Sequence[bool]) -> Markup:
    cells = []
    for i, cell in enumerate(row):
        right = aligned[i] if i < len(aligned) else _is_number(cell)
        kind = "number" if right else None
        if i:
            cells.append(tag("td", cell_text(cell), class_=kind))
        else:
            cells.append(tag("th", cell_text(cell), class_=kind, scope="row"))
    return tag("tr", *cells)


def _is_number(cell: Any) -> bool:
    return isinstance(cell, (int, float, Aligned))


def cell_text(cell: Any) -> str:
    """A table cell as text."""
    if cell is None:
        return formatting.NONE
    return cell if isinstance(cell, str) else formatting.number(cell)


def _metric_row(metric: MetricRow, *, with_spec: bool) -> List[Any]:
    spec, share = metric["spec"], metric["of_spec"]
    by_spec = [
        None if spec is None else Aligned(formatting.quantity(spec, metric["unit"])),
        None if share is None else Aligned(formatting.percent(share)),
    ]
    return [
        formatting.named(metric),
        Aligned(formatting.quantity(metric["value"], metric["unit"])),
        Aligned(formatting.percent(metric["spread"])),
        metric["repeats"],
        *(by_spec if with_spec else []),
    ]


def header(columns: Sequence[Tuple[str, str]]) -> Markup:
    """A table's header, from (name, class)."""
    cells = [tag("th", name, scope="col", class_=kind or None) for name, kind in columns]
    return tag("thead", tag("tr", *cells))
