"""Compares versions, and checks them against PEP 440 specifier sets, without slow parsing.

`packaging.specifiers` takes longer to import than a plan takes to make, and a plan needs only plain
comparisons of final and post-releases (">=12.1.105", "<13.0"), which are done here. It handles
everything else: ">", for example, which excludes the post-releases of its version.
Source: https://packaging.python.org/en/latest/specifications/version-specifiers/
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache, lru_cache

from packaging.version import Version

_COMPARISONS: Mapping[str, Callable[[Version, Version], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
}


@cache
def version(text: str) -> Version:
    """A parsed version, cached: the same few strings occur again and again."""
    return Version(text)


def driver_is_at_least(driver: str, floor: str) -> bool:
    """Whether a driver is as new as another. One that has fewer numbers ("535") is the newest whose
    number begins so.
    """
    given = version(driver).release
    return given >= version(floor).release[: len(given)]


@lru_cache(maxsize=2048)
def within(release: str, specifier: str) -> bool:
    """Whether the specifier set allows this release; "" allows every one."""
    clauses = [_plain(clause) for clause in specifier.split(",")] if specifier else []
    final, _, post = release.partition(".post")
    if _is_plain(final) and _is_plain(post or "0") and None not in clauses:
        number = version(release)
        return all(compare(number, bound) for compare, bound in filter(None, clauses))
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(release)


@cache
def _plain(clause: str) -> tuple[Callable[[Version, Version], bool], Version] | None:
    clause = clause.strip()
    for sign, compare in _COMPARISONS.items():
        bound = clause.removeprefix(sign).strip()
        if clause.startswith(sign):
            return (compare, version(bound)) if _is_plain(bound) else None
    return None


def _is_plain(text: str) -> bool:
    """Digits and single dots: a final release without a local part."""
    return all(part.isascii() and part.isdigit() for part in text.split("."))
