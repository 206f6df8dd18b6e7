"""Shell text as simple commands, each word with its place. Nothing is run.

This is no shell: it knows quotes, escapes, comments, separators and plain variables, which is what
RUN instructions are made of. What it cannot tell (a command substitution, an unknown variable)
stays in the word as it is written, and a rule leaves such a word alone.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from provision.doctor.lint.findings import Place

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_BRACED = re.compile(
    r"\$\{(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-+]|##?|%%?|//?)(?P<with>[^{}]*))?\}", re.ASCII
)
_SEPARATORS = ("&&", "||", ";;", ";", "|&", "|", "&", "\n")
_LEADING = frozenset(
    ["if", "then", "else", "elif", "do", "while", "until", "{", "!", "(", "time", "exec", "sudo"]
)
_SHELLS = frozenset(["sh", "bash", "ash", "dash", "zsh"])
_NESTING = 3
# A value that is longer is not followed, nor a text with so many variables that it would grow.
VALUE_LIMIT = 1 << 12
_VARIABLES_LIMIT = 1 << 8


@dataclass(frozen=True, slots=True)
class Text:
    """Text put together from lines of a file. `marks`: (offset, line, column), by offset."""

    text: str
    marks: tuple[tuple[int, int, int], ...]

    def at(self, offset: int) -> Place:
        """Where a character of the text stands in the file."""
        index = bisect_right(self.marks, (offset, 1 << 60, 0)) - 1
        begin, line, column = self.marks[max(index, 0)]
        return Place(line, column + offset - begin)


@dataclass(frozen=True, slots=True)
class Word:
    """A word without its quotes, its known variables filled in."""

    text: str
    at: Place

    @property
    def known(self) -> bool:
        return "$" not in self.text and "`" not in self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A simple command. `settings` are assignments before it; `then` is what follows it: "||"."""

    words: tuple[Word, ...]
    settings: Mapping[str, str]
    then: str = ""
    conditional: bool = False

    @property
    def name(self) -> str:
        """The program without its directory."""
        return self.words[0].text.rpartition("/")[2] if self.words else ""

    @property
    def at(self) -> Place:
        return self.words[0].at

    def says(self, *words: str) -> bool:
        """Whether the words after the program's name hold all of these."""
        return set(words) <= {word.text for word in self.words[1:]}


@dataclass(slots=True)
class _Raw:
    text: str = ""
    offset: int = 0
    quoted: bool = False


def expand(text: str, variables: Mapping[str, str | None]) -> str:
    """The text with the variables that are known; one that is not stays as it is written."""
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
    """Whether the variable is set to something that is not known."""
    return match["name"] in variables


def _trimmed(value: str, how: str, other: str) -> str:
    """`${name#text}` and its like, for texts without wildcards."""
    if how[0] == "/":
        old, _, new = other.partition("/")
        return value.replace(old, new, -1 if how == "//" else 1) if old else value
    return value.removeprefix(other) if how[0] == "#" else value.removesuffix(other)


def commands(text: Text, variables: Mapping[str, str | None], depth: int = 0) -> list[Command]:
    """The simple commands of a script, in their order; those of `sh -c '...'` are among them."""
    known = dict(variables)
    found: list[Command] = []
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


def _assignments(words: tuple[Word, ...]) -> Iterator[tuple[str, str]]:
    for word in words:
        match = _ASSIGNMENT.fullmatch(word.text)
        if match:
            yield match[1], match[2]


def _script_of(command: Command) -> Word | None:
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
) -> Command | None:
    settings: dict[str, str] = {}
    words: list[Word] = []
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
        words += [Word(part, at) for part in parts]
    if not words and not settings:
        return None
    return Command(words=tuple(words), settings=settings, then=then, conditional=conditional)


def _split(text: str) -> Iterator[tuple[list[_Raw], str]]:
    """Words between separators, and the separator that ends them."""
    words: list[_Raw] = []
    current: _Raw | None = None
    index, end = 0, len(text)
    while index < end:
        char = text[index]
        separator = next((s for s in _SEPARATORS if text.startswith(s, index)), None)
        if char == "#" and current is None:
            stop = text.find("\n", index)
            index = end if stop < 0 else stop
            continue
        if char == "&" and index and text[index - 1] in "<>":  # 2>&1 is one word
            separator = None
        if separator is not None or char in " \t()<>":
            if separator is None and char in "<>":
                current = current or _Raw(offset=index)
                current.text += char
                index += 1
                continue
            if current is not None:
                words.append(current)
                current = None
            if separator is not None or char in "()":
                if words:
                    yield words, separator or char
                words = []
            index += len(separator) if separator else 1
            continue
        current = current or _Raw(offset=index)
        index = _take(text, index, current)
    if current is not None:
        words.append(current)
    if words:
        yield words, ""


def _take(text: str, index: int, word: _Raw) -> int:
    """Add one character, quoted text or substitution to the word; the index behind it."""
    char = text[index]
    if char == "\\":
        word.text += text[index + 1 : index + 2]
        return index + 2
    if char in "'\"":
        return _quoted(text, index, word)
    if text.startswith("$(", index):
        stop = _closing(text, index + 1)
        word.text += text[index:stop]
        return stop
    if char == "`":
        stop = text.find("`", index + 1)
        stop = len(text) if stop < 0 else stop + 1
        word.text += text[index:stop]
        return stop
    if text.startswith("${", index):
        stop = text.find("}", index)
        stop = len(text) if stop < 0 else stop + 1
        word.text += text[index:stop]
        return stop
    word.text += char
    return index + 1


def _quoted(text: str, index: int, word: _Raw) -> int:
    quote = text[index]
    if not word.text:
        word.quoted = True
    index += 1
    while index < len(text) and text[index] != quote:
        if quote == '"' and text[index] == "\\" and text[index + 1 : index + 2] in tuple('"\\$`'):
            index += 1
        word.text += text[index]
        index += 1
    return index + 1


def _closing(text: str, index: int) -> int:
    """The index behind the bracket that closes the one at `index`."""
    depth = 0
    for position in range(index, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position + 1
    return len(text)
