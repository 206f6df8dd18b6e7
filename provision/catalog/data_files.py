"""Data files -> rows. An error names the file, row and key of the first wrong value.

Only the shape of a value is checked here, because this must be fast: every command starts with it.
`tools.checks`, which the tests run, checks how rows fit together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from provision.catalog.tables import MAY_BE_ABSENT, SOURCES, TABLES, TableKeys
from provision.catalog.values import Reader, WrongError, text
from provision.errors import CatalogError

if TYPE_CHECKING:
    from provision.catalog.overlay import Overlay

Row = TypeVar("Row")

DATA = os.path.join(os.path.dirname(__file__), "data")  # noqa: PTH118, PTH120  slow import
"""The directory of the tables."""


class DataFiles:
    """The data files of one directory, each read on first use."""

    def __init__(self, directory: str, overlay: Overlay | None = None) -> None:
        self._directory = directory
        self._overlay = overlay
        self._read: dict[str, DataFile] = {}

    def __getitem__(self, name: str) -> DataFile:
        if name not in self._read:
            self._read[name] = DataFile(self._directory, name, self._overlay)
        return self._read[name]


class DataFile:
    """One data file, read row by row, with the rows of an overlay merged over its own."""

    def __init__(self, directory: str, name: str, overlay: Overlay | None = None) -> None:
        self.name = name
        self.raw = read_raw(directory, name)
        sources = self.raw.get("sources")
        if not isinstance(sources, dict):
            raise bad(name, "sources", "expected a table of source texts")
        self.sources: dict[str, object] = sources
        self.overlay = overlay

    def text(self, key: str) -> str:
        """A text at the head of the file."""
        try:
            return text(self.raw.get(key))
        except WrongError as wrong:
            raise bad(self.name, key, str(wrong)) from None

    def rows(self, table: str, make: Callable[..., Row]) -> tuple[Row, ...]:
        """The rows of one table; `make` creates each from its values."""
        entries = self.raw.get(table, [] if table in MAY_BE_ABSENT else None)
        if not isinstance(entries, list):
            raise bad(self.name, table, "expected a list of rows")
        if self.overlay is None or table not in self.overlay.tables:
            return tuple(self._rows(table, entries, make))
        try:
            return tuple(self._rows(table, self._with_overlay(table, entries), make))
        except CatalogError as error:
            from provision.catalog.overlay import unfit

            raise unfit(error.message) from error

    def _with_overlay(self, table: str, entries: list[object]) -> list[object]:
        """A source key may occur in both the file and the overlay: the overlay's keys get a
        prefix.
        """
        from provision.catalog.overlay import merged, with_source_keys

        shipped = [entry for entry in entries if isinstance(entry, dict)]
        if self.overlay is None or len(shipped) < len(entries):
            return entries
        self.sources |= {f"overlay {key}": text for key, text in self.overlay.sources.items()}
        overlaid = [with_source_keys(row, "overlay {}") for row in self.overlay.tables[table]]
        return list(merged(table, shipped, overlaid, self.text("date")))

    def _rows(self, table: str, entries: list[object], make: Callable[..., Row]) -> Iterator[Row]:
        spec = TABLES[table]
        readers = {**spec.needed, **spec.optional}
        for position, entry in enumerate(entries):
            key = ""
            try:
                values: dict[str, object] = {}
                for key, value in _keys_held(entry, spec, readers).items():
                    values[key] = self._resolve(value) if key in SOURCES else readers[key](value)
                key = ""
                yield make(**values)
            except WrongError as wrong:
                where = f"{table}[{position}]" + (f".{key}" if key else "")
                raise bad(self.name, where, str(wrong)) from None

    def _resolve(self, value: object) -> str:
        """One key of the file's sources, or several -> their texts."""
        keys = value if type(value) is list else [value]
        texts: list[str] = []
        for key in keys:
            text = self.sources.get(key) if type(key) is str else None
            if type(text) is not str or not text:
                raise WrongError(f"expected keys of the file's sources, found {value!r}")
            texts.append(text)
        if not texts:
            raise WrongError("expected at least one key of the file's sources")
        return "; ".join(texts)


def read_raw(directory: str, name: str) -> dict[str, object]:
    """A data file as JSON gives it."""
    path = os.path.join(directory, name)  # noqa: PTH118  pathlib costs more than all tables
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            raw = json.load(file)
    except (OSError, ValueError) as error:
        raise bad(name, "", f"cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise bad(name, "", "expected an object")
    return raw


def overlay_file(env: Mapping[str, str]) -> str:
    """The path of the user's own copy; a relative XDG_DATA_HOME must be ignored.

    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    base = env.get("XDG_DATA_HOME") or ""
    if not base.startswith(os.sep):
        base = os.path.join(env.get("HOME") or os.sep, ".local", "share")  # noqa: PTH118
    return os.path.join(base, "gpu-provision", "catalog.json")  # noqa: PTH118


def bad(name: str, where: str, what: str) -> CatalogError:
    """The error for one place in one file."""
    return CatalogError(
        f"{name}{where and ' '}{where}: {what}",
        fix="The tables came with gpu-provision and are broken: reinstall it, or report this.",
    )


def _keys_held(entry: object, spec: TableKeys, readers: Mapping[str, Reader]) -> dict[str, object]:
    if not isinstance(entry, dict):
        raise WrongError("expected an object")
    if missing := spec.needed.keys() - entry.keys():
        raise WrongError(f"missing {', '.join(sorted(missing))}")
    if unknown := entry.keys() - readers.keys():
        raise WrongError(f"unknown key {', '.join(sorted(unknown))}")
    return entry
