r"""The words that every match of a pattern must hold: what a text is asked for first.

`undefined symbol:\s*nccl[A-Z]\w+` cannot match a line without "undefined symbol:" and "nccl". One
automaton looks for the words of all patterns at once, and a pattern is tried on those lines only
that hold its own (as in Google Code Search: swtch.com/~rsc/regexp/regexp4.html).

A need is a set of words of which one must be there; a pattern has several needs. Words are in
lower case, since a pattern may ignore case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

Need: TypeAlias = frozenset[str]

# Words that stand in the lines of any log: asked for only where a pattern has nothing better.
COMMON = frozenset(
    """
    a and are at be build by can cannot code connect connection could data device do driver
    error errors exit fail failed failure fatal file find for found from get has host http in
    info install invalid is kernel library line load loaded log main memory missing module
    name no not of on open or out package read required run server start system the this timed
    to unable unknown use version warn warning was with
    container cuda docker gpu gpus image nccl nvidia python rank tensorflow torch
    """.split()  # noqa: SIM905  one word a line would be seventy lines
)
_ALL_DIGITS = re.compile(r"\\d|0-9|\{\d+(?:,\d*)?\}")
_DIGIT = re.compile(r"\d")
# A need of more words is of little help; the pattern has others.
MOST_WORDS = 40
TELLING = 4  # letters of a word that are in no common one
_FAINT = 3  # letters: a shorter word stands in nearly every line

_PART = re.compile(r"[a-z]{3,}|[0-9]{3,}")
_QUANTIFIER = re.compile(r"[*+?]\??|\{(\d+)(?:,(\d*))?\}\??")
_PLAIN = re.compile(r"[\w :'\"=,/<>@%&;#!~`-]+(?![*+?{])")
_GROUP = re.compile(r"\((?:\?(?:P?<\w+>|[imsU-]*:|[imsU-]+\)))?")
_CLASS_NAME = re.compile(r"\[:\^?\w+:\]")
_EITHER_CASE = re.compile(r"\[([A-Za-z])((?i:\1))\]")
_NO_WIDTH = frozenset("bBAzZ")


@cache
def needs_of(pattern: str) -> tuple[Need, ...]:
    """What every match holds, the most telling need first. ValueError where nothing is certain:
    such a pattern would have to be tried on every line.
    """
    ranked = _ranked(pattern)
    return tuple(filter(_is_useful, ranked)) or ranked[:1]


def is_faint(pattern: str) -> bool:
    """Whether all that is certain of it stands in any log: a mark, one letter, a short number."""
    return min(len(word.strip()) for word in needs_of(pattern)[0]) < _FAINT


def is_common(pattern: str) -> bool:
    """Whether all that is certain of it are words that stand in any log of a GPU machine."""
    return not _is_useful(_ranked(pattern)[0])


def beside(pattern: str) -> tuple[Need, ...]:
    """What a match of a pattern without a telling need holds besides: a text is asked for it."""
    ranked = _ranked(pattern)
    return () if _is_useful(ranked[0]) else ranked[1:]


@cache
def _ranked(pattern: str) -> tuple[Need, ...]:
    needs = _Reader(pattern).alternatives()
    if not needs:
        raise ValueError(f"no word is in every match of {pattern!r}")
    return tuple(sorted(sorted(set(needs), key=sorted), key=_worth, reverse=True))


def _is_useful(need: Need) -> bool:
    return len(need) <= MOST_WORDS and _worth(need)[0] >= TELLING


@cache
def _worth(need: Need) -> tuple[int, int, int]:
    """Letters are rare, if they are of no common word; of equals the longer and the fewer are."""
    return min(map(_letters, need)), min(map(len, need)), -len(need)


def _letters(word: str) -> int:
    """The letters that are of no common word; a number of three digits is better than nothing."""
    parts = [part for part in _PART.findall(word) if part not in COMMON]
    return sum(2 if part.isdigit() else len(part) for part in parts)


@dataclass(slots=True)
class _Sequence:
    """Needs of items that follow one another, and the word that is being read."""

    needs: list[Need] = field(default_factory=list)
    word: str = ""

    def end_word(self) -> None:
        if self.word:
            self.needs.append(frozenset([self.word]))
        self.word = ""


class _Reader:
    """Reads a pattern of RE2 once, from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0

    def alternatives(self) -> list[Need]:
        """Up to the end, or to the bracket that closes the group. Of several alternatives one word
        of each must be known, or nothing is needed.
        """
        branches = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        if not all(branches):
            return []
        best = [max(branch, key=_worth) for branch in branches]
        return [frozenset().union(*best)]

    def _sequence(self) -> list[Need]:
        sequence = _Sequence()
        while (char := self._next()) not in {"", "|", ")"}:
            plain = _PLAIN.match(self._pattern, self._at)
            if plain is not None:
                self._at = plain.end()
                sequence.word += plain[0].lower()
            elif char == "(":
                self._group(sequence)
            else:
                literal, width = self._item(char)
                least, several = self._repeats()
                if literal and least:
                    sequence.word += literal.lower()
                if several or (width and not (literal and least)):
                    sequence.end_word()
        sequence.end_word()
        return sequence.needs

    def _group(self, sequence: _Sequence) -> None:
        opened = _GROUP.match(self._pattern, self._at)
        self._at = opened.end() if opened else self._at + 1
        if opened and opened[0].endswith(")"):  # (?i): flags, and no group
            return
        inner = self.alternatives()
        self._at += 1
        least, _ = self._repeats()
        sequence.end_word()
        if least:
            sequence.needs += inner

    def _item(self, char: str) -> tuple[str, bool]:
        """The literal that stands here ("" for a class), and whether it takes a character."""
        if char == "[":
            return self._class(), True
        self._at += 1
        if char in "^$":
            return "", False
        if char == ".":
            return "", True
        if char != "\\":
            return char, True
        name = self._next()
        self._at += 1
        if name in _NO_WIDTH:
            return "", False
        if name in {"x", "p", "P"} or name.isdigit() or name in "dDsSwWnrtfvaQEC":
            self._skip_name(name)
            return "", True
        return name, True

    def _skip_name(self, name: str) -> None:
        """The rest of \\x7F, \\x{10FFFF}, \\pN, \\p{Greek}."""
        if name in {"x", "p", "P"}:
            end = self._pattern.find("}", self._at) + 1 if self._next() == "{" else 0
            self._at = end or self._at + (2 if name == "x" else 1)

    def _class(self) -> str:
        """Past a class; [Xx] is the letter x, any other class is no literal."""
        start = self._at
        self._at += 2 if self._pattern.startswith("[^", self._at) else 1
        first = True
        while (char := self._next()) and (first or char != "]"):
            named = _CLASS_NAME.match(self._pattern, self._at)
            self._at = named.end() if named else self._at + (2 if char == "\\" else 1)
            first = False
        self._at += 1
        letter = _EITHER_CASE.fullmatch(self._pattern, start, self._at)
        return letter[1] if letter and letter[1] != letter[2] else ""

    def _repeats(self) -> tuple[int, bool]:
        """How often at least, and whether what follows may stand elsewhere."""
        found = _QUANTIFIER.match(self._pattern, self._at)
        if found is None:
            return 1, False
        self._at = found.end()
        if found[1] is not None:
            return min(int(found[1]), 1), True
        return int(found[0][0] == "+"), True

    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]


def tells_digits_apart(pattern: str) -> bool:
    """Whether a match may depend on which digit stands somewhere (79, [1-4]) and not only on that
    one does (\\d, [0-9], {3,8}).
    """
    return _DIGIT.search(_ALL_DIGITS.sub("", pattern)) is not None
