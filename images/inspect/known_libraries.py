"""Libraries that an image may need but not contain: those of the driver, of optional parts
and of Debian packages.

The rows are in `data/known_libraries.json`, each with its source. A name is a pattern, because the
version after it does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal

from images.text.data import data_table

Group = Literal["driver", "base", "optional", "debian"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLibraries:
    """Some libraries of a kind: patterns of names, what they are, and the source.

    "driver": an engine mounts them from the host. "base": a wheel may rely on them according to the
    manylinux policy. "optional": what needs them works without them, or is for some machines only;
    with `files`, only for files that one of these patterns fits, in or below any directory.
    "debian": `what` is the package that has them in Debian 11 to 13 and in Ubuntu.
    `symbols` are patterns of all that a driver's libraries export; empty if that is unknown.
    """

    group: Group
    names: tuple[str, ...]
    what: str
    source: str
    files: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()


@cache
def known_libraries() -> tuple[KnownLibraries, ...]:
    """Read the table."""
    groups: dict[Group, list[dict[str, object]]] = data_table(__file__, "known_libraries.json")()
    return tuple(
        KnownLibraries(
            group=group,
            names=tuple(map(str, _listed(row["names"]))),
            what=str(row["what"]),
            source=str(row["source"]),
            files=tuple(map(str, _listed(row.get("files", [])))),
            symbols=tuple(map(str, _listed(row.get("symbols", [])))),
        )
        for group, rows in groups.items()
        for row in rows
    )


@cache
def find_known(name: str, group: Group, file: str = "") -> KnownLibraries | None:
    """The row of this group for the library, and for the file that needs it; None without one."""
    for row in known_libraries():
        fits = not row.files or any(fnmatchcase(file, f"*/{pattern}") for pattern in row.files)
        if row.group == group and fits and any(fnmatchcase(name, one) for one in row.names):
            return row
    return None


def debian_packages(libraries: Iterable[str]) -> tuple[str, ...]:
    """The Debian packages that have these libraries, as far as the table knows, each once."""
    rows = (find_known(name, "debian") for name in libraries)
    return tuple(dict.fromkeys(row.what for row in rows if row is not None))


def _listed(found: object) -> list[object]:
    assert isinstance(found, list)
    return found
