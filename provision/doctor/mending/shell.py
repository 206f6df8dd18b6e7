"""As much of the shell's grammar as the shipped fixes need: commands, and the programs they start.

Texts are read, never rewritten by guess: what is not understood (back quotes, a here-document
inside quotes) is left as it stands, and `sh -n` over the whole knowledge says whether it is shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_OPERATORS = frozenset(";&|()\n")
# After these a command still begins.
_KEYWORDS = frozenset(["if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "time"])
_ENDS = frozenset(["fi", "done", "esac", "for", "case"])
# These start the program that is named after them.
_STARTERS: Mapping[str, frozenset[str]] = {  # with their options that take a word
    "sudo": frozenset(["-u", "-g"]),
    "env": frozenset(["-u", "-C"]),
    "xargs": frozenset(["-n", "-I", "-L", "-P"]),
    "exec": frozenset(),
    "nohup": frozenset(),
}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<(-?)\s*(['\"]?)([A-Za-z_]\w*)\2")
# Options of sudo that only say how it behaves. `sudo -u USER` is another matter.
_SUDO_MANNERS = frozenset(["-E", "-H", "-n", "-S", "--"])


@dataclass(frozen=True, slots=True)
class Word:
    """A word as written, where it stands, and whether the shell runs it."""

    text: str
    start: int
    end: int
    is_program: bool


def commands(text: str) -> tuple[str, ...]:
    """The commands of a text: one a line, which goes on after a backslash, after an operator
    that wants more, inside quotes and to the end of a here-document. Comments are left out.
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
    """Names of the programs (and the shell's own commands) that a text starts."""
    return frozenset(_unquoted(word.text) for word in words(text) if word.is_program)


def without_sudo(command: str) -> str:
    """The command for somebody who is root already. Other users' rights (-u) stay asked for."""
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
    """All words in order, those of $(...) too, as places in the whole text."""
    text = _without_here_documents(text)
    begins, target, starter, argument = True, False, "", False
    position = 0
    while position < len(text):
        char = text[position]
        if char in _OPERATORS:
            begins, target, starter, argument = True, False, "", False
            position += 1
        elif char in "<>":
            target = not text.startswith((">&", "<&"), position)
            position += 1 if target else 3
        elif char.isspace():
            position += 1
        elif char == "#":
            position = _line_end(text, position)
        elif text.startswith("\\\n", position):
            position += 2
        else:
            end = _word_end(text, position)
            raw = text[position:end]
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
            # a descriptor's number before > or <
            is_number = raw.isdigit() and text[end : end + 1] in {"<", ">"}
            if not is_number:
                yield Word(raw, offset + position, offset + end, runs)
            yield from _substituted(raw, offset + position)
            position = end


# --- the scanner --------------------------------------------------------------------------------


def _is_whole(text: str) -> bool:
    """Whether a command ends with this line."""
    if text.endswith("\\") and not text.endswith("\\\\"):
        return False
    delimiters = [match[3] for match in _HERE_DOCUMENT.finditer(_first_line(text))]
    if delimiters:
        return text.splitlines()[-1].strip() == delimiters[-1] and "\n" in text
    position = 0
    while position < len(text):
        end = _word_end(text, position)
        if end > len(text):
            return False
        position = max(end, position + 1)
    return not text.rstrip().endswith(("|", "&&"))


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _word_end(text: str, position: int) -> int:
    """Where a word ends; behind the text where a quote or a parenthesis is left open."""
    while position < len(text):
        char = text[position]
        if char.isspace() or char in _OPERATORS or char in "<>":
            return position
        if char == "\\":
            position += 2
        elif char == "'":
            position = _after(text, "'", position + 1)
        elif char == '"':
            position = _double_end(text, position + 1)
        elif text.startswith("$(", position):
            position = _substitution_end(text, position + 2)
        elif text.startswith("${", position):
            position = _after(text, "}", position + 2)
        else:
            position += 1
    return position


def _after(text: str, end: str, position: int) -> int:
    found = text.find(end, position)
    return len(text) + 1 if found < 0 else found + 1


def _double_end(text: str, position: int) -> int:
    while position < len(text):
        if text[position] == '"':
            return position + 1
        if text[position] == "\\":
            position += 2
        elif text.startswith("$(", position):
            position = _substitution_end(text, position + 2)
        else:
            position += 1
    return len(text) + 1


def _substitution_end(text: str, position: int) -> int:
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
            position = max(_word_end(text, position), position + 1)
        else:
            position += 1
    return len(text) + 1


def _substituted(raw: str, offset: int) -> Iterator[Word]:
    """The words of what is in $(...), outside single quotes."""
    position, in_double = 0, False
    while position < len(raw):
        if raw[position] == "\\":
            position += 2
        elif raw[position] == "'" and not in_double:
            position = _after(raw, "'", position + 1)
        elif raw[position] == '"':
            in_double = not in_double
            position += 1
        elif raw.startswith("$((", position):
            position = _substitution_end(raw, position + 2)
        elif raw.startswith("$(", position):
            end = _substitution_end(raw, position + 2)
            yield from words(raw[position + 2 : end - 1], offset + position + 2)
            position = end
        else:
            position += 1


def _line_end(text: str, position: int) -> int:
    found = text.find("\n", position)
    return len(text) if found < 0 else found


def _without_here_documents(text: str) -> str:
    """The text with the bodies of here-documents blanked: the places of all else stay."""
    lines = text.split("\n")
    waiting: list[str] = []
    for number, line in enumerate(lines):
        if waiting:
            if line.strip() == waiting[0]:
                waiting.pop(0)
            lines[number] = " " * len(line)
        else:
            waiting = [match[3] for match in _HERE_DOCUMENT.finditer(line)]
    return "\n".join(lines)


def _unquoted(word: str) -> str:
    return word.replace('"', "").replace("'", "").replace("\\", "")
