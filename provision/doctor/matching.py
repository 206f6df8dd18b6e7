"""Which patterns of the knowledge a text holds, and where.

All patterns are one RE2 set: an automaton that reads each byte once, whatever the patterns and
whatever the text, so no log can make it hang. A large piece of text is asked first; its lines are
looked at only where the piece holds something.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

from provision.doctor.model import Hit
from provision.doctor.reading import chunks, pieces, unescaped

if TYPE_CHECKING:
    from collections.abc import Iterable

_EVIDENCE_LIMIT = 300
# Texts that are wrapped were pasted from a terminal or a mail; no log of a machine is.
_WRAPPED_LIMIT = 1 << 20
_WRAP_FROM, _WRAP_TO = 56, 78
_MEMORY_BYTES = 256 << 20


class Patterns:
    """Patterns, compiled once for any number of texts."""

    def __init__(self, patterns: Iterable[str]) -> None:
        import re2

        self._patterns = tuple(dict.fromkeys(patterns))
        self._set: Any = re2.Set.SearchSet(_options())
        for pattern in self._patterns:
            self._set.Add(_lines(pattern))
        self._set.Compile()

    def in_text(self, stream: BinaryIO, source: str) -> dict[str, Hit]:
        """The first hit of every pattern that the text holds, and how often it came."""
        found = _Found(self._patterns)
        number = 1
        kept: list[bytes] = []
        kept_bytes = 0
        for chunk in chunks(stream):
            plain = unescaped(chunk)
            if self._found(chunk) or (plain is not None and self._found(plain)):
                self._in_lines(chunk.split(b"\n"), source, number, found)
            number += chunk.count(b"\n")
            kept_bytes += len(chunk)
            if kept_bytes <= _WRAPPED_LIMIT:
                kept.append(chunk)
        if kept_bytes <= _WRAPPED_LIMIT:
            self._in_wrapped(b"".join(kept).split(b"\n"), source, found)
        return found.hits()

    def _in_lines(
        self, lines: Sequence[bytes], source: str, first: int, found: _Found
    ) -> None:
        for number, line in enumerate(lines, first):
            for part in pieces(line):
                indexes = self._found(part)
                if indexes:
                    found.note(indexes, part, source, number)
                plain = unescaped(part)
                for inner in plain.split(b"\n") if plain is not None else ():
                    found.note(set(self._found(inner)) - set(indexes), inner, source, number)

    def _in_wrapped(self, lines: Sequence[bytes], source: str, found: _Found) -> None:
        alone = found.indexes()
        for number, joined in unwrapped(lines):
            new = set(self._found(joined)) - alone
            found.note(new, joined, source, number, joined=True)

    def _found(self, text: bytes) -> Sequence[int]:
        return self._set.Match(text) or ()


class _Found:
    """Hits by pattern. The first line is kept, the others are counted."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._first: dict[int, Hit] = {}
        self._counts: Counter[int] = Counter()

    def note(
        self,
        indexes: Iterable[int],
        line: bytes,
        source: str,
        number: int,
        *,
        joined: bool = False,
    ) -> None:
        for index in indexes:
            self._counts[index] += 1
            if index not in self._first:
                span, groups = _groups(self._patterns[index], line)
                shown = _shown(line, span)
                self._first[index] = Hit(
                    line=shown, source=source, number=number, groups=groups, joined=joined
                )

    def indexes(self) -> set[int]:
        return set(self._first)

    def hits(self) -> dict[str, Hit]:
        return {
            self._patterns[index]: replace(hit, count=self._counts[index])
            for index, hit in self._first.items()
        }


def problem(pattern: str) -> str | None:
    """Why RE2 refuses this pattern, or None. It has no look-around and no back-references."""
    import re2

    try:
        _compiled(pattern)
    except re2.error as error:
        why = error.args[0]
        return why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
    return None


def searched(pattern: str, text: str) -> bool:
    """Whether the text holds the pattern."""
    return _compiled(pattern).search(text.encode("utf-8")) is not None


def unwrapped(lines: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines that a terminal or a mail may have broken, put together again, both ways: with a blank
    between them, and without. Each with the number of its first line.
    """
    longest = max(map(len, lines), default=0)
    width = min(longest, _WRAP_TO)
    for i, line in enumerate(lines[:-1]):
        together = [line.rstrip()]
        for following in lines[i + 1 : i + 4]:
            end = together[-1]
            word = following.split(maxsplit=1)[0] if following.strip() else b""
            if len(end) < _WRAP_FROM or not word or len(end) + 1 + len(word) <= width:
                break
            together.append(following.strip(b" \t|\r"))
        if len(together) > 1:
            yield i + 1, b" ".join(together)
            yield i + 1, b"".join(together)


def _shown(line: bytes, span: tuple[int, int]) -> str:
    """The line as evidence: printable, and around the match where it is long."""
    start = max(0, span[0] - 60) if len(line) > _EVIDENCE_LIMIT else 0
    text = line[start : start + 2 * _EVIDENCE_LIMIT].decode("utf-8", "replace")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= _EVIDENCE_LIMIT else text[: _EVIDENCE_LIMIT - 3] + "..."


def _groups(pattern: str, line: bytes) -> tuple[tuple[int, int], dict[str, str]]:
    match = _compiled(pattern).search(line)
    if match is None:  # the set found it, so this does not happen
        return (0, 0), {}
    named = match.groupdict().items()
    return match.span(), {k.decode(): v.decode("utf-8", "replace") for k, v in named if v}


def _lines(pattern: str) -> str:
    return f"(?m){pattern}"


@functools.cache
def _compiled(pattern: str) -> Any:  # noqa: ANN401  re2 is untyped
    import re2

    return re2.compile(_lines(pattern).encode("latin-1"), _options())


def _options() -> Any:  # noqa: ANN401
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES
    return options
