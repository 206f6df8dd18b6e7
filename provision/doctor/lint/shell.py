"""Shell text as simple commands, each word with its position. Nothing is run.

This is not a shell: it knows quotes, escapes, comments, separators and plain variables, which is
what RUN instructions consist of. What it cannot evaluate (a command substitution, an unknown
variable) stays in the word as it is written, and rules ignore such a word.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from provision.doctor.shell import after, substitution_end, tokens
from provision.sources.packages import Position

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_BRACED = re.compile(
    r"\$\{(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-+]|##?|%%?|//?)(?P<with>[^{}]*))?\}", re.ASCII
)
_LEADING = frozenset(
    ["if", "then", "else", "elif", "do", "while", "until", "{", "!", "(", "time", "exec", "sudo"]
)
_SHELLS = frozenset(["sh", "bash", "ash", "dash", "zsh"])
_NESTING = 3
# Longer values are not expanded, nor texts with so many variables that they would grow.
VALUE_LIMIT = 1 << 12
_VARIABLES_LIMIT = 1 << 8


@dataclass(frozen=True, slots=True)
class Text:
    """Text put together from lines of a file. `marks`: (offset, line, column), by offset."""

    text: str
    marks: tuple[tuple[int, int, int], ...]

    def at(self, offset: int) -> Position:
        """The position in the file of a character of the text."""
        index = bisect_right(self.marks, (offset, 1 << 60, 0)) - 1
        begin, line, column = self.marks[max(index, 0)]
        return Position(line, column + offset - begin)


@dataclass(frozen=True, slots=True)
class ExpandedWord:
    """A word without its quotes, its known variables filled in."""

    text: str
    at: Position

    @property
    def known(self) -> bool:
        return "$" not in self.text and "`" not in self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """A simple command. `settings` are assignments before it; `then` is what follows it: "||"."""

    words: tuple[ExpandedWord, ...]
    settings: Mapping[str, str]
    then: str = ""
    conditional: bool = False

    @property
    def name(self) -> str:
        """The program without its directory."""
        return self.words[0].text.rpartition("/")[2] if self.words else ""

    @property
    def at(self) -> Position:
        return self.words[0].at

    def says(self, *words: str) -> bool:
        """Whether the words after the program's name include all of these."""
        return set(words) <= {word.text for word in self.words[1:]}


@dataclass(frozen=True, slots=True)
class _Raw:
    text: str
    offset: int
    quoted: bool


def expand(text: str, variables: Mapping[str, str | None]) -> str:
    """The text with known variables expanded; unknown ones stay as they are written."""
    if text.count("$") > _VARIABLES_LIMIT:
        return text

    def braced(match: re.Match[str]) -> str:
        value = variables.get(match["name"])
        how, other = match["how"] or "", match["with"] or ""
        if how.endswith("-"):
            return value if value is not None else (match[0] if _held(match, variables) else other)
        if how.endswith("+"):
            return other if value is not None else ("" if not _held(match, variables) else match[0])
        if value is None:
            return match[0]
        return _trimmed(value, how, other) if how else value

    def plain(match: re.Match[str]) -> str:
        value = variables.get(match[1])
        return match[0] if value is None else value

    return re.sub(r"\$([A-Za-z_]\w*)", plain, _BRACED.sub(braced, text), flags=re.ASCII)


def _held(match: re.Match[str], variables: Mapping[str, str | None]) -> bool:
    """Whether the variable is set to an unknown value."""
    return match["name"] in variables


def _trimmed(value: str, how: str, other: str) -> str:
    """`${name#text}` and similar, for texts without wildcards."""
    if how[0] == "/":
        old, _, new = other.partition("/")
        return value.replace(old, new, -1 if how == "//" else 1) if old else value
    return value.removeprefix(other) if how[0] == "#" else value.removesuffix(other)


def commands(text: Text, variables: Mapping[str, str | None], depth: int = 0) -> list[ShellCommand]:
    """The simple commands of a script, in their order, including those of `sh -c '...'`."""
    known = dict(variables)
    found: list[ShellCommand] = []
    blocks = 0
    for raws, then in _split(text.text):
        texts = [raw.text for raw in raws]
        blocks += sum(word in {"if", "case"} for word in texts[:2])
        command = _command(raws, then, text, known, conditional=blocks > 0)
        blocks -= sum(word in {"fi", "esac"} for word in texts[:1])
        if command is None:
            continue
        if not command.words or command.name == "export":
            known |= command.settings
            known |= dict(_assignments(command.words[1:]))
        if not command.words:
            continue
        found.append(command)
        inner = _script_of(command)
        if inner is not None and depth < _NESTING:
            script = Text(inner.text, ((0, inner.at.line, inner.at.column),))
            found += commands(script, known, depth + 1)
    return found


def _assignments(words: tuple[ExpandedWord, ...]) -> Iterator[tuple[str, str]]:
    for word in words:
        match = _ASSIGNMENT.fullmatch(word.text)
        if match:
            yield match[1], match[2]


def _script_of(command: ShellCommand) -> ExpandedWord | None:
    """The script of `bash -lc '...'`."""
    if command.name not in _SHELLS:
        return None
    for flag, word in zip(command.words[1:], command.words[2:], strict=False):
        if flag.text.startswith("-") and flag.text.endswith("c"):
            return word
    return None


def _command(
    raws: list[_Raw],
    then: str,
    text: Text,
    known: Mapping[str, str | None],
    *,
    conditional: bool,
) -> ShellCommand | None:
    settings: dict[str, str] = {}
    words: list[ExpandedWord] = []
    for raw in raws:
        if not words and not raw.quoted:
            if raw.text in _LEADING or raw.text in {"fi", "done", "}", ")", "env"}:
                continue
            match = _ASSIGNMENT.fullmatch(raw.text)
            if match:
                settings[match[1]] = expand(match[2], known)
                continue
        at = text.at(raw.offset)
        filled = expand(raw.text, known)
        parts = [filled] if raw.quoted or filled == raw.text else filled.split()
        words += [ExpandedWord(part, at) for part in parts]
    if not words and not settings:
        return None
    return ShellCommand(words=tuple(words), settings=settings, then=then, conditional=conditional)


def _split(text: str) -> Iterator[tuple[list[_Raw], str]]:
    """Words between operators, without redirections, and the operator that ends them."""
    words: list[_Raw] = []
    for token in tokens(text):
        if token.kind == "word":
            quoted = token.text[0] in "'\""
            words.append(_Raw(_unquoted(token.text), token.start, quoted))
        elif token.kind == "operator":
            if words:
                yield words, token.text
            words = []
    if words:
        yield words, ""


def _unquoted(raw: str) -> str:
    """The word as the shell would pass it on, with its variables and substitutions as written."""
    text, index = "", 0
    while index < len(raw):
        char = raw[index]
        if char == "\\":
            text += raw[index + 1 : index + 2]
            index += 2
        elif char in "'\"":
            inner, index = _inside_quotes(raw, index)
            text += inner
        elif raw.startswith("$(", index) or char == "`":
            stop = substitution_end(raw, index + 2) if char == "$" else after(raw, "`", index + 1)
            text += raw[index:stop]
            index = stop
        else:
            text += char
            index += 1
    return text


def _inside_quotes(raw: str, index: int) -> tuple[str, int]:
    """The text in the quotes that begin there, and the index behind them."""
    quote, text = raw[index], ""
    index += 1
    while index < len(raw) and raw[index] != quote:
        if quote == '"' and raw[index] == "\\" and raw[index + 1 : index + 2] in tuple('"\\$`'):
            index += 1
        text += raw[index]
        index += 1
    return text, index + 1
