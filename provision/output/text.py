"""Text for a terminal: at most 80 columns, a label, aligned columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 80
LABEL = 12


def command(text: str) -> list[str]:
    """A command that can be pasted, over as many lines as it needs."""
    words = textwrap.wrap(
        text,
        WIDTH - 2,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*(f"{line} \\" for line in words[:-1]), words[-1]]


def listed(label: str, items: Sequence[str]) -> list[str]:
    """Lines of several values under one label."""
    lines: list[str] = []
    for position, item in enumerate(items):
        lines += row(label if position == 0 else "", item)
    return lines


def row(label: str, text: object) -> list[str]:
    """Lines of one value: the label stands before the first."""
    paragraphs = str(text).splitlines() or [""]
    wrapped = [w for p in paragraphs for w in wrap(p.strip())]
    return [
        f"{label if i == 0 else '':<{LABEL}}{words}".rstrip() for i, words in enumerate(wrapped)
    ]


def wrap(text: str) -> list[str]:
    """The lines of a value, as wide as the label leaves room; at least one."""
    return textwrap.wrap(text, WIDTH - LABEL, break_long_words=False, break_on_hyphens=False) or [
        ""
    ]


def table(rows: Iterable[tuple[str, ...]], *, gap: int = 2) -> list[str]:
    """Left-aligned columns, as wide as their widest cell."""
    table = list(rows)
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return [
        "  "
        + (" " * gap)
        .join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        .rstrip()
        for row in table
    ]
