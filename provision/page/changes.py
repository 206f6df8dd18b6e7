"""What changed in the catalog since an earlier page, which has every row of its own catalog.

An earlier page may come from anywhere, so it is read as untrusted input: its size is limited, each
value is checked, and nothing of it is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from images.text.printable import printable
from provision.errors import BadInputError

Json: TypeAlias = dict[str, Any]
TABLES = ("cards", "branches", "builds")

_MOST_BYTES = 100 << 20
_MOST_ROWS = 100_000
_LONGEST = 300  # characters of a value that are shown
_NOT_COMPARED = frozenset({"source"})  # where a fact is from is no fact
_DATA = re.compile(r'<script type="application/json" id="data">([^<]*)</script>')


class FactTable(NamedTuple):
    """The rows of one table by their names in addresses; each row has its values by column."""

    date: str
    rows: Mapping[str, Mapping[str, str | None]]


class EarlierPage(NamedTuple):
    """The release of the tool that made it, and its tables."""

    tool: str
    tables: Mapping[str, FactTable]


def read_page(path: Path) -> EarlierPage:
    """The facts of a page that `catalog page` wrote.

    Raises BadInputError where the file cannot be read, is no such page, or is damaged.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise _refusal(path, f"has more than {_MOST_BYTES >> 20} MiB")
    found = _DATA.search(content.decode("utf-8", "replace"))
    if found is None:
        raise _refusal(path, "is not a page of provision catalog page")
    try:
        return _earlier(json.loads(found[1]))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise _refusal(path, "is damaged: its tables cannot be read") from error


def changes(earlier: EarlierPage, facts: Mapping[str, Any], values: Sequence[object]) -> Json:
    """What the page shows: for each table the rows that were added, removed and changed, in the
    order of the newer table. `facts` and `values` are those of the page that is being made.
    """
    newer = {name: _table(facts[name], values) for name in TABLES}
    return {
        "tool": earlier.tool,
        "tables": {
            name: {"date": earlier.tables[name].date, **_compare(earlier.tables[name], newer[name])}
            for name in TABLES
        },
    }


def _compare(old: FactTable, new: FactTable) -> Json:
    changed = []
    for row in new.rows.keys() & old.rows.keys():
        before, after = old.rows[row], new.rows[row]
        cells = [
            [column, before[column], after[column]]
            for column in after
            if column in before and before[column] != after[column]
        ]
        if cells:
            changed.append([row, _name(after), cells])
    order = {row: number for number, row in enumerate(new.rows)}
    return {
        "added": [[row, _name(cells)] for row, cells in new.rows.items() if row not in old.rows],
        "removed": [_name(cells) for row, cells in old.rows.items() if row not in new.rows],
        "changed": sorted(changed, key=lambda one: order[one[0]]),
    }


def _name(cells: Mapping[str, str | None]) -> str:
    return next(iter(cells.values())) or ""


def _earlier(data: Any) -> EarlierPage:  # noqa: ANN401  JSON from anywhere
    facts, nodes = data["facts"], data["nodes"]
    if not isinstance(nodes, list) or not isinstance(facts, dict):
        raise TypeError
    tables = {name: _table(facts[name], nodes) for name in TABLES}
    return EarlierPage(tool=_text(data["tool"]), tables=tables)


def _table(table: Mapping[str, Any], nodes: Sequence[object]) -> FactTable:
    """A row is a list of nodes: its shape, the name in its address, a value for each column."""
    columns = [_text(one) for one in table["columns"]]
    if len(table["rows"]) > _MOST_ROWS or not columns:
        raise ValueError
    rows: dict[str, Mapping[str, str | None]] = {}
    for number in table["rows"]:
        row = nodes[_place(number)]
        if not isinstance(row, (list, tuple)) or len(row) != len(columns) + 2 or row[0] != 0:
            raise ValueError
        name, *values = (_shown(nodes[_place(child)]) for child in row[1:])
        cells = zip(columns, values, strict=True)
        rows[name or ""] = {key: value for key, value in cells if key not in _NOT_COMPARED}
    return FactTable(_text(table["date"]), rows)


def _place(number: object) -> int:
    if not isinstance(number, int) or number < 0:
        raise ValueError
    return number


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return printable(value, limit=_LONGEST)


def _shown(value: object) -> str | None:
    """A value as the tables show it."""
    if value is None:
        return None
    if isinstance(value, (str, int, float)):
        return _text(str(value))
    raise TypeError


def _refusal(path: Path, why: str) -> BadInputError:
    return BadInputError(
        f"--since: {path} {why}.", fix="Name an index.html that provision catalog page wrote."
    )
