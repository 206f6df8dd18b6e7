"""What the catalog already knows, as columns in the spelling of the data files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from packaging.version import InvalidVersion, Version

from provision.catalog.catalog import Catalog
from provision.catalog.overlay import IDENTITIES
from provision.catalog.refresh.model import Row

# Tables that a refresh may add to, and the catalog's attribute for each.
_ATTRIBUTES = {
    "releases": "torch_releases",
    "builds": "torch",
    "toolkits": "toolkits",
    "branches": "branches",
    "forward_compat": "compat_packages",
    "tensorflow_releases": "tensorflow_releases",
    "tensorflow_wheels": "tensorflow_wheels",
    "jax_releases": "jax_releases",
    "jax_plugins": "jax_plugins",
    "cudnn": "cudnn",
    "nccl": "nccl",
    "images": "images",
    "python_images": "python_images",
}
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
        """The oldest version that a table goes back to: older versions are not reported as
        missing.
        """
        versions = [v for row in self.rows(table) if (v := as_version(row["version"])) is not None]
        return min(versions, default=Version("0"))

    def before(self, table: str, version: Version, cuda_major: int) -> Row | None:
        """The row of the newest release of one CUDA major that is not newer than this version."""
        found = {
            v: row
            for row in self.rows(table)
            if row["cuda_major"] == cuda_major
            and (v := as_version(row["version"])) is not None
            and v <= version
        }
        return found[max(found)] if found else None

    @cached_property
    def oldest_cuda(self) -> Version:
        """The oldest CUDA X.Y of any PyTorch build."""
        cudas = [Version(row.cuda) for row in self.catalog.torch if row.cuda]
        return min(cudas, default=Version("0"))

    @cached_property
    def cuda_majors(self) -> tuple[int, ...]:
        """Every CUDA major that the catalog knows, oldest first."""
        return tuple(sorted(row.major for row in self.catalog.families))

    def _table(self, table: str) -> dict[str, Row]:
        if table not in self._tables:
            rows = (_columns(row) for row in getattr(self.catalog, _ATTRIBUTES[table]))
            self._tables[table] = {ident(table, row): row for row in rows}
        return self._tables[table]


def as_version(value: object) -> Version | None:
    """None: not a valid version."""
    try:
        return Version(str(value))
    except InvalidVersion:
        return None


def _columns(row: Any) -> Mapping[str, object]:  # noqa: ANN401  any row
    return {name: _spelled(name, value) for name, value in row._asdict().items()}


def _spelled(column: str, value: object) -> object:
    """(8, 6) -> "sm_86" if the data files write it so; tuples -> lists."""
    spelling = _SPELLINGS.get(column)
    if spelling is None or not isinstance(value, tuple):
        return list(value) if isinstance(value, tuple) else value
    if value and isinstance(value[0], tuple):
        return [spelling.format(*item) for item in value]
    return spelling.format(*value) if value else []
