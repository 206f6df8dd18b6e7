"""Which packages a base consists of: Debian's order of versions, and its relations."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.bootstrap.dependencies import Relation, choose_packages, parse_relations
from images.bootstrap.errors import BootstrapUnfitError
from images.bootstrap.index import PackageIndex
from images.bootstrap.versions import compare
from tests.kit.cases import cases

# Debian policy's own examples, and what the suites have; each line is in ascending order.
ORDERED = (
    ("1.0~~", "1.0~~a", "1.0~", "1.0", "1.0a"),
    ("1.0~rc1", "1.0", "1.0-1", "1.0-1+b1", "1.0-1.1"),
    ("2.36-9", "2.36-9+deb12u9", "2.36-9+deb12u14", "2.37-1"),
    ("1.9", "1.10", "1.100", "1:0.1", "2:0"),
    ("3.0.22-1~deb12u2", "3.0.22-1", "3.0.22-1+b1"),
    ("1.2.13.dfsg-1", "1.3.dfsg+really1.3.1-1+deb13u1"),
    ("1.0-1", "1.0+"),
)


@pytest.mark.parametrize("versions", ORDERED, ids=lambda versions: versions[-1])
def test_versions_are_ordered_as_dpkg_does(versions: tuple[str, ...]) -> None:
    for older, newer in itertools.pairwise(versions):
        assert compare(older, newer) < 0 < compare(newer, older)


@pytest.mark.parametrize(
    ("one", "other"), [("1.0", "1.0-0"), ("0:1", "1"), ("1.02", "1.2"), ("1", "1")]
)
def test_versions_that_are_written_differently_are_equal(one: str, other: str) -> None:
    assert compare(one, other) == 0


@given(st.text("01~+.a-:", max_size=8), st.text("01~+.a-:", max_size=8))
def test_an_order_is_an_order(one: str, other: str) -> None:
    assert compare(one, other) == -compare(other, one)
    assert compare(one, one) == 0


def test_relations_are_read_as_the_index_writes_them() -> None:
    text = "libc6 (>= 2.36), python3:any, debconf (>= 0.5) | debconf-2.0, x(<< 1)"
    assert parse_relations(text) == (
        (Relation("libc6", ">=", "2.36"),),
        (Relation("python3"),),
        (Relation("debconf", ">=", "0.5"), Relation("debconf-2.0")),
        (Relation("x", "<<", "1"),),
    )
    with pytest.raises(BootstrapUnfitError, match="could not be read"):
        parse_relations("a (>= )")


def index(*paragraphs: str) -> PackageIndex:
    """Each paragraph as "name version; Field: value; ..."."""
    texts = []
    for paragraph in paragraphs:
        head, *fields = paragraph.split("; ")
        name, version = head.split()
        lines = [f"Package: {name}", f"Version: {version}", *fields]
        lines += [f"Filename: pool/{name}.deb", "Size: 1", f"SHA256: {'0' * 64}"]
        texts.append("".join(f"{line}\n" for line in lines))
    return PackageIndex("\n".join(texts).encode(), base_url="http://m", shown="test")


APT = "apt 1"


@cases(
    "indexes named expected",
    ("what each Debian has", [(APT, "a 1; Essential: yes", "b 1; Priority: required", "c 1")], (),
        "a=1 apt=1 b=1"),
    ("what is needed, and what that needs", [(APT, "a 1; Depends: b, c (>= 1)",
        "b 1; Pre-Depends: d", "c 1", "d 1")], ("a",), "a=1 apt=1 b=1 c=1 d=1"),
    ("a circle", [(APT, "a 1; Depends: b", "b 1; Depends: a")], ("a",), "a=1 apt=1 b=1"),
    ("the first alternative that exists", [(APT, "a 1; Depends: x | b", "b 1")], ("a",),
        "a=1 apt=1 b=1"),
    ("an alternative that is there anyway", [(APT, "a 1; Depends: b | c", "b 1", "c 1",
        "d 1; Depends: c")], ("a", "d"), "a=1 apt=1 c=1 d=1"),
    ("a name that another provides", [(APT, "a 1; Depends: mta", "b 1; Provides: other, mta (= 2)",
        "c 1")], ("a",), "a=1 apt=1 b=1"),
    ("provided in the version that is needed", [(APT, "a 1; Depends: mta (>= 2)",
        "b 1; Provides: mta", "c 1; Provides: mta (= 2)")], ("a",), "a=1 apt=1 c=1"),
    ("the newest of several suites", [(APT, "a 1"), ("a 2",), ("a 1",)], ("a",), "a=2 apt=1"),
    ("no Perl to merge what is merged", [(APT, "i 1; Depends: usrmerge | usr-is-merged",
        "usrmerge 1; Depends: perl", "usr-is-merged 1", "perl 1")], ("i",),
        "apt=1 i=1 usr-is-merged=1"),
    ("the only package that provides a name", [(APT, "at64 1; Provides: a")], ("a",),
        "apt=1 at64=1"),
    ("a version that is not to be had any more", [(APT, "a 1; Depends: b (<< 2)", "b 1"), ("b 3",)],
        ("a",), ""),
)  # fmt: skip
def test_the_packages_of_a_base(
    indexes: list[tuple[str, ...]], named: tuple[str, ...], expected: str
) -> None:
    read = [index(*one) for one in indexes]
    if not expected:
        with pytest.raises(BootstrapUnfitError, match=r"needs b \(<< 2\)"):
            choose_packages(read, named, suite="sid")
        return
    found = choose_packages(read, named, suite="sid")
    assert " ".join(f"{one.name}={one.version}" for one in found) == expected


@cases(
    "name message fix",
    ("unlike any", "nosuch", "Debian sid has no package nosuch.", "Omit it"),
    ("a slip", "ffmpg", "Debian sid has no package ffmpg.", "Did you mean ffmpeg or ffmpegfs?"),
    ("a name that several provide", "mta",
     "mta is not a package of Debian sid; several provide it.", "Name one of them: exim, postfix"),
)  # fmt: skip
def test_a_package_that_does_not_exist_is_named(name: str, message: str, fix: str) -> None:
    there = index(
        APT, "ffmpeg 1", "ffmpegfs 1", "exim 1; Provides: mta", "postfix 1; Provides: mta"
    )
    with pytest.raises(BootstrapUnfitError) as caught:
        choose_packages([there], (name,), suite="sid")
    assert caught.value.exit_code == 3
    assert caught.value.message == message
    assert caught.value.fix.startswith(fix)


def test_equal_versions_come_from_the_first_suite() -> None:
    first = PackageIndex(
        f"Package: apt\nVersion: 1\nFilename: x\nSize: 1\nSHA256: {'0' * 64}\n".encode(),
        base_url="http://first",
        shown="first",
    )
    (found,) = choose_packages([first, index(APT)], (), suite="sid")
    assert found.url == "http://first/x"
