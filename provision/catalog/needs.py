"""What packages need when they run that no wheel brings: a compiler, FFmpeg, libGL, git.

No metadata says so, and an installer does not see it. The rows are in `data/needs.json`, each with
its source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

from images.text.data import data_table

_table = data_table(__file__, "needs.json")

Kind: TypeAlias = Literal["compiler", "nvcc", "ffmpeg", "libgl", "libpython", "git"]


class NeedKind(NamedTuple):
    """A kind of need in words ("FFmpeg"), the packages of Debian that have it, and whether the
    full official images of Python do, and the slim ones.
    """

    words: str
    debian: tuple[str, ...]
    in_full_image: bool
    in_slim_image: bool


class RunTimeNeed(NamedTuple):
    """A package needs something when it runs. `because`: "compiles its CUDA code when it is first
    used"; `instead`: what can be requested in its place, with the same modules and without it.
    """

    package: str
    kind: Kind
    because: str
    instead: str | None = None


def needs_of(packages: Iterable[str], requested: Collection[str]) -> tuple[RunTimeNeed, ...]:
    """What these packages of an image need, by their canonical names. Of those that were not
    requested only what the package cannot do without counts.
    """
    names = dict.fromkeys(packages)
    return tuple(
        RunTimeNeed(
            name,
            kind,
            row["because"],
            row.get("instead") if name in requested else None,
        )
        for name in names
        if (row := _rows().get(name)) and row.get("unless") not in names
        for kind in row["needs" if name in requested else "brought"]
    )


class Together(NamedTuple):
    """A machine with all facts of `has` needs those of `needs`: by fact a range of versions, or ""
    for what is so. `because` is a sentence, `source` an address.
    """

    has: Mapping[str, str]
    needs: Mapping[str, str]
    because: str
    source: str


def together() -> Iterator[Together]:
    """What goes together on a machine, of the parts that no other table has."""
    for row in _table()["together"]:
        source = _table()["sources"][row["source"]]
        yield Together(row["has"], row["needs"], row["because"], source)


def is_known(package: str) -> bool:
    """Whether the table says what a package needs, which may be nothing."""
    return package in _rows()


@cache
def kind_of(kind: Kind) -> NeedKind:
    """What is known of a kind."""
    row = next(row for row in _table()["kinds"] if row["kind"] == kind)
    return NeedKind(row["words"], tuple(row["debian"]), row["image"], row.get("slim", False))


def debian_packages(kinds: Iterable[Kind]) -> tuple[str, ...]:
    """The packages of Debian that have what these kinds name, sorted."""
    found: Sequence[str] = [name for kind in kinds for name in kind_of(kind).debian]
    return tuple(sorted({*found}))


@cache
def _rows() -> dict[str, Any]:
    return {row["package"]: row for row in _table()["packages"]}
