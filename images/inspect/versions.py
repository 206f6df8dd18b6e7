"""Compares symbol versions: "GLIBC_2.34" is the series GLIBC and a number."""

from __future__ import annotations

import re
from collections.abc import Sequence

from images.inspect.tree import ImageFile

_SERIES = re.compile(r"(?P<series>[A-Za-z]+(?:_[A-Za-z]+)*)_(?P<number>\d+(?:\.\d+)*)")


def numbered(version: str) -> tuple[str, tuple[int, ...]] | None:
    """Split "GLIBC_2.34" into series and number; None if it has another form."""
    match = _SERIES.fullmatch(version)
    if match is None or len(match["number"]) > 40:
        return None
    return match["series"], tuple(int(part) for part in match["number"].split("."))


def newest_of(version: str, have: Sequence[str]) -> str | None:
    """The newest available version of the same series."""
    wanted = numbered(version)
    same = [
        (found[1], text)
        for text in have
        if wanted and (found := numbered(text)) and found[0] == wanted[0]
    ]
    return max(same)[1] if same else None


def newest_asked(elves: Sequence[tuple[str, ImageFile]]) -> dict[str, str]:
    """The newest version of glibc and of GCC's C++ library that the files require, and which file
    does: "GLIBC_2.34 (by /x.so)".
    """
    best: dict[str, tuple[tuple[int, ...], str, str]] = {}
    for path, file in elves:
        assert file.elf is not None
        for versions in file.elf.versions.values():
            for version in versions:
                found = numbered(version)
                if found and found[0] in {"GLIBC", "GLIBCXX", "CXXABI"}:
                    row = found[1], version, path
                    best[found[0]] = max(best.get(found[0], row), row)
    return {series: f"{row[1]} (by {row[2]})" for series, row in sorted(best.items())}
