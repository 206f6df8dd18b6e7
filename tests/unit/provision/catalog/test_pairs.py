"""Packages for certain releases of PyTorch of which only the catalog says so."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from provision.catalog.loading import load
from provision.catalog.pairs import may_go_with, pairs_of, versions_for

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
        pytest.param("==0.0.1", "", id="before all"),
    ],
)
def test_torchcodec_goes_with_these_releases_alone(wanted: str, releases: str) -> None:
    limits = SpecifierSet(wanted)
    found = [one for one in RELEASES if may_go_with("torchcodec", limits, one)]
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
