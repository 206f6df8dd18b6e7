"""Packages for certain releases of PyTorch of which only the catalog says so."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from provision.catalog.loading import load
from provision.catalog.pairs import (
    cudas_beside,
    exact_cudas,
    may_go_with,
    numbers_of,
    pairs_of,
    versions_for,
)
from tests.kit.cases import cases

RELEASES = [
    *("2.3.1", "2.4.1", "2.5.1", "2.6.0", "2.7.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0"),
    *("2.14.1", "3.0.0"),
]


@cases(
    "wanted releases",
    ("one minor version of PyTorch", "==0.4.0", "2.7.0 2.7.1"),
    ("any patch", "==0.4.*", "2.7.0 2.7.1"),
    ("with a build", "==0.9.1+cu126", "2.9.1"),
    ("two minor versions", ">=0.7,<0.9", "2.8.0 2.9.1"),
    ("no lower bound", "<0.3", "2.4.1 2.5.1 2.6.0"),
    ("more than a version", ">0.10", "2.10.0 2.11.0 2.14.1 3.0.0"),
    ("compatible releases", "~=0.9.1", "2.9.1"),
    ("a stable ABI", "==0.13.0", "2.11.0 2.14.1 3.0.0"),
    ("any version", "", " ".join(RELEASES[1:])),
    ("before all: nothing is known of it", "==0.0.1", " ".join(RELEASES)),
)
def test_torchcodec_goes_with_these_releases_alone(wanted: str, releases: str) -> None:
    limits = SpecifierSet(wanted)
    found = [one for one in RELEASES if may_go_with("torchcodec", limits, one)]
    assert found == releases.split()


@cases(
    "package wanted releases",
    ("the last torchtext", "torchtext", "==0.18.0", "2.3.1"),
    ("any torchtext", "torchtext", "", "2.3.1"),
    ("a torchtext without libraries", "torchtext", "==0.6.0", " ".join(RELEASES)),
    ("one minor version of fbgemm-gpu", "fbgemm-gpu", "==1.2.0", "2.7.0 2.7.1"),
    ("more than a version of fbgemm-gpu", "fbgemm-gpu", ">=1.8", "2.14.1"),
    ("after all", "fbgemm-gpu", "==7.0", " ".join(RELEASES)),
)
def test_others_go_with_these_releases_alone(package: str, wanted: str, releases: str) -> None:
    limits = SpecifierSet(wanted)
    found = [one for one in RELEASES if may_go_with(package, limits, one)]
    assert found == releases.split()


def test_a_package_that_says_what_it_needs_itself_has_no_pairs() -> None:
    assert pairs_of("xformers") == ()
    assert versions_for("xformers", "2.7.1") is None
    assert may_go_with("xformers", SpecifierSet("==0.0.28"), "2.6.0")


def test_every_release_of_pytorch_since_the_first_has_versions() -> None:
    known = {row.version for row in load().torch_releases}
    first = pairs_of("torchcodec")[0].torch
    later = {one for one in known if not one.startswith(("1.", "2.0", "2.1.", "2.2.", "2.3."))}
    assert any(one in first for one in later)
    assert [one for one in sorted(later) if versions_for("torchcodec", one) is None] == []


@cases(
    "cudas cuda words",
    ("one", "13", "12.6", "13"),
    ("an older CUDA is the last", "11.7 11.8 12.1", "12.4", "11.7 to 12.1"),
    ("a newer CUDA is the first", "11.7 11.8 12.1", "11.6", "11.7 to 12.1"),
    ("it has a gap", "11.5 11.7 12.1", "11.6", "11.5, 11.7, 12.1"),
    ("major versions with a gap", "11 13", "12.6", "11, 13"),
)
def test_the_cudas_are_named_so_that_the_missing_one_is_not_among_them(
    cudas: str, cuda: str, words: str
) -> None:
    assert cudas_beside(cudas.split(), cuda) == words


@cases(
    "package release cudas",
    ("up to 12.2", "bitsandbytes", "0.41.0", "12.2"),
    ("the first of its row", "bitsandbytes", "0.43.0", "12.3"),
    ("within a row", "bitsandbytes", "0.43.3", "12.5"),
    ("the last that takes exactly one", "bitsandbytes", "0.49.2", "13.0"),
    ("exactly one of those in the wheel", "bitsandbytes", "0.39.1", ""),
    ("it takes the nearest", "bitsandbytes", "0.50.0", None),
    ("not in the table", "torch-memory-saver", "0.0.10", None),
)
def test_a_release_takes_only_the_library_for_exactly_the_framework_s_cuda(
    package: str, release: str, cudas: str | None
) -> None:
    rows = exact_cudas(package, release)
    if cudas is None:
        assert rows is None
        return
    assert rows is not None
    have = [found for first, found in rows.items() if Version(first) <= Version(release)]
    assert (have[-1][-1] if have else "") == cudas


def test_the_cudas_of_each_row_are_in_order_and_the_rows_too() -> None:
    rows = exact_cudas("bitsandbytes", "0.41.0")
    assert rows is not None
    assert list(rows) == sorted(rows, key=Version)
    assert all(list(cudas) == sorted(cudas, key=numbers_of) for cudas in rows.values())
