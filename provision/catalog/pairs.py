"""Packages whose releases are for certain releases or builds of PyTorch, although no metadata says
so.

torchcodec 0.2 has libraries for PyTorch 2.6 and requires any: beside another one they do not load.
bitsandbytes 0.41 has a library for each CUDA up to 12.2, and takes only the one for PyTorch's own.
The rows are in `data/pairs.json`, each with its source. What a package requires in its metadata
(xformers) needs no row: installers know it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from images.text.data import data_table

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

_table = data_table(__file__, "pairs.json")


class TorchPair(NamedTuple):
    """These `versions` of a package work with these releases of `torch`."""

    versions: SpecifierSet
    torch: SpecifierSet
    source: str


@cache
def pairs_of(package: str) -> tuple[TorchPair, ...]:
    """The pairs of a package, the oldest first; () if its metadata says what it needs."""
    from packaging.specifiers import SpecifierSet

    table = _table()
    return tuple(
        TorchPair(
            SpecifierSet(row["versions"], prereleases=True),
            SpecifierSet(row["torch"], prereleases=True),
            table["sources"][row["source"]],
        )
        for row in table["pairs"]
        if row["package"] == package
    )


def versions_for(package: str, release: str) -> str | None:
    """The versions of a package for a release of PyTorch: ">=0.3,<0.6". None: any, or unknown."""
    fitting = [pair.versions for pair in pairs_of(package) if release in pair.torch]
    return ",".join(sorted(map(str, fitting[-1]), reverse=True)) if fitting else None


def may_go_with(package: str, wanted: SpecifierSet, release: str) -> bool:
    """Whether a version that is wanted of a package works with a release of PyTorch; True if
    nothing is known of these versions.
    """
    pairs = [pair for pair in pairs_of(package) if _overlap(wanted, pair.versions)]
    return not pairs or any(release in pair.torch for pair in pairs)


def exact_cudas(package: str, release: str) -> Mapping[str, tuple[str, ...]] | None:
    """The CUDAs that a package has a library for, by the first of its releases with these, if the
    release takes only the library for exactly PyTorch's CUDA. None: it takes the nearest, or
    nothing is known of it.
    """
    row = next((row for row in _table()["exact"] if row["package"] == package), None)
    if row is None or Version(release) >= Version(row["until"]):
        return None
    return {first: tuple(cudas.split()) for first, cudas in row["cudas"].items()}


def cudas_beside(cudas: Sequence[str], cuda: str) -> str:
    """The CUDAs of a package in words, for one that is not among them: "13", "11.0 to 12.2"; each
    of them ("11.5, 11.7") if that one is between the first and the last.
    """
    first, last = cudas[0], cudas[-1]
    if numbers_of(first) < numbers_of(cuda) < numbers_of(last):
        return ", ".join(cudas)
    return first if first == last else f"{first} to {last}"


def numbers_of(cuda: str) -> tuple[int, ...]:
    """The numbers of a CUDA, to compare: 12.8 -> (12, 8)."""
    return tuple(map(int, cuda.split(".")))


def _overlap(one: SpecifierSet, other: SpecifierSet) -> bool:
    """Whether a version is in both. If one is, so is the lower bound of either, or what follows."""
    bounds = [clause.version.removesuffix(".*") for clause in (*one, *other)]
    tried = [version for bound in bounds for version in (bound, f"{bound.partition('+')[0]}.0.1")]
    return any(one.contains(v, prereleases=True) and v in other for v in tried)
