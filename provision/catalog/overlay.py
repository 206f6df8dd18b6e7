"""What a refresh or a measurement learned, kept in one file beside the shipped tables.

The file holds rows of the shipped tables, whole or some of their columns, each with the date it was
read (`as_of`) and, if this machine found it out itself, `measured`. `merged` lays them over the
shipped rows. A reader sees the whole file or none: it is written to a temporary file and renamed,
and a checksum of its content detects truncation and edits.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from images.text.printable import printable
from provision.catalog.canonical import dump
from provision.catalog.data_files import overlay_file
from provision.errors import CatalogError, Exit
from provision.model import grammar

SCHEMA = 1
SIZE_LIMIT_BYTES = 64 << 20

REFRESH = "provision catalog refresh"
VERSIONS = frozenset(
    {
        *("cuda", "full", "max_cuda", "min_cuda", "provides_cuda", "ptx_only_cuda", "in"),
        *("driver", "driver_from", "first_version", "latest_seen", "min_driver"),
        *("min_driver_windows", "gcc_max", "glibc", "python", "release", "version"),
        *("torchaudio", "torchvision"),
    }
)
"""The columns, of any table, that have a version."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_PIECE = re.compile(r"(\d+)|(\D+)")
_OWN_KEYS = frozenset({"as_of", "measured"})

Row = Mapping[str, object]


class OverlayError(CatalogError):
    """The user's copy of catalog rows cannot be read, used or written."""

    code = "bad-catalog-copy"
    exit_code = Exit.HOST_UNFIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Rows by table, in the spelling of the data files; their `source` keys are in `sources`.

    `date` is the day it was written, as "2026-11-21"; a row's own day is its `as_of`.
    """

    date: str
    sources: Mapping[str, str]
    tables: Mapping[str, tuple[Row, ...]]


class Identity(NamedTuple):
    """The columns that identify a row of a table, and those that it is ordered by.

    An empty `order` means that the table is ordered by preference: new rows go last.
    """

    keys: tuple[str, ...]
    order: tuple[str, ...]


IDENTITIES: dict[str, Identity] = {
    "families": Identity(("major",), ("major",)),
    "toolkits": Identity(("full",), ("full",)),
    "dropped": Identity(("in", "generation"), ("in",)),
    "branches": Identity(("branch",), ("branch",)),
    "forward_compat": Identity(("package",), ("provides_cuda",)),
    "highest_majors": Identity(("branch",), ("branch",)),
    "kernel_modules": Identity(("from", "gpus"), ("from",)),
    "gpus": Identity(("name",), ("compute_capability",)),
    "binary_notes": Identity(("compute_capability",), ("compute_capability",)),
    "other_vendors": Identity(("vendor",), ()),
    "releases": Identity(("version",), ("version",)),
    "builds": Identity(("version", "tag", "arch"), ("version", "cuda")),
    "debian_suites": Identity(("suite",), ()),
    "ubuntu_releases": Identity(("release",), ()),
    "pythons": Identity(("python",), ("python",)),
    "python_images": Identity(("python", "suite"), ()),
    "compiler_wheels": Identity(("cuda",), ("cuda",)),
    "tensorflow_releases": Identity(("version",), ("version",)),
    "tensorflow_wheels": Identity(("version", "arch"), ("version",)),
    "tensorflow_gpu": Identity(("version",), ("version",)),
    "jax_releases": Identity(("version",), ("version",)),
    "jax_plugins": Identity(("version", "cuda_major"), ("version", "cuda_major")),
    "cudnn": Identity(("version", "cuda_major"), ("cuda_major", "version")),
    "nccl": Identity(("version", "cuda_major"), ("cuda_major", "version")),
    "images": Identity(("tag",), ("tag",)),
    "start_rules": Identity(("cuda", "os"), ("cuda",)),
}
"""Every table that an overlay may have rows of."""


def overlay_path(env: Mapping[str, str]) -> Path:
    """The user's file: $XDG_DATA_HOME/gpu-provision/catalog.json, or below ~/.local/share."""
    return Path(overlay_file(env))


def read_overlay(path: Path) -> Overlay | None:
    """The file's content; None if there is no file.

    OverlayError: truncated, edited, malformed or unreadable.
    """
    try:
        found = path.stat()
        if not S_ISREG(found.st_mode):
            raise _broken(path, "it is not a regular file")
        if found.st_size > SIZE_LIMIT_BYTES:
            raise _broken(path, f"it is larger than {SIZE_LIMIT_BYTES >> 20} MiB")
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _broken(path, _why(error)) from error
    try:
        raw = json.loads(data)
        said = raw.pop("sha256", None) if isinstance(raw, dict) else None
        found_sum = _checksum(raw)
    except (ValueError, RecursionError) as error:
        raise _broken(path, "it is not complete JSON") from error
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise _broken(path, f"it is not of schema {SCHEMA}, the only one that this program reads")
    if said != found_sum:
        raise _broken(path, "its checksum is not that of its content")
    if wrong := next(_wrong_shapes(raw), None):
        raise _broken(path, wrong)
    tables = {name: tuple(rows) for name, rows in raw["tables"].items()}
    return Overlay(date=raw["date"], sources=raw["sources"], tables=tables)


def write_overlay(path: Path, overlay: Overlay) -> None:
    """Write the whole file, or leave the old one; creates the directories.

    OverlayError: the content is malformed, or the file cannot be written.
    """
    tables = {name: [dict(row) for row in rows] for name, rows in overlay.tables.items()}
    raw: dict[str, object] = {
        "schema": SCHEMA,
        "date": overlay.date,
        "sources": dict(overlay.sources),
        "tables": tables,
    }
    if wrong := next(_wrong_shapes(raw), None):
        raise _unwritable(path, wrong)
    raw["sha256"] = _checksum(raw)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, dump(raw))
    except (OSError, ValueError) as error:
        raise _unwritable(path, _why(error)) from error


def merged(
    table: str, shipped: Sequence[Row], overlaid: Sequence[Row], shipped_date: str
) -> list[Row]:
    """The rows of one table with the overlay's merged over them.

    Rows are the same fact if the key columns agree. A column of the overlay's row replaces the
    shipped one, unless the shipped table is newer than the row and the row was not measured. A row
    that is partly replaced names both sources. Rows that the shipped table lacks are inserted by
    its order.
    """
    rows = list(shipped)
    keys, order = IDENTITIES[table]
    places = {_key(row, keys): place for place, row in enumerate(rows)}
    fresh: dict[str, Row] = {}
    for row in overlaid:
        key = _key(row, keys)
        columns = {name: value for name, value in row.items() if name not in _OWN_KEYS}
        if key not in places:
            fresh[key] = _replaced(fresh[key], columns) if key in fresh else columns
        elif row.get("measured") is True or str(row.get("as_of")) >= shipped_date:
            rows[places[key]] = _replaced(rows[places[key]], columns)
    for row in fresh.values():
        rows.insert(_position(rows, row, order), row)
    return rows


def extended(
    previous: Overlay | None,
    date: str,
    tables: Mapping[str, Iterable[Row]],
    sources: Mapping[str, str],
) -> Overlay:
    """The copy with more rows, written on this day; a column of a row replaces that of the row of
    the same fact. What was measured is a row of its own, behind the others. Sources that no row
    names are left out.
    """
    found: dict[str, dict[tuple[bool, str], Row]] = {}
    for rows_of in (previous.tables if previous else {}, tables):
        for table, rows in rows_of.items():
            kept = found.setdefault(table, {})
            for row in rows:
                fact = (row.get("measured") is True, _key(row, IDENTITIES[table].keys))
                kept[fact] = _replaced(kept.get(fact, {}), row)
    texts = {**(previous.sources if previous else {}), **sources}
    used = {key for kept in found.values() for row in kept.values() for key in named_sources(row)}
    return Overlay(
        date=date,
        sources={key: text for key, text in texts.items() if key in used},
        tables={
            table: tuple(kept[fact] for fact in sorted(kept, key=lambda fact: fact[0]))
            for table, kept in found.items()
        },
    )


def named_sources(row: Row) -> list[str]:
    """The keys of the sources that a row names."""
    return [str(key) for name in _sources(row) for key in _listed(row[name])]


def with_source_keys(row: Row, form: str) -> Row:
    """The row with each of its source keys replaced."""
    said = {name: [form.format(key) for key in _listed(row[name])] for name in _sources(row)}
    return {**row, **said}


def _replaced(old: Row, columns: Row) -> Row:
    new = {**old, **columns}
    if old.keys() - columns.keys() - _sources(old) and "source" in columns and "source" in old:
        both = [*_listed(columns["source"]), *_listed(old["source"])]
        new["source"] = list(dict.fromkeys(map(str, both)))
    return new


def _sources(row: Row) -> set[str]:
    return {name for name in row if name == "source" or name.endswith("_source")}


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _key(row: Row, keys: Iterable[str]) -> str:
    """A key column may hold a list, which cannot be hashed."""
    return json.dumps([row.get(key) for key in keys], sort_keys=True)


def _position(rows: Sequence[Row], row: Row, order: Sequence[str]) -> int:
    """Behind the last row that does not come after it."""
    if not order:
        return len(rows)
    rank = _rank(row, order)
    for place in range(len(rows), 0, -1):
        if _rank(rows[place - 1], order) <= rank:
            return place
    return 0


def _rank(row: Row, order: Sequence[str]) -> tuple[tuple[int, Any], ...]:
    """Versions as versions, so that 2.10 follows 2.9 and a candidate comes before its release."""
    ranks: list[tuple[int, Any]] = []
    for column in order:
        value = row.get(column)
        try:
            ranks.append((0, "") if value is None else (1, Version(str(value))))
        except InvalidVersion:
            pieces = _PIECE.findall(str(value))
            ranks.append((2, [(0, int(n), "") if n else (1, 0, word) for n, word in pieces]))
    return tuple(ranks)


def _wrong_shapes(raw: Mapping[str, object]) -> Iterator[str]:
    """What is malformed, the first problem first; the columns of rows are checked when they are
    read.
    """
    date, sources, tables = raw.get("date"), raw.get("sources"), raw.get("tables")
    if unknown := raw.keys() - {"schema", "date", "sources", "tables"}:
        yield f"unknown key {printable(', '.join(sorted(unknown)), limit=200)}"
    if not _is_date(date):
        yield "date: expected a day such as 2026-11-21"
    if not isinstance(sources, dict) or not all(_is_text(text) for text in sources.values()):
        yield "sources: expected a table of source texts"
        return
    if not isinstance(tables, dict):
        yield "tables: expected lists of rows by table"
        return
    for name, rows in tables.items():
        if name not in IDENTITIES:
            yield f"tables: {name!r:.80} is no table that this program knows"
        elif not isinstance(rows, list):
            yield f"{name}: expected a list of rows"
        else:
            for position, row in enumerate(rows):
                for what in _wrong_row(row, IDENTITIES[name].keys, sources):
                    yield f"{name}[{position}]{what}"


def _wrong_row(row: object, keys: Sequence[str], sources: Collection[str]) -> Iterator[str]:
    if not isinstance(row, dict):
        yield ": expected an object"
        return
    if missing := [key for key in (*keys, "as_of", "source") if key not in row]:
        yield f": missing {', '.join(missing)}"
        return
    if not _is_date(row["as_of"]):
        yield ".as_of: expected a day such as 2026-11-21"
    if not isinstance(row.get("measured", False), bool):
        yield ".measured: expected true or false"
    for column, value in row.items():
        kind = grammar.VERSION if column in VERSIONS else grammar.TEXT
        if not all(kind.fits(text) for text in _texts(value)):
            yield f".{printable(column, limit=40)}: expected {kind.wanted}"
    for column in _sources(row):
        named = _listed(row[column])
        if not named or not all(isinstance(key, str) and key in sources for key in named):
            yield f".{column}: expected keys of the file's sources, found {row[column]!r:.80}"


def _is_date(value: object) -> bool:
    return isinstance(value, str) and _DATE.fullmatch(value) is not None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and grammar.TEXT.fits(value)


def _texts(value: object) -> Iterator[str]:
    """Every text in a column, the keys of objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in [*value, *(value.values() if isinstance(value, dict) else ())]:
            yield from _texts(item)


def _checksum(raw: object) -> str:
    canonical = json.dumps(raw, sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode("ascii")).hexdigest()


def _replace(path: Path, text: str) -> None:
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".catalog-")
    temporary = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _broken(path: Path, what: str) -> OverlayError:
    return OverlayError(
        f"{_shown(path)}: {what}.",
        fix=f"Run {REFRESH} to write it again, or delete it to use the shipped tables.",
    )


def unfit(message: str) -> OverlayError:
    """The error for a table that the overlay's rows made unreadable."""
    return OverlayError(
        f"{message} (with the rows of your catalog copy).",
        fix=f"Run {REFRESH} to write the copy again, or delete it to use the shipped tables.",
    )


def _unwritable(path: Path, what: str) -> OverlayError:
    return OverlayError(
        f"{_shown(path)}: cannot be written: {what}.",
        fix="Name a directory that you may write to and that has room: XDG_DATA_HOME=DIR",
    )


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _shown(path: Path) -> str:
    text = printable(str(path))
    return text if len(text) <= 200 else f"...{text[-197:]}"
