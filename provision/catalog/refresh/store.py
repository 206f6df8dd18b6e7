"""A refresh's rows -> the user's copy of catalog rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

from provision.catalog.loading import load
from provision.catalog.overlay import Overlay, OverlayError
from provision.catalog.refresh.known import ident
from provision.catalog.refresh.model import Refreshed, Row


def source_key(name: str, today: str) -> str:
    """The key of a source that was read today; each date has its own, since copies grow."""
    return f"{name}-{today}"


def text_key(text: str) -> str:
    """The key of a source text that has no name."""
    return f"text-{zlib.crc32(text.encode()):08x}"


def with_sources(
    rows: Iterable[tuple[str, Row, Sequence[str]]], texts: Mapping[str, str], today: str
) -> tuple[dict[str, list[Row]], dict[str, str]]:
    """Rows in the form of the copy, by table, and the texts of the keys that they name.

    A column such as `sm_source` still holds a text; `texts` are the sources' own, by name.
    """
    tables: dict[str, list[Row]] = {}
    sources: dict[str, str] = {}
    for table, row, names in rows:
        columns = dict(row)
        for column, value in row.items():
            if column.endswith("_source") and isinstance(value, str):
                columns[column] = text_key(value)
                sources[text_key(value)] = value
        keys = {source_key(name, today): texts[name] for name in names}
        sources |= keys
        source = [*keys] if len(keys) > 1 else next(iter(keys))
        tables.setdefault(table, []).append({**columns, "source": source, "as_of": today})
    return tables, sources


def to_overlay(refreshed: Refreshed, previous: Overlay | None) -> Overlay:
    """The copy with what this refresh found; everything else stays, column by column."""
    tables: dict[str, dict[str, Row]] = {}
    for rows in (previous.tables if previous else {}, refreshed.rows):
        for table, found in rows.items():
            kept = tables.setdefault(table, {})
            for row in found:
                kept[ident(table, row)] = _laid(kept.get(ident(table, row), {}), row)
    sources = {**(previous.sources if previous else {}), **refreshed.sources}
    used = {key for kept in tables.values() for row in kept.values() for key in named_sources(row)}
    return Overlay(
        date=refreshed.today,
        sources={key: text for key, text in sources.items() if key in used},
        tables={table: tuple(kept.values()) for table, kept in tables.items()},
    )


def refused_rows(
    tables: Mapping[str, Sequence[Row]], sources: Mapping[str, str], today: str
) -> dict[tuple[str, str], str]:
    """The rows that the catalog's reader rejects, as (table, key) -> why.

    One of them would make the whole copy unreadable, so such a row is reported instead of kept.
    """
    refused = {}
    for table, rows in tables.items():
        if _problem({table: tuple(rows)}, sources, today) is None:
            continue
        for row in rows:
            if (why := _problem({table: (row,)}, sources, today)) is not None:
                refused[table, ident(table, row)] = why
    return refused


def _problem(
    tables: Mapping[str, tuple[Row, ...]], sources: Mapping[str, str], today: str
) -> str | None:
    try:
        load(overlay=Overlay(date=today, sources=sources, tables=tables))
    except OverlayError as error:
        return error.message
    return None


def _laid(old: Row, new: Row) -> Row:
    """Columns that stay keep their source beside the new one's."""
    laid = {**old, **new}
    if old.keys() - new.keys() - {"measured"}:
        keys = [key for row in (new, old) for key in _listed(row.get("source"))]
        laid["source"] = list(dict.fromkeys(keys))
    return laid


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def named_sources(row: Row) -> list[str]:
    """The keys of the sources that a row names."""
    names = [
        value for column, value in row.items() if column == "source" or column.endswith("_source")
    ]
    return [str(key) for value in names for key in _listed(value)]
