"""A refresh's rows -> the user's copy of catalog rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

from provision.catalog.loading import load
from provision.catalog.overlay import Overlay, OverlayError
from provision.catalog.refresh.compare import FoundRow
from provision.catalog.refresh.current_rows import CurrentRows, Row, ident
from provision.catalog.tables import TABLES

# A row of the left table is useless without one of the right.
_PARENTS = {
    "builds": "releases",
    "tensorflow_wheels": "tensorflow_releases",
    "jax_plugins": "jax_releases",
}
Tables = dict[str, list[Row]]


def with_sources(
    rows: Iterable[FoundRow], texts: Mapping[str, str], today: str
) -> tuple[Tables, dict[str, str]]:
    """Rows in the form of the copy, by table, and the texts of the keys that they name.

    A column such as `sm_source` still holds a text; `texts` are the sources' own, by name. Each
    date has its own key of a source, since copies grow. An unread column that a row may lack is
    left out.
    """
    tables: Tables = {}
    sources: dict[str, str] = {}
    for table, row, names in rows:
        needed = TABLES[table].needed
        columns = {
            name: value for name, value in row.items() if value is not None or name in needed
        }
        for column, value in row.items():
            if column.endswith("_source") and isinstance(value, str):
                key = f"text-{zlib.crc32(value.encode()):08x}"
                columns[column], sources[key] = key, value
        keys = {f"{name}-{today}": texts[name] for name in names}
        sources |= keys
        source = [*keys] if len(keys) > 1 else next(iter(keys))
        tables.setdefault(table, []).append({**columns, "source": source, "as_of": today})
    return tables, sources


def refused_rows(
    tables: Mapping[str, Sequence[Row]], known: CurrentRows, sources: Mapping[str, str], today: str
) -> dict[tuple[str, str], str]:
    """New rows that cannot be kept, as (table, key) -> why: incomplete, rejected by the catalog's
    reader (one of them would make the whole copy unreadable), or of an unknown release.
    """
    refused: dict[tuple[str, str], str] = {}
    fresh = {
        table: {
            key: row for row in rows if known.row(table, row) is None and (key := ident(table, row))
        }
        for table, rows in tables.items()
    }
    for table, rows in fresh.items():
        for key, row in rows.items():
            if missing := sorted(TABLES[table].needed.keys() - row.keys()):
                refused[table, key] = f"{', '.join(missing)} could not be read"
        whole = {key: row for key, row in rows.items() if (table, key) not in refused}
        if _problem(table, whole.values(), sources, today) is not None:
            for key, row in whole.items():
                if (why := _problem(table, [row], sources, today)) is not None:
                    refused[table, key] = why.rstrip(".")
    for table, parent in _PARENTS.items():
        born = {
            row["version"]
            for key, row in fresh.get(parent, {}).items()
            if (parent, key) not in refused
        }
        for key, row in fresh.get(table, {}).items():
            if row["version"] not in born and known.row(parent, row) is None:
                refused[table, key] = "its release could not be read"
    return refused


def _problem(table: str, rows: Iterable[Row], sources: Mapping[str, str], today: str) -> str | None:
    try:
        load(overlay=Overlay(date=today, sources=sources, tables={table: tuple(rows)}))
    except OverlayError as error:
        return error.message
    return None
