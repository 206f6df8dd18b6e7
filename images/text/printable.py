"""Makes untrusted text safe for a terminal, a log and a report.

Names in archives, answers of registries, lines of logs and user input may contain characters that
move the cursor, end a line or change the direction of writing.
"""

from __future__ import annotations

import json


def printable(text: str, *, limit: int | None = None, instead: str = "?", keep: str = "") -> str:
    """Replace unprintable characters: control characters, direction marks, lone surrogates.

    `keep` lists characters to leave as they are ("\\n" for text of several lines). Text longer than
    `limit` is cut and ends in "...".
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c in keep else instead for c in text)
    return text if limit is None else shortened(text, limit)


def printable_lines(text: str) -> str:
    """The same for text of several lines; keeps tabs and no-break spaces, too."""
    return "\n".join(printable(line, keep="\t\xa0") for line in text.split("\n"))


def printable_json(text: str) -> str:
    """JSON text with unprintable characters written as escapes; its values stay the same."""
    if text.isprintable():
        return text
    return "\n".join(
        line if line.isprintable() else "".join(map(_escaped, line)) for line in text.split("\n")
    )


def _escaped(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def shortened(text: str, limit: int) -> str:
    """At most so many characters, cut between two words if one ends near the limit."""
    if len(text) <= limit:
        return text
    blank = text.rfind(" ", limit * 3 // 4, limit - 2)
    return f"{text[: blank if blank > 0 else limit - 3]}..."
