"""Orders Debian's version numbers, as dpkg does.

https://www.debian.org/doc/debian-policy/ch-controlfields.html#version
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

_PARTS = re.compile(r"(\D*)(\d*)")
_END = 0

OPERATORS: dict[str, Callable[[int], bool]] = {
    "<<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    "=": lambda order: order == 0,
    ">=": lambda order: order >= 0,
    ">>": lambda order: order > 0,
}
"""Version relations as in package indexes, as functions of `compare`'s result."""


def compare(one: str, other: str) -> int:
    """Return a negative number, 0 or a positive one: `one` is older, equal or newer."""
    left, right = _key(one), _key(other)
    return (left > right) - (left < right)


@functools.lru_cache(maxsize=4096)
def _key(version: str) -> tuple[int, tuple[object, ...], tuple[object, ...]]:
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    number = int(epoch) if epoch.isdigit() else 0
    return number, _order(upstream), _order(revision or "0")  # no revision is revision 0


def _order(text: str) -> tuple[object, ...]:
    """Split into alternating letters and numbers. Among letters, "~" sorts before the end of the
    text, and letters before all other characters.
    """
    found: list[object] = []
    for letters, digits in _PARTS.findall(text):
        found.append((*(_rank(letter) for letter in letters), _END))
        found.append(int(digits or "0"))
    return tuple(found)


def _rank(letter: str) -> int:
    if letter == "~":
        return -1
    return ord(letter) if letter.isalpha() else ord(letter) + 256
