"""The canonical form of the tables: one row per line, so that diffs are readable."""

from __future__ import annotations

import json
from collections.abc import Mapping


def dump(raw: Mapping[str, object]) -> str:
    """The text of one data file. Reading it and dumping it again gives the same bytes."""
    entries = [f"  {_inline(key)}: {_block(value)}" for key, value in raw.items()]
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _block(value: object) -> str:
    """A table: each row or entry on a separate line; anything else stays on one line."""
    if isinstance(value, list):
        lines = [f"    {_inline(row)}" for row in value]
        return _wrap("[", lines, "]")
    if isinstance(value, dict):
        lines = [f"    {_inline(key)}: {_inline(entry)}" for key, entry in value.items()]
        return _wrap("{", lines, "}")
    return _inline(value)


def _wrap(opening: str, lines: list[str], closing: str) -> str:
    return f"{opening}\n" + ",\n".join(lines) + f"\n  {closing}" if lines else opening + closing


def _inline(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
