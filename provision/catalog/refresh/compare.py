"""Compares what was read with the catalog -> changes, and the rows that are worth keeping.

A column that may change upstream (a new Python, a yanked release) is updated. One that cannot
change after a wheel was uploaded (its CUDA, its pins) is filled if the catalog had not read it;
else the catalog's is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from packaging.version import Version

from provision.catalog.overlay import IDENTITIES
from provision.catalog.refresh.current_rows import CurrentRows, Row, as_version, ident, key_of
from provision.catalog.refresh.model import CatalogChange, Kind, SourceReading
from provision.catalog.refresh.render import say_change

_FOLLOWED = frozenset(
    {
        *("archs", "at", "existence", "latest_date", "latest_seen", "latest_source", "on_pypi"),
        *("python_tags", "size_max_bytes", "size_min_bytes", "status", "torchaudio"),
        *("torchvision", "yanked"),
    }
)
UNJUDGED = frozenset({"upload_time", "upload_date", "confidence", "pairing_note", "note"})
"""Of which wheel a time is differs between readings; the others are no facts of their own."""

_CONFIDENCES = {"glibc": "glibc_confidence", "python_tags": "python_confidence"}
_PLACES = ("pytorch", "pypi")
"""Where a build is available, the preferred place first."""

FoundRow = tuple[str, Row, tuple[str, ...]]
"""Table, columns to keep, the sources that gave them."""


def compare(
    readings: Mapping[str, SourceReading], known: CurrentRows
) -> tuple[list[CatalogChange], list[FoundRow]]:
    """Everything that was read, by source -> changes and rows, in the order of tables and keys."""
    changes: list[CatalogChange] = []
    rows: list[FoundRow] = []
    for table, row, sources in sorted(_joined(readings), key=lambda entry: _rank(*entry[:2])):
        for change, kept in _judge(table, row, known, readings[sources[0]].name):
            changes.append(change)
            rows += [(table, kept, sources)] if kept is not None else []
    return changes, rows


def _joined(readings: Mapping[str, SourceReading]) -> Iterator[FoundRow]:
    """One row per fact, with the sources that gave it: if two read the same column, the first that
    was sure counts.
    """
    rows: dict[tuple[str, str], dict[str, object]] = {}
    sources: dict[tuple[str, str], dict[str, None]] = {}
    for source, reading in readings.items():
        for table, columns in reading.rows:
            place = (table, ident(table, columns))
            row = rows.setdefault(place, {})
            for name, value in columns.items():
                better = all_places(row.get(name), value) if name == "at" else value
                if row.get(name) is None or name == "at":
                    if better != row.get(name, ""):
                        sources.setdefault(place, {})[source] = None
                    row[name] = better
    return ((place[0], row, tuple(sources[place])) for place, row in rows.items())


def _judge(
    table: str, row: Row, known: CurrentRows, name: str
) -> Iterator[tuple[CatalogChange, Row | None]]:
    """The changes that a row is, each with the columns that are to be kept."""
    key, old = key_of(table, row), known.row(table, row)

    def change(kind: Kind, after: Row) -> CatalogChange:
        before = None if old is None else {column: old[column] for column in after}
        sentence = say_change(table, key, kind, before, after, name)
        return CatalogChange(
            table=table, key=key, kind=kind, before=before, after=after, sentence=sentence
        )

    if old is None:
        yield change("new", {name: value for name, value in row.items() if name not in key}), row
        return
    moved: dict[str, object] = {}
    surer: dict[str, object] = {}
    for column, value in row.items():
        if column in key or value is None or column in UNJUDGED or column not in old:
            continue
        confidence = _CONFIDENCES.get(column, "")
        is_assumed = confidence in old and old[confidence] != "confirmed"
        after = all_places(old[column], value) if column == "at" else value
        if not is_same(old[column], after):
            if not (column in _FOLLOWED or is_assumed or old[column] in (None, [])):
                continue
            moved[column] = after
        if is_assumed:
            surer[confidence] = "confirmed"
    if row.get("confidence") == "confirmed" and old.get("confidence") != "confirmed":
        surer["confidence"] = "confirmed"
    if changed := {**moved, **surer}:
        only_surer = moved.keys() <= {"existence", "status"}
        yield change("confirmed" if only_surer else "changed", changed), {**key, **changed}


def is_same(before: object, after: object) -> bool:
    """Whether a column has not changed; the order of a list means nothing upstream."""
    if isinstance(before, list) and isinstance(after, list):
        return {str(item) for item in before} == {str(item) for item in after}
    return before == after


def all_places(before: object, more: object) -> list[str]:
    """The places of both lists, the preferred one first."""
    both = {str(p) for places in (before, more) if isinstance(places, Iterable) for p in places}
    return [place for place in _PLACES if place in both]


def _rank(table: str, row: Row) -> tuple[int, tuple[tuple[Version, str], ...]]:
    """Tables in the catalog's order; rows by their key, versions as versions."""
    words = [str(row.get(name)) for name in IDENTITIES[table].keys]
    return list(IDENTITIES).index(table), tuple((as_version(w) or Version("0"), w) for w in words)
