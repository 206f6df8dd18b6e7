"""Which patterns of the knowledge a text holds, and where.

There are thousands of patterns and a log may have a hundred million bytes, so most of it must be
passed over quickly. One Aho-Corasick automaton looks for a word of each pattern that no match can
be without (`literals`); the pattern is tried, by RE2, on those lines alone that hold it, and until
it is found. Both read each byte a bounded number of times, so no text can make this hang.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from images.text.printable import printable, shortened
from provision.doctor.lines import (
    WRAPPED_LIMIT,
    LineCounter,
    Work,
    chunks,
    unescaped,
    unwrapped,
)
from provision.doctor.literals import beside, needs_of, tells_digits_apart
from provision.doctor.model import Hit, PartlyRead

_EVIDENCE_LIMIT = 300
# From so many lines on, one look at all of them is cheaper.
_MANY = 10
# A line that comes more often in one log is a status line.
_MOST_HITS = 2_000
# Of a text that costs too much so many pieces are kept for the end.
_LAST_PIECES = 256
# Of a log that never repeats itself not everything is remembered.
_MEMORY_LIMIT = 20_000
_SHAPE = bytes.maketrans(b"123456789", b"0" * 9)


class Patterns:
    """Patterns, made ready once for any number of texts.

    The lines of a log differ in their numbers mostly. A pattern that treats all digits alike need
    not be tried on a line of which another stood before that differs in digits alone.
    """

    def __init__(
        self, patterns: Iterable[str], after: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        """`after`: patterns that are looked for where one of others has been found, and not before;
        such as a row of a table, of numbers alone, below its headings.
        """
        self._patterns = tuple(dict.fromkeys(patterns))
        told = [tells_digits_apart(pattern) for pattern in self._patterns]
        number_of = {pattern: number for number, pattern in enumerate(self._patterns)}
        self.after = after or {}
        self._after = {
            number_of[pattern]: [number_of[one] for one in earlier]
            for pattern, earlier in self.after.items()
        }
        numbers = [n for n in range(len(self._patterns)) if n not in self._after]
        self._by_digits = _Words(self._patterns, [n for n in numbers if told[n]])
        self._by_shape = _Words(self._patterns, [n for n in numbers if not told[n]])

    def in_text(self, stream: BinaryIO, source: str, work: Work | None = None) -> dict[str, Hit]:
        """The first hit of every pattern that the text holds. Where the first lines cost as much as
        `work` allows, that much again is spent on the last ones, the very last first; `work.partly`
        then says how many these are.
        """
        work = work or Work()
        found, memory = _Found(self._patterns, work), _Memory()
        number = first = 1
        size = 0
        kept: list[bytes] = []
        unread: deque[tuple[int, bytes]] = deque(maxlen=_LAST_PIECES)
        for chunk in chunks(stream):
            if unread or work.is_over:
                unread.append((number, chunk))
            else:
                self._in_chunk(chunk, source, number, found, memory)
                first = number + chunk.count(b"\n")
            number += chunk.count(b"\n")
            size += len(chunk)
            if size <= WRAPPED_LIMIT:
                kept.append(chunk)
        work.renew()
        begin = number
        while unread and not work.is_over:
            begin, chunk = unread.pop()
            self._in_chunk(chunk, source, begin, found, memory)
        if begin > first:
            work.partly = PartlyRead(
                source=source, first=first - 1, last=number - begin, lines=number - 1
            )
        work.renew()
        if size <= WRAPPED_LIMIT:
            self._in_wrapped(b"".join(kept).split(b"\n"), source, found)
        work.renew()
        return found.hits()

    def every_hit(
        self, stream: BinaryIO, source: str, patterns: Collection[str], work: Work | None = None
    ) -> dict[str, list[Hit]]:
        """All hits of a few patterns, in the order of their lines; of one pattern up to a bound,
        and up to where the work is over.
        """
        work = work or Work()
        asked = tuple(dict.fromkeys(patterns))
        words = _Words(asked, range(len(asked)))
        found: dict[str, list[Hit]] = {pattern: [] for pattern in asked}
        over: set[int] = set()
        missed: set[tuple[int, bytes]] = set()  # a log says the same again and again
        first = 1
        for chunk in chunks(stream):
            for text, is_escaped in ((chunk, False), (unescaped(chunk) or b"", True)):
                counter = LineCounter(text)
                for index, start, end in words.lines(text, over, lambda *_: True):
                    line = text[start:end]
                    if (index, line) in missed:
                        continue
                    work.try_on(line)
                    match = _compiled(asked[index]).search(line)
                    if match is None:
                        if len(missed) < _MEMORY_LIMIT:
                            missed.add((index, line))
                        continue
                    before = _escaped_line_of(line, chunk) if is_escaped else counter.before(start)
                    number = first + before
                    hits = found[asked[index]]
                    hits.append(_hit(line, match, source, number))
                    if len(hits) >= _MOST_HITS:
                        over.add(index)
            first += chunk.count(b"\n")
            if work.is_over:
                break
        work.renew()
        return {
            pattern: sorted(hits, key=lambda hit: hit.number) for pattern, hits in found.items()
        }

    def _in_chunk(
        self, chunk: bytes, source: str, first: int, found: _Found, memory: _Memory
    ) -> None:
        for text, words in zip(memory.fresh(chunk), (self._by_digits, self._by_shape), strict=True):
            for index, start, end in words.lines(text, found, found.may_match):
                if found.note(index, text[start:end], source):
                    found.place(index, first + _line_of(text[start:end], chunk))
        self._after_others(chunk, source, first, found)
        plain = unescaped(chunk)
        if plain is None:
            return
        for text, words in zip(memory.fresh(plain), (self._by_digits, self._by_shape), strict=True):
            for index, start, end in words.lines(text, found, found.may_match):
                if found.note(index, text[start:end], source):
                    found.place(index, first + _escaped_line_of(text[start:end], chunk))

    def _after_others(self, chunk: bytes, source: str, first: int, found: _Found) -> None:
        for index, earlier in self._after.items():
            if index in found or found.isdisjoint(earlier) or not found.may_match(index, chunk):
                continue
            for number, line in enumerate(chunk.split(b"\n"), start=first):
                if found.note(index, line, source):
                    found.place(index, number)
                    break

    def _in_wrapped(self, lines: Sequence[bytes], source: str, found: _Found) -> None:
        for number, joined in unwrapped(lines):
            if found.work.is_over:
                return
            for words in (self._by_digits, self._by_shape):
                for index, start, end in words.lines(joined, found, found.may_match):
                    if found.note(index, joined[start:end], source, joined=True):
                        found.place(index, number)


class _Memory:
    """The lines that stood before, and their shapes: a log says the same again and again."""

    def __init__(self) -> None:
        self._lines: set[bytes] = set()
        self._shapes: set[bytes] = set()

    def fresh(self, text: bytes) -> tuple[bytes, bytes]:
        """The lines that were not there before, and those of them that differ from all before in
        more than digits. They are remembered from now on.
        """
        for known in (self._lines, self._shapes):
            if len(known) > _MEMORY_LIMIT:
                known.clear()
        lines: dict[bytes, None] = {}
        shapes: dict[bytes, bytes] = {}
        pairs = zip(text.split(b"\n"), text.translate(_SHAPE).split(b"\n"), strict=True)
        for line, shape in pairs:
            if line not in self._lines:
                lines[line] = None
                if shape not in self._shapes:
                    shapes.setdefault(shape, line)
        self._lines.update(lines)
        self._shapes.update(shapes)
        return b"\n".join(lines), b"\n".join(shapes.values())


class _Words:
    """The words that some of the patterns need, all in one automaton."""

    def __init__(self, patterns: Sequence[str], indexes: Sequence[int]) -> None:
        from ahocorasick_rs import BytesAhoCorasick

        needs = [needs_of(patterns[index]) for index in indexes]
        words = sorted({word for each in needs for need in each for word in need})
        numbers = {word: number for number, word in enumerate(words)}
        self._needs = {
            index: [{numbers[word] for word in need} for need in each]
            for index, each in zip(indexes, needs, strict=True)
        }
        self._beside = {
            index: [[word.encode("latin-1") for word in need] for need in beside(patterns[index])]
            for index in indexes
        }
        self._telling: list[list[int]] = [[] for _ in words]
        for index, each in self._needs.items():
            for word in each[0]:
                self._telling[word].append(index)
        self._automaton = BytesAhoCorasick([word.encode("latin-1") for word in words])

    def lines(
        self, text: bytes, found: Container[int], may_match: Callable[[int, bytes], bool]
    ) -> Iterator[tuple[int, int, int]]:
        """Each pattern not found yet, with the start and end of each line that it may match.

        Such a line holds a word of its most telling need, and the text words of all its needs.
        Where these are many lines, `may_match` says beforehand whether the text is worth it.
        """
        lower = text.lower()
        places = self._automaton.find_matches_as_indexes(lower, overlapping=True)
        held = {word for word, _, _ in places}
        holds = functools.cache(lower.__contains__)
        telling: dict[int, list[int]] = {}
        for word in held:
            wanted = [
                index
                for index in self._telling[word]
                if index not in found
                and not any(map(held.isdisjoint, self._needs[index]))
                and all(any(map(holds, need)) for need in self._beside[index])
            ]
            if wanted:
                telling[word] = wanted
        starts: dict[int, set[int]] = {}
        for word, place, _ in places:
            if word in telling:
                start = text.rfind(b"\n", 0, place) + 1
                for index in telling[word]:
                    starts.setdefault(index, set()).add(start)
        for index, its_starts in starts.items():
            if len(its_starts) < _MANY or may_match(index, text):
                for start in sorted(its_starts):
                    if index not in found:
                        yield index, start, _end(text, start)


class _Found:
    """Hits by pattern: the first line of each."""

    def __init__(self, patterns: Sequence[str], work: Work) -> None:
        self._patterns = patterns
        self.work = work
        self._first: dict[int, Hit] = {}

    def __contains__(self, index: object) -> bool:
        return index in self._first

    def isdisjoint(self, indexes: Iterable[int]) -> bool:
        return self._first.keys().isdisjoint(indexes)

    def may_match(self, index: int, text: bytes) -> bool:
        """Whether the pattern matches in the text, be it from one line into the next."""
        self.work.try_on(text)
        return _compiled(self._patterns[index]).search(text) is not None

    def note(self, index: int, line: bytes, source: str, *, joined: bool = False) -> bool:
        """Keep the line if the pattern matches it, and say whether it does."""
        self.work.try_on(line)
        match = _compiled(self._patterns[index]).search(line)
        if match is None:
            return False
        self._first[index] = _hit(line, match, source, 0, joined=joined)
        return True

    def place(self, index: int, number: int) -> None:
        """Where the line stands, which is counted for lines that were kept only."""
        self._first[index] = replace(self._first[index], number=number)

    def hits(self) -> dict[str, Hit]:
        return {self._patterns[index]: hit for index, hit in self._first.items()}


def _hit(line: bytes, match: Any, source: str, number: int, *, joined: bool = False) -> Hit:  # noqa: ANN401  re2 is untyped
    return Hit(
        line=_shown(line, match.span()),
        source=source,
        number=number,
        groups=_groups(match.groupdict()),
        joined=joined,
    )


class Lines:
    """Lines that any of a few patterns matches."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._any = _compiled("|".join(f"(?:{pattern})" for pattern in patterns))

    def in_chunk(self, chunk: bytes) -> Iterator[tuple[int, int]]:
        """The start and end of each line that matches."""
        place = 0
        while (match := self._any.search(chunk, place)) is not None:
            last = match.end() - match.group().endswith(b"\n")  # a blank may be the line's end
            start = chunk.rfind(b"\n", 0, last) + 1
            place = _end(chunk, last)
            yield start, place

    def match(self, line: bytes) -> bool:
        """Whether a line does."""
        return self._any.search(line) is not None


def problem(pattern: str) -> str | None:
    """Why this pattern cannot be used, or None. RE2 has no look-around and no back-references."""
    import re2

    try:
        _compiled(pattern)
        needs_of(pattern)
    except re2.error as error:
        why = error.args[0]
        return why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
    except ValueError as error:
        return str(error)
    return None


def searched(pattern: str, text: str) -> bool:
    """Whether the text holds the pattern."""
    return _compiled(pattern).search(text.encode("utf-8")) is not None


def _end(text: bytes, place: int) -> int:
    end = text.find(b"\n", place)
    return len(text) if end < 0 else end


def _line_of(line: bytes, chunk: bytes) -> int:
    """The number, from 0, of the first line that is this one."""
    return chunk.split(b"\n").index(line)


def _escaped_line_of(plain: bytes, chunk: bytes) -> int:
    """The number, from 0, of the line whose escapes, undone, hold this one."""
    return _escaped_lines(chunk).get(plain, 0)


@functools.lru_cache(maxsize=1)
def _escaped_lines(chunk: bytes) -> Mapping[bytes, int]:
    found: dict[bytes, int] = {}
    for number, line in enumerate(chunk.split(b"\n")):
        for plain in (unescaped(line) or b"").split(b"\n"):
            found.setdefault(plain, number)
    return found


def _shown(line: bytes, span: tuple[int, int]) -> str:
    """The line as evidence: printable, and around the match where it is long."""
    start = max(0, span[0] - 60) if len(line) > _EVIDENCE_LIMIT else 0
    if start and not line[start - 1 : start].isspace():
        start = line.find(b" ", start, span[0]) + 1 or start
    text = line[start : start + 2 * _EVIDENCE_LIMIT].decode("utf-8", "replace")
    text = " ".join(printable(text, instead=" ").split())
    return shortened(f"... {text}" if start else text, _EVIDENCE_LIMIT)


def _groups(named: Mapping[bytes, bytes | None]) -> dict[str, str]:
    return {k.decode(): printable(v.decode("utf-8", "replace")) for k, v in named.items() if v}


@functools.cache
def _compiled(pattern: str) -> Any:  # noqa: ANN401  re2 is untyped
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return re2.compile(f"(?m){pattern}".encode("latin-1"), options)
