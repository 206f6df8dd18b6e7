"""The shell's grammar, as far as texts are read here: words, operators, redirections.

Texts are read, never run, and never rewritten by guess: what is not understood (back quotes, a
here-document inside quotes) stays as it is written. The grammar is that of POSIX:
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

OPERATORS = frozenset(";&|()\n")

_OPERATOR = re.compile(r"&&|\|\||;;|\|&|[;&|()\n]")
# With what it names where that is no file: 2>&1, <&-.
_REDIRECTION = re.compile(r"(?:\d*(?=[<>])|&(?=>))(?:[<>]&[\d-]+|<<<|<<-?|>>|<>|>\||[<>])")
_NESTING = 50
HERE_DOCUMENT = re.compile(r"(?<!<)<<(-?)\s*(['\"]?)([A-Za-z_]\w*)\2")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of shell text as written, and the offset of its first character."""

    text: str
    start: int
    kind: Literal["word", "operator", "redirection"]

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def wants_file(self) -> bool:
        """Whether it is a redirection whose file is the next word."""
        return self.kind == "redirection" and not re.search(r"[<>]&", self.text)


def tokens(text: str) -> Iterator[Token]:
    """All of a text but blanks, comments and joined lines. Bodies of here-documents are words, too,
    unless `without_relative_entries_documents` took them out.
    """
    position = 0
    while position < len(text):
        char = text[position]
        if text.startswith("\\\n", position):
            position += 2
        elif char == "#":
            position = _line_end(text, position)
        elif found := _REDIRECTION.match(text, position):
            yield Token(found[0], position, "redirection")
            position = found.end()
        elif found := _OPERATOR.match(text, position):
            yield Token(found[0], position, "operator")
            position = found.end()
        elif char.isspace():
            position += 1
        else:
            end = word_end(text, position)
            yield Token(text[position:end], position, "word")
            position = end


def word_end(text: str, position: int, level: int = 0) -> int:
    """Where a word ends; behind the text where a quote or a parenthesis is left open."""
    while position < len(text):
        char = text[position]
        if char.isspace() or char in OPERATORS or char in "<>":
            return position
        if char == "\\":
            position += 2
        elif char == "'":
            position = after(text, "'", position + 1)
        elif char == '"':
            position = _double_end(text, position + 1, level)
        elif text.startswith("$(", position):
            position = substitution_end(text, position + 2, level + 1)
        elif text.startswith("${", position):
            position = after(text, "}", position + 2)
        else:
            position += 1
    return position


def after(text: str, end: str, position: int) -> int:
    found = text.find(end, position)
    return len(text) + 1 if found < 0 else found + 1


def _double_end(text: str, position: int, level: int) -> int:
    while position < len(text):
        if text[position] == '"':
            return position + 1
        if text[position] == "\\":
            position += 2
        elif text.startswith("$(", position):
            position = substitution_end(text, position + 2, level + 1)
        else:
            position += 1
    return len(text) + 1


def substitution_end(text: str, position: int, level: int = 0) -> int:
    """Behind the bracket that closes `$(`; behind the text where it is nested without end."""
    if level > _NESTING:
        return len(text) + 1
    depth = 1
    while position < len(text):
        char = text[position]
        if char == ")":
            depth -= 1
            position += 1
            if not depth:
                return position
        elif char == "(":
            depth += 1
            position += 1
        elif char in "'\"\\$":
            position = max(word_end(text, position, level), position + 1)
        else:
            position += 1
    return len(text) + 1


def _line_end(text: str, position: int) -> int:
    found = text.find("\n", position)
    return len(text) if found < 0 else found


def without_relative_entries_documents(text: str) -> str:
    """The text with the bodies of here-documents blanked: the places of all else stay."""
    lines = text.split("\n")
    waiting: list[str] = []
    for number, line in enumerate(lines):
        if waiting:
            if line.strip() == waiting[0]:
                waiting.pop(0)
            lines[number] = " " * len(line)
        else:
            waiting = [match[3] for match in HERE_DOCUMENT.finditer(line)]
    return "\n".join(lines)


def unquoted(word: str) -> str:
    """The word without quotes and backslashes."""
    return word.replace('"', "").replace("'", "").replace("\\", "")
