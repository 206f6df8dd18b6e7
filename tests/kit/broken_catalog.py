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


def again(table: str) -> Break:
    """The last row, once more."""
    return lambda raw: raw[table].append(raw[table][-1])


def swap(table: str) -> Break:
    """The second and third row change places."""

    def change(raw: Raw) -> None:
        raw[table][1], raw[table][2] = raw[table][2], raw[table][1]

    return change
