"""Commands of a fix, and the programs that they start. `sh -n` over the whole knowledge checks that
it is valid shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from provision.doctor.shell import (
    HERE_DOCUMENT,
    after,
    substitution_end,
    tokens,
    unquoted,
    without_relative_entries_documents,
    word_end,
)

# After these a new command begins.
_KEYWORDS = frozenset(["if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "time"])
_ENDS = frozenset(["fi", "done", "esac", "for", "case"])
# These start the program named by their arguments.
_STARTERS: Mapping[str, frozenset[str]] = {  # with their options that take a value
    "sudo": frozenset(["-u", "-g"]),
    "env": frozenset(["-u", "-C"]),
    "xargs": frozenset(["-n", "-I", "-L", "-P"]),
    "exec": frozenset(),
    "nohup": frozenset(),
}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
# Options of sudo that only say how it behaves. `sudo -u USER` is another matter.
_SUDO_MANNERS = frozenset(["-E", "-H", "-n", "-S", "--"])


@dataclass(frozen=True, slots=True)
class Word:
    """A word as written, its position, and whether the shell runs it."""

    text: str
    start: int
    end: int
    is_program: bool


def commands(text: str) -> tuple[str, ...]:
    """The commands of a text, one per line; a command continues after a backslash, after an
    operator that needs more, inside quotes and to the end of a here-document. Comments are left
    out.
    """
    found: list[str] = []
    pending = ""
    for line in text.splitlines():
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        pending = f"{pending}\n{line}" if pending else line.strip()
        if _is_whole(pending):
            found.append(pending)
            pending = ""
    if pending:
        found.append(pending)
    return tuple(found)


def programs(text: str) -> frozenset[str]:
    """Names of the programs (and shell built-ins) that a text starts."""
    return frozenset(unquoted(word.text) for word in words(text) if word.is_program)


def without_sudo(command: str) -> str:
    """The command for a user who is already root. `sudo -u` for another user stays."""
    found = list(words(command))
    cuts: list[tuple[int, int]] = []
    for position, word in enumerate(found):
        if word.text != "sudo" or not word.is_program:
            continue
        rest = position + 1
        while rest < len(found) and found[rest].text in _SUDO_MANNERS:
            rest += 1
        if rest < len(found) and not found[rest].text.startswith("-"):
            cuts.append((word.start, found[rest].start))
    for start, end in reversed(cuts):
        command = command[:start] + command[end:]
    return command


def needs_sudo(command: str) -> bool:
    return any(word.text == "sudo" and word.is_program for word in words(command))


def words(text: str, offset: int = 0) -> Iterator[Word]:
    """All words in order, including those inside $(...), as positions in the whole text."""
    begins, target, starter, argument = True, False, "", False
    for token in tokens(without_relative_entries_documents(text)):
        raw = token.text
        if token.kind == "operator":
            begins, target, starter, argument = True, False, "", False
            continue
        if token.kind == "redirection":
            target = token.wants_file
            continue
        runs = begins and not target
        is_option = bool(starter) and (argument or raw.startswith("-"))
        if runs and (is_option or _ASSIGNMENT.match(raw)):
            runs = False
            argument = not argument and raw in _STARTERS.get(starter, ())
        elif runs and raw in _KEYWORDS | _ENDS:
            runs, begins = False, raw in _KEYWORDS
        elif runs:
            starter = raw if raw in _STARTERS else ""
            begins = bool(starter)
        target = False
        yield Word(raw, offset + token.start, offset + token.end, runs)
        yield from _substituted(raw, offset + token.start)


def _is_whole(text: str) -> bool:
    """Whether a command ends with this line."""
    if text.endswith("\\") and not text.endswith("\\\\"):
        return False
    delimiters = [match[3] for match in HERE_DOCUMENT.finditer(text.partition("\n")[0])]
    if delimiters:
        return text.splitlines()[-1].strip() == delimiters[-1] and "\n" in text
    position = 0
    while position < len(text):
        end = word_end(text, position)
        if end > len(text):
            return False
        position = max(end, position + 1)
    return not text.rstrip().endswith(("|", "&&"))


def _substituted(raw: str, offset: int) -> Iterator[Word]:
    """The words inside $(...), outside single quotes."""
    position, in_double = 0, False
    while position < len(raw):
        if raw[position] == "\\":
            position += 2
        elif raw[position] == "'" and not in_double:
            position = after(raw, "'", position + 1)
        elif raw[position] == '"':
            in_double = not in_double
            position += 1
        elif raw.startswith("$((", position):
            position = substitution_end(raw, position + 2)
        elif raw.startswith("$(", position):
            end = substitution_end(raw, position + 2)
            yield from words(raw[position + 2 : end - 1], offset + position + 2)
            position = end
        else:
            position += 1
