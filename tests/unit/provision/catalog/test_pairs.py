"""Packages for certain releases of PyTorch of which only the catalog says so."""

from __future__ import annotations

import pytest
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

RELEASES = [
    *("2.3.1", "2.4.1", "2.5.1", "2.6.0", "2.7.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0"),
    *("2.14.1", "3.0.0"),
]


@pytest.mark.parametrize(
    ("wanted", "releases"),
    [
        pytest.param("==0.4.0", "2.7.0 2.7.1", id="one minor version of PyTorch"),
        pytest.param("==0.4.*", "2.7.0 2.7.1", id="any patch"),
        pytest.param("==0.9.1+cu126", "2.9.1", id="with a build"),
        pytest.param(">=0.7,<0.9", "2.8.0 2.9.1", id="two minor versions"),
        pytest.param("<0.3", "2.4.1 2.5.1 2.6.0", id="no lower bound"),
        pytest.param(">0.10", "2.10.0 2.11.0 2.14.1 3.0.0", id="more than a version"),
        pytest.param("~=0.9.1", "2.9.1", id="compatible releases"),
        pytest.param("==0.13.0", "2.11.0 2.14.1 3.0.0", id="a stable ABI"),
        pytest.param("", " ".join(RELEASES[1:]), id="any version"),
        pytest.param("==0.0.1", " ".join(RELEASES), id="before all: nothing is known of it"),
    ],
)
def test_torchcodec_goes_with_these_releases_alone(wanted: str, releases: str) -> None:
    limits = SpecifierSet(wanted)
    found = [one for one in RELEASES if may_go_with("torchcodec", limits, one)]
    assert found == releases.split()


@pytest.mark.parametrize(
    ("package", "wanted", "releases"),
    [
        pytest.param("torchtext", "==0.18.0", "2.3.1", id="the last torchtext"),
        pytest.param("torchtext", "", "2.3.1", id="any torchtext"),
        pytest.param(
            "torchtext", "==0.6.0", " ".join(RELEASES), id="a torchtext without libraries"
        ),
        pytest.param("fbgemm-gpu", "==1.2.0", "2.7.0 2.7.1", id="one minor version of fbgemm-gpu"),
        pytest.param("fbgemm-gpu", ">=1.8", "2.14.1", id="more than a version of fbgemm-gpu"),
        pytest.param("fbgemm-gpu", "==7.0", " ".join(RELEASES), id="after all"),
    ],
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


@pytest.mark.parametrize(
    ("cudas", "cuda", "words"),
    [
        pytest.param("13", "12.6", "13", id="one"),
        pytest.param("11.7 11.8 12.1", "12.4", "11.7 to 12.1", id="an older CUDA is the last"),
        pytest.param("11.7 11.8 12.1", "11.6", "11.7 to 12.1", id="a newer CUDA is the first"),
        pytest.param("11.5 11.7 12.1", "11.6", "11.5, 11.7, 12.1", id="it has a gap"),
        pytest.param("11 13", "12.6", "11, 13", id="major versions with a gap"),
    ],
)
def test_the_cudas_are_named_so_that_the_missing_one_is_not_among_them(
    cudas: str, cuda: str, words: str
) -> None:
    assert cudas_beside(cudas.split(), cuda) == words


@pytest.mark.parametrize(
    ("package", "release", "cudas"),
    [
        pytest.param("bitsandbytes", "0.41.0", "12.2", id="up to 12.2"),
        pytest.param("bitsandbytes", "0.43.0", "12.3", id="the first of its row"),
        pytest.param("bitsandbytes", "0.43.3", "12.5", id="within a row"),
        pytest.param("bitsandbytes", "0.49.2", "13.0", id="the last that takes exactly one"),
        pytest.param("bitsandbytes", "0.39.1", "", id="exactly one of those in the wheel"),
        pytest.param("bitsandbytes", "0.50.0", None, id="it takes the nearest"),
        pytest.param("torch-memory-saver", "0.0.10", None, id="not in the table"),
    ],
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
