"""Compares what was read with the catalog -> changes, and the rows that are worth keeping.

A column that may change upstream (a new Python, a yanked release) is updated. One that cannot
change after a wheel was uploaded (its CUDA, its pins) is filled if the catalog had not read it; if
the catalog has another value, both are reported and the catalog's is kept: one of the two is wrong,
and a refresh cannot know which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from provision.catalog.overlay import IDENTITIES
from provision.catalog.refresh.known import CurrentRows, as_version, ident, key_of
from provision.catalog.refresh.model import (
    Absence,
    CatalogChange,
    Kind,
    Row,
    Sighting,
    SourceReading,
)
from provision.catalog.refresh.words import say_change, say_seen

_FOLLOWED = frozenset(
    {
        "archs",
        "at",
        "existence",
        "latest_date",
        "latest_seen",
        "latest_source",
        "on_pypi",
        "python_tags",
        "size_max_bytes",
        "size_min_bytes",
        "status",
        "torchaudio",
        "torchvision",
        "yanked",
    }
)
_UNJUDGED = frozenset({"upload_time", "upload_date", "confidence", "pairing_note", "note"})
"""Of which wheel a time is differs between readings; the others are no facts of their own."""

_CONFIDENCES = {"glibc": "glibc_confidence", "python_tags": "python_confidence"}
_PLACES = ("pytorch", "pypi")
"""Where a build is available, the preferred place first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Changes in the order of tables and rows; `rows`: (table, columns to keep, its sources)."""

    changes: tuple[CatalogChange, ...]
    rows: tuple[tuple[str, Row, tuple[str, ...]], ...]


def compare(
    readings: Sequence[SourceReading], known: CurrentRows, names: Mapping[str, str]
) -> Compared:
    """Compare everything that was read. `names`: how sentences name each source."""
    changes: list[tuple[str, CatalogChange]] = []
    rows: list[tuple[str, Row, tuple[str, ...]]] = []
    for table, row, sources in _joined(readings):
        found = _judge(table, row, known, names[sources[0]])
        changes += [(table, change) for change, _ in found]
        rows += [(table, kept, sources) for _, kept in found if kept is not None]
    for gone, source in _lost(readings):
        before = known.row(gone.table, gone.key) or gone.key
        change = CatalogChange(
            table=gone.table,
            key=gone.key,
            kind="gone",
            before=None if gone.patch is None else {k: before.get(k) for k in gone.patch},
            after=gone.patch,
            sentence=say_seen(gone.table, gone.key, gone.words),
        )
        changes.append((gone.table, change))
        if gone.patch is not None:
            rows.append((gone.table, {**gone.key, **gone.patch}, (source,)))
    for seen in (*(one for reading in readings for one in reading.seen), *_alone(readings, known)):
        change = CatalogChange(
            table=seen.table,
            key=seen.key,
            kind=seen.kind,
            before=None,
            after=None,
            sentence=say_seen(seen.table, seen.key, seen.words),
        )
        changes.append((seen.table, change))
    changes.sort(key=lambda pair: (_rank(pair[0], pair[1].key), pair[1].kind))
    rows.sort(key=lambda entry: _rank(entry[0], entry[1]))
    return Compared(changes=tuple(change for _, change in changes), rows=tuple(rows))


def _joined(
    readings: Sequence[SourceReading],
) -> list[tuple[str, dict[str, object], tuple[str, ...]]]:
    """One row per fact, with the sources that gave it: if two read the same column, the first that
    was sure counts, and a `Part` of a row counts before both.
    """
    rows: dict[tuple[str, str], dict[str, object]] = {}
    sources: dict[tuple[str, str], list[str]] = {}
    for reading in readings:
        for table, columns in reading.rows:
            place = (table, ident(table, columns))
            if place not in rows:
                rows[place], sources[place] = dict(columns), [reading.source]
                continue
            row = rows[place]
            for name, value in columns.items():
                if name == "at":
                    row[name] = _places(row.get(name), value)
                elif row.get(name) is None and value is not None:
                    row[name] = value
                    sources[place].append(reading.source)
    for reading in readings:
        for part in reading.parts:
            place = (part.table, ident(part.table, part.columns))
            if place in rows and rows[place] != {**rows[place], **part.columns}:
                rows[place].update(part.columns)
                sources[place].append(reading.source)
    return [
        (table, row, tuple(dict.fromkeys(sources[table, key])))
        for (table, key), row in rows.items()
    ]


def _alone(readings: Sequence[SourceReading], known: CurrentRows) -> list[Sighting]:
    """Parts of rows that no source gave, once each."""
    given = {(table, ident(table, row)) for reading in readings for table, row in reading.rows}
    found: dict[tuple[str, str], Sighting] = {}
    for part in (one for reading in readings for one in reading.parts):
        place = (part.table, ident(part.table, part.columns))
        if place not in given and known.row(part.table, part.columns) is None:
            key = key_of(part.table, part.columns)
            seen = Sighting(table=part.table, key=key, kind="new", words=part.words)
            found.setdefault(place, seen)
    return list(found.values())


def _lost(readings: Iterable[SourceReading]) -> list[tuple[Absence, str]]:
    """What is absent, once per row: a build that none of its places lists any more is doubtful."""
    found: dict[tuple[str, str], tuple[Absence, str]] = {}
    for reading in readings:
        for gone in reading.absent:
            place = (gone.table, ident(gone.table, gone.key))
            first = found.get(place)
            if first is None:
                found[place] = (gone, reading.source)
            elif first[0].patch and "at" in first[0].patch:
                words = f"{first[0].words}; {gone.words}"
                both = replace(gone, patch={"existence": "doubtful"}, words=words)
                found[place] = (both, reading.source)
    return list(found.values())


def _judge(
    table: str, row: Mapping[str, object], known: CurrentRows, name: str
) -> list[tuple[CatalogChange, Row | None]]:
    key = key_of(table, row)
    old = known.row(table, key)
    if old is None:
        said = {column: value for column, value in row.items() if column not in key}
        return [(_change(table, key, "new", None, said, name), row)]
    moved: dict[str, object] = {}
    denied: dict[str, object] = {}
    surer: dict[str, object] = {}
    for column, value in row.items():
        if column in key or value is None or column in _UNJUDGED or column not in old:
            continue
        confidence = _CONFIDENCES.get(column, "")
        is_assumed = confidence in old and old[confidence] != "confirmed"
        after = _places(old[column], value) if column == "at" else value
        if not _same(old[column], after):
            if column in _FOLLOWED or is_assumed or old[column] in (None, []):
                moved[column] = after
            else:
                denied[column] = after
                continue
        if is_assumed:
            surer[confidence] = "confirmed"
    if row.get("confidence") == "confirmed" and old.get("confidence") != "confirmed":
        surer["confidence"] = "confirmed"
    found: list[tuple[CatalogChange, Row | None]] = []
    for_certain = {"existence", "status"} & moved.keys()
    if moved or surer:
        only_surer = not (moved.keys() - for_certain)
        kind: Kind = "confirmed" if only_surer else "changed"
        changed = {**moved, **surer}
        before = {column: old[column] for column in changed}
        found.append((_change(table, key, kind, before, changed, name), {**key, **changed}))
    if denied:
        before = {column: old[column] for column in denied}
        found.append((_change(table, key, "conflict", before, denied, name), None))
    return found


def _change(
    table: str, key: Row, kind: Kind, before: Row | None, after: Row | None, name: str
) -> CatalogChange:
    sentence = say_change(table, key, kind, before, after, name)
    return CatalogChange(
        table=table, key=key, kind=kind, before=before, after=after, sentence=sentence
    )


def _same(before: object, after: object) -> bool:
    """Lists are compared as sets: their order means nothing upstream."""
    if isinstance(before, list) and isinstance(after, list):
        return {str(item) for item in before} == {str(item) for item in after}
    return before == after


def _places(before: object, more: object) -> list[str]:
    both = {str(p) for places in (before, more) if isinstance(places, list) for p in places}
    return [place for place in _PLACES if place in both]


def _rank(table: str, row: Row) -> tuple[int, tuple[tuple[Version, str], ...]]:
    """Tables in the catalog's order; rows by their key, versions as versions."""
    tables = list(IDENTITIES)
    words = [str(row.get(name)) for name in IDENTITIES[table].keys]
    return tables.index(table), tuple((as_version(w) or Version("0"), w) for w in words)
