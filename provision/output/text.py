"""Text for a terminal: as wide as it is, a label, aligned columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from provision.output.invocation import as_called
from provision.output.style import width

LABEL = 12
# A word of a shell, whose quotes may hold spaces.
_WORD = re.compile(r"""(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\S)+""", re.DOTALL)


def command(text: str) -> list[str]:
    """A command that can be pasted, over as many lines as it needs."""
    first, *others = _WORD.findall(as_called(text))
    lines = [f"  {first}"]
    for word in others:
        if len(lines[-1]) + len(word) + 1 <= width() - 2:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def answer(word: str, text: str) -> list[str]:
    """Lines of a sentence that answers a question: "Yes", "No", "Perhaps" or "Not proven"."""
    return filled(f"{word}: {text}", rest=" " * 5)


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
    return filled(text, columns=width() - LABEL) or [""]


def filled(text: str, first: str = "", rest: str = "", *, columns: int | None = None) -> list[str]:
    """The lines of a text, with its commands as they are typed; what cannot be broken (a URL)
    stays whole.
    """
    return textwrap.wrap(
        as_called(text),
        columns or width(),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


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
