"""Suggestions for a name that does not exist: similar files next to it, similar known names."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path

_MOST_NAMES = 5_000  # read from a directory; the rest of a larger one is ignored
_MOST_SHOWN = 3
_ALIKE = 0.65


def no_such(kind: str, path: Path | str, *, option: str = "") -> str:
    """A sentence saying that there is no such file, or no such directory. `kind`: "lock"."""
    folder = Path(path).expanduser().parent
    missing = "" if folder.is_dir() else f": the directory {folder} does not exist"
    if option:
        return f"{option} {path}: there is no such {kind}{missing}."
    return f"There is no {kind} {path}{missing}."


def or_nearby(
    path: Path | str, otherwise: str, *, keep: Callable[[Path], bool] = lambda _: True
) -> str:
    """A fix: the files next to it with similar names, else `otherwise`. `keep` says whether a file
    is a candidate.
    """
    place = Path(path).expanduser()
    names = [name for name in _names_in(place.parent) if not name.startswith(".")]
    near = [name for name in alike(place.name, names) if keep(place.parent / name)]
    return did_you_mean([str(Path(path).parent / name) for name in near]) or otherwise


def did_you_mean(names: Iterable[str]) -> str:
    """A question, or an empty string if there are no names."""
    shown = list(names)[:_MOST_SHOWN]
    return f"Did you mean {' or '.join(shown)}?" if shown else ""


def alike(wanted: str, known: Iterable[str]) -> list[str]:
    """The known names with a similar spelling or the same beginning; the most similar first."""
    from difflib import SequenceMatcher

    stem, _, ending = wanted.lower().rpartition(".")
    likeness: dict[str, float] = {}
    for name in known:
        low = name.lower()
        ratio = SequenceMatcher(None, wanted.lower(), low).ratio()
        if stem and low.endswith(f".{ending}"):  # a shared suffix does not count as similar
            ratio = SequenceMatcher(None, stem, low.rpartition(".")[0]).ratio()
        begins_so = bool(wanted) and low.startswith(wanted.lower())
        if begins_so or ratio >= _ALIKE:
            likeness[name] = ratio
    return sorted(likeness, key=lambda name: (-likeness[name], name))[:_MOST_SHOWN]


def _names_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in itertools.islice(entries, _MOST_NAMES))
    except (OSError, ValueError):
        return []
