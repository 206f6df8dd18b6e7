"""The table in which the page looks up a pasted error: phrases of a line, and what each means.

The doctor judges a whole log by all that it holds; the page compares lines with phrases, and names
the command that judges. So it has only patterns of one line that speak for themselves, and of
these only what is certain of a match: the words that are in it, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from provision.doctor.knowledge import Knowledge
from provision.doctor.model import KnownFailure

Phrase: TypeAlias = tuple[str, ...]

_LEAST_LETTERS = (
    16,
    18,
    16,
)  # of a phrase, by rank: shorter ones are in lines that mean something else
_MOST_PHRASES = 24  # of one pattern: more are a list of names, which makes the page large
_LEAST_OF_A_LINE = 12  # where they are all that the line says
_MOST_OTHERS = 200  # phrases of lines that change a meaning
_WHOLE = re.compile(r"(?:\(\?i\))?\^.*\$$")
_HOLE = re.compile(r"\{([a-z_]+)\}")


class Known(NamedTuple):
    """A pattern that means one thing, mostly: the doctor's code for it, one sentence, what to do,
    and an address to read on.

    `rank`: 0 for a proof, 1 for what is usual, 2 where it says only that something failed. `often`
    (0 to 9) orders the meanings of one pattern. `is_whole`: it is all that a line says. `unless`:
    patterns of other lines with which it means something else.
    """

    pattern: str
    code: str
    sentence: str
    advice: str = ""
    link: str = ""
    rank: int = 0
    often: int = 5
    is_whole: bool = False
    unless: tuple[str, ...] = ()


def known(knowledge: Knowledge) -> Iterator[Known]:
    """All that the page takes from the doctor; notices that stop nothing are not in it."""
    for one in knowledge.failures:
        advice = next((fix.note for fix in one.fixes if not fix.on and not fix.when), "")
        link = next((text for text in one.sources if text.startswith("https://")), "")
        about = one.code, _filled(one), advice, link
        is_general = one.outcome or one.generic
        for symptom in one.symptoms:
            pattern, *more = symptom.parts
            if more or symptom.without or one.severity == "warns":
                continue
            if symptom.strength == "proof":
                rank = 2 if is_general else 0
                yield Known(pattern, *about, rank, one.often, unless=one.unless)
            elif symptom.strength == "typical" and not is_general:
                is_whole = bool(_WHOLE.match(pattern))
                if is_whole or not symptom.survived:
                    yield Known(pattern, *about, 1, one.often, is_whole, one.unless)


def _filled(one: KnownFailure) -> str:
    return _HOLE.sub(lambda hole: one.defaults.get(hole[1], "..."), one.title)


def table(rows: Iterable[Known]) -> dict[str, Any]:
    """What the script reads: the meanings, and the phrases as the number of a meaning and the parts
    of the phrase, "" before those that are all that a line says. The first phrase that a text holds
    counts: ordered by rank, then the longest first. `unless`: phrases by the number of a meaning
    that a text with them does not have.
    """
    meanings: dict[tuple[str, ...], int] = {}
    phrases: dict[Phrase, tuple[int, int, int]] = {}
    unless: dict[int, list[Phrase]] = {}
    for one in rows:
        others = [phrases_of(pattern, _MOST_OTHERS) for pattern in one.unless]
        if not all(others):  # a line could not be seen that changes the meaning
            continue
        least = _LEAST_OF_A_LINE if one.is_whole else _LEAST_LETTERS[one.rank]
        for parts in phrases_of(one.pattern):
            phrase = ("", *parts) if one.is_whole else parts
            if _letters(phrase) < least:
                continue
            meaning = (one.code, one.sentence, one.advice, one.link)
            number = meanings.setdefault(meaning, len(meanings))
            row = (one.rank, -one.often, number)
            phrases[phrase] = min(row, phrases.get(phrase, row))
            if others:
                unless[number] = [other for found in others for other in found]
    ordered = sorted(phrases, key=lambda one: (phrases[one][0], -_letters(one), one))
    return {
        "meanings": [list(meaning) for meaning in meanings],
        "phrases": [[phrases[phrase][-1], *phrase] for phrase in ordered],
        "unless": unless,
    }


def _letters(phrase: Phrase) -> int:
    return sum(map(len, phrase))


# ---- from a pattern to what is certain of it ----

_GAP = "\0"  # anything may be there, up to the end of the line
_ITEM = re.compile(
    r"""  (?P<any>\\[dDwWsS]|\.)
    | \[(?P<one_of>\^?\]?(?:\\.|[^\]\\])*)\]
    | (?P<nothing>\\[bB]|[\^$]|\(\?i\))
    | \\(?P<escaped>\W)
    | (?P<open>\((?:\?(?:P?<\w+>|i?:))?)
    | (?P<end>[)|])
    | (?P<plain>[^\\(])""",
    re.VERBOSE,
)
_REPEATED = re.compile(r"(?:([*+?])|\{(\d*),?\d*\})\??")
_RANGE = re.compile(r"\\[dDwWsS]|0-9|[a-z]-[a-z]|[A-Z]-[A-Z]")


def phrases_of(pattern: str, most: int = _MOST_PHRASES) -> tuple[Phrase, ...]:
    """The phrases of which every line that matches holds one, in lower case: the parts of a phrase
    are in the line in their order, with one space for several. None for a pattern that is too
    involved, or has more than so many.
    """
    reader = _Reader(pattern, most)
    try:
        found = reader.alternatives()
    except ValueError:
        return ()
    phrases = [tuple(filter(str.strip, text.split(_GAP))) for text in found]
    return tuple(dict.fromkeys(phrases)) if len(phrases) <= most else ()


class _Reader:
    """Reads a pattern of RE2 once, from left to right."""

    def __init__(self, pattern: str, most: int) -> None:
        self._pattern, self._most, self._at = pattern, most, 0

    def alternatives(self) -> list[str]:
        """The texts of each alternative, up to the end or the bracket that closes the group."""
        found = self._sequence()
        while self._pattern.startswith("|", self._at):
            self._at += 1
            found += self._sequence()
        return found

    def _sequence(self) -> list[str]:
        found = [""]
        while self._at < len(self._pattern):
            item = _ITEM.match(self._pattern, self._at)
            if item is None:
                raise ValueError(self._pattern)
            if item["end"]:
                break
            self._at = item.end()
            texts = self._repeated(self._texts(item), is_digit=item[0] in {r"\d", "[0-9]"})
            found = [before + text for before in found for text in texts]
            if len(found) > self._most:
                raise ValueError(self._pattern)
        return [re.sub(" +", " ", text) for text in found]

    def _texts(self, item: re.Match[str]) -> list[str]:
        if item["open"]:
            found = self.alternatives()
            self._at += 1
            return found
        if item["any"]:
            return [_GAP]
        if item["one_of"]:
            return _one_of(item["one_of"])
        return [(item["escaped"] or item["plain"] or "").lower()]

    def _repeated(self, texts: list[str], *, is_digit: bool) -> list[str]:
        found = _REPEATED.match(self._pattern, self._at)
        if found is None:
            return texts
        if is_digit and found[0].startswith("{"):  # a small number, which means something
            raise ValueError(self._pattern)
        self._at = found.end()
        is_there = found[1] == "+" or found[2] not in {None, "", "0"}
        return [text + _GAP for text in texts] if is_there else [_GAP]


def _one_of(letters: str) -> list[str]:
    """The letters of a class; anything for one of many."""
    if letters.startswith("^") or _RANGE.search(letters):
        return [_GAP]
    if "-" in letters[1:-1]:  # some digits only, which mean something
        raise ValueError(letters)
    return sorted({letter.lower() for letter in re.sub(r"\\(.)", r"\1", letters)})
