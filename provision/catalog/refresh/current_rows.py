"""What the catalog already knows, as columns in the spelling of the data files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from packaging.version import InvalidVersion, Version

from provision.catalog.catalog import Catalog
from provision.catalog.overlay import IDENTITIES

Row: TypeAlias = Mapping[str, object]
"""A row, or some columns of one, in the spelling of the data files."""

# The catalog's attribute of a table, where it has another name.
_ATTRIBUTES = {"releases": "torch_releases", "builds": "torch", "forward_compat": "compat_packages"}
# How the data files spell a compute capability, by column.
_SPELLINGS = {
    "sm": "sm_{}{}",
    "ptx": "compute_{}{}",
    "capabilities": "{}.{}",
    "sm_min": "{}.{}",
    "sm_targets": "sm_{}{}",
    "dropped_below": "{}.{}",
}


def key_of(table: str, row: Row) -> dict[str, object]:
    """The columns that identify the fact of a row."""
    return {name: row[name] for name in IDENTITIES[table].keys}


def ident(table: str, row: Row) -> str:
    """The same as one string, to look a row up with."""
    return json.dumps([row.get(name) for name in IDENTITIES[table].keys])


class CurrentRows:
    """The rows of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._tables: dict[str, dict[str, Row]] = {}

    def rows(self, table: str) -> Iterable[Row]:
        """Every row of a table, in its order."""
        return self._table(table).values()

    def row(self, table: str, key: Row) -> Row | None:
        """The row of one fact."""
        return self._table(table).get(ident(table, key))

    def oldest(self, table: str) -> Version:
        """The oldest version that a table goes back to: older versions are not read."""
        versions = [v for row in self.rows(table) if (v := as_version(row["version"])) is not None]
        return min(versions, default=Version("0"))

    def carried_over(
        self, table: str, version: Version, cuda_major: int, columns: Sequence[str]
    ) -> dict[str, object]:
        """Columns that cannot be read for a new release, from the one before it of the same CUDA
        major, with the text of where they come from; {}: there is none before it.
        """
        found = {
            v: row
            for row in self.rows(table)
            if row["cuda_major"] == cuda_major
            and (v := as_version(row["version"])) is not None
            and v <= version
        }
        if not found:
            return {}
        row = found[max(found)]
        carried = {column: row[column] for column in columns}
        for source in {"driver_source", "sm_source"} & row.keys():
            carried[source] = f"carried over from {row['version']}: {row[source]}"
        if "sm_confidence" in row:
            carried["sm_confidence"] = "assumed"
        return carried

    @property
    def cuda_majors(self) -> tuple[int, ...]:
        """Every CUDA major that the catalog knows, oldest first, and the next one."""
        known = sorted(row.major for row in self.catalog.families)
        return (*known, max(known, default=0) + 1)

    def _table(self, table: str) -> dict[str, Row]:
        if table not in self._tables:
            rows = map(_columns, getattr(self.catalog, _ATTRIBUTES.get(table, table)))
            self._tables[table] = {ident(table, row): row for row in rows}
        return self._tables[table]


def as_version(value: object) -> Version | None:
    """None: not a valid version."""
    try:
        return Version(str(value))
    except InvalidVersion:
        return None


def _columns(row: Any) -> Row:  # noqa: ANN401  any row
    return {name: _spelled(name, value) for name, value in row._asdict().items()}


def _spelled(column: str, value: object) -> object:
    """(8, 6) -> "sm_86" if the data files write it so; tuples -> lists."""
    spelling = _SPELLINGS.get(column)
    if spelling is None or not isinstance(value, tuple):
        return list(value) if isinstance(value, tuple) else value
    if value and isinstance(value[0], tuple):
        return [spelling.format(*item) for item in value]
    return spelling.format(*value) if value else []
