"""Ways to break a table of the catalog; the fixture `broken` makes the copy to break."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Raw = dict[str, Any]
Break = Callable[[Raw], None]


def put(table: str, where: Mapping[str, object], **changes: object) -> Break:
    """Changes one row, found by some of its values."""

    def change(raw: Raw) -> None:
        row = next(r for r in raw[table] if all(r[key] == value for key, value in where.items()))
        row.update(changes)

    return change
