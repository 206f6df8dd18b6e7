"""How results look on a terminal: as wide as it is, with colour in the words that lines begin with.

Everywhere else (a file, a pipe, a test) they are 80 columns wide and plain.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

WIDTH = 80
_NARROWEST, _WIDEST = 40, 120  # lines that are longer are hard to read
_GREEN, _YELLOW, _RED, _BOLD = "32;1", "33", "31;1", "1"
# The paragraph of an answer has its colour as a whole; the labels of the lines below have theirs.
_ANSWERS = {"Yes": _GREEN, "Perhaps": _YELLOW, "Not proven": _YELLOW, "No": _RED}
_LABELS = {
    "PASS": "32",
    **dict.fromkeys(("FAIL", "ERROR", "fail", "error"), _RED),
    **dict.fromkeys(("SKIP", "warning", "degraded", "trap"), _YELLOW),
    **dict.fromkeys(("fix", "cause"), _BOLD),
}
_ANSWER = re.compile(rf"^({'|'.join(_ANSWERS)}):.*(?:\n {{5}}\S.*)*", re.MULTILINE)
_LABEL = re.compile(rf"^(?:{'|'.join(_LABELS)})(?=  |$)", re.MULTILINE)


class _Look:
    """What `begin` found out."""

    width = WIDTH
    colour = False


def begin() -> None:
    """Look at standard output, for the results of this process."""
    _Look.width = columns(sys.stdout, os.environ)
    _Look.colour = is_coloured(sys.stdout, os.environ)


def width() -> int:
    """The columns of a line of a result."""
    return _Look.width


def columns(stream: TextIO, env: Mapping[str, str]) -> int:
    """The columns for text on a stream: those of its terminal, within limits; else 80."""
    if not stream.isatty():
        return WIDTH
    found = 0
    with suppress(KeyError, ValueError):
        found = int(env["COLUMNS"])
    if found <= 0:
        with suppress(OSError, ValueError):
            found = os.get_terminal_size(stream.fileno()).columns
    return min(max(found, _NARROWEST), _WIDEST) if found > 0 else WIDTH


def is_coloured(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Whether a stream is a terminal with colours, and they are wanted (no-color.org)."""
    return stream.isatty() and env.get("TERM") != "dumb" and not env.get("NO_COLOR")


def painted(text: str) -> str:
    """A result as standard output shows it: in colour where that is a terminal."""
    return coloured(text) if _Look.colour else text


def coloured(text: str) -> str:
    """A text with the colours of its answer and of its labels."""

    def answer(found: re.Match[str]) -> str:
        return "\n".join(paint(_ANSWERS[found[1]], line) for line in found[0].split("\n"))

    text = _ANSWER.sub(answer, text)
    return _LABEL.sub(lambda found: paint(_LABELS[found[0]], found[0]), text)


def paint(code: str, text: str) -> str:
    """A text in one colour."""
    return f"\x1b[{code}m{text}\x1b[0m"
