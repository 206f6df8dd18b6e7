"""Keys and tokens of services by their public formats: what no image and no log may have.

The formats are in `data/tokens.json`, each with its source.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from images.text.data import data_table

_LEAST_BITS = 3.0  # of entropy a character, as gitleaks asks of most tokens


class FoundSecret(NamedTuple):
    """A secret in a text: its line, from 1, and what it is ("a token of GitHub")."""

    line: int
    kind: str


class _Format(NamedTuple):
    kind: str
    starts: tuple[str, ...]
    pattern: re.Pattern[str]


_data = data_table(__file__, "tokens.json")


@cache
def _formats() -> tuple[_Format, ...]:
    return tuple(
        _Format(
            row["kind"],
            tuple(row["starts"]),
            re.compile(rf"(?<![A-Za-z0-9])(?:{_any(row['starts'])})(?P<rest>{row['rest']})(?!\w)"),
        )
        for row in _data()["tokens"]
    )


def _any(starts: list[str]) -> str:
    return "|".join(map(re.escape, starts))


@cache
def token_pattern() -> str:
    """A regular expression for tokens that are one word, without groups."""
    rows = (row for row in _data()["tokens"] if not re.compile(row["rest"]).groups)
    return "|".join(f"(?:{_any(row['starts'])})(?:{row['rest']})" for row in rows)


@cache
def _quick() -> Any:  # noqa: ANN401  re2 is untyped
    """What tokens start with: ten times as fast as `re`, which then reads only what it finds."""
    import re2

    starts = [start for row in _data()["tokens"] for start in row["starts"]]
    return re2.compile(_any(starts).encode())


def find_tokens(content: bytes) -> Iterator[FoundSecret]:
    """The tokens in a text; what stands for one in documentation ("hf_xxxx") is none."""
    seen = tuple({found[0].decode() for found in _quick().finditer(content)})
    text = content.decode("utf-8", "replace") if seen else ""
    for kind, starts, pattern in _formats() if seen else ():
        if any(start.startswith(seen) for start in starts):
            for found in pattern.finditer(text):
                groups = found.groups()  # the whole rest, and the random part of it if it has one
                if not is_placeholder(groups[-1]):
                    yield FoundSecret(line_at(text, found.start()), kind)


def line_at(text: str, position: int) -> int:
    """The number of the line of a position, from 1."""
    return text.count("\n", 0, position) + 1


def is_placeholder(word: str) -> bool:
    """Whether a word stands for a secret and is none: it says so, or repeats itself."""
    low = word.lower()
    return (
        any(part in low for part in _data()["made_up"])
        or re.search(r"(.)\1{5}", word) is not None
        or _entropy(word) < _LEAST_BITS
    )


def _entropy(word: str) -> float:
    """Shannon's entropy, in bits a character."""
    shares = [count / len(word) for count in Counter(word).values()]
    return -sum(share * math.log2(share) for share in shares)
