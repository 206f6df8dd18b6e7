"""What the texts of outside documents may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from provision.model import grammar
from provision.model.grammar import Grammar
from tests.kit.cases import cases

KINDS = {name: kind for name, kind in vars(grammar).items() if isinstance(kind, Grammar)}
UNPRINTABLE = "\n\r\t\0\x1b\x7f\x85\xa0\u2028\u202e\u200b\ud800"


@cases(
    "kind text",
    ("a release", grammar.VERSION, "2.0.1"),
    ("a nightly build", grammar.VERSION, "2.9.0.dev20250801+cu128"),
    ("epoch, candidate and post release", grammar.VERSION, "1!2.0rc1.post2"),
    ("a driver", grammar.NUMBERS, "450.80.02"),
    ("a branch of drivers", grammar.NUMBERS, "580"),
    ("a package of Debian", grammar.NAME, "cuda-compat-12-2"),
    ("another package of Debian", grammar.DEBIAN_NAME, "libstdc++6"),
    ("its version", grammar.DEBIAN_VERSION, "7:5.1.9~rc1-0+deb12u1"),
    ("a digest in hexadecimal digits", grammar.SHA256, "0" * 64),
    ("typographic and foreign letters", grammar.TEXT, "“größer” — 显卡 ≥ 2"),
    ("the installer's own index", grammar.ADDRESS, "pypi"),
    ("an address with a query", grammar.ADDRESS,
     "https://wheels.example/a%20b/x-1.0%2Bcu117-py3-none-any.whl?sig=a&b=~c#sha256=0"),
    ("extras", grammar.REQUIREMENT, "jax[cuda12-local]==0.4.30"),
    ("a marker", grammar.REQUIREMENT, 'numpy<2,>=1.2; python_version < "3.13"'),
    ("an address", grammar.REQUIREMENT, "x @ https://h.example/x.whl"),
)  # fmt: skip
def test_what_is_valid_passes(kind: Grammar, text: str) -> None:
    assert kind.fits(text)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("character", UNPRINTABLE, ids=ascii)
def test_no_kind_of_text_has_an_unprintable_character(kind: Grammar, character: str) -> None:
    for text in (character, f"1{character}", f"1{character}1", f"torch{character}"):
        assert not kind.fits(text)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_text_is_bounded(kind: Grammar) -> None:
    assert not kind.fits("1" * 10_000_000)
    assert not kind.fits("1" * (kind.longest + 1))


@cases(
    "kind text",
    ("a word is no version", grammar.VERSION, "abc"),
    ("nothing is no version", grammar.VERSION, ""),
    ("a version with a comment", grammar.VERSION, "2.0.1 # x"),
    ("numbers with a command", grammar.NUMBERS, "12.8; touch x"),
    ("digits that are not ASCII", grammar.NUMBERS, "١٢"),
    ("a name that is an option", grammar.NAME, "--privileged"),
    ("an address with backticks", grammar.ADDRESS, "https://h/$(id)`id`"),
    ("an option of pip", grammar.REQUIREMENT, "--index-url=http://h"),
    ("a digest of other letters", grammar.DIGEST, "sha256:xyz"),
)
def test_what_is_something_else_is_refused(kind: Grammar, text: str) -> None:
    assert not kind.fits(text)


@given(st.from_regex(grammar.VERSION.pattern, fullmatch=True))
def test_packaging_reads_every_version(text: str) -> None:
    assert Version(text).release


@given(st.text(), st.sampled_from(sorted(KINDS)))
def test_what_fits_is_printable_and_short(text: str, name: str) -> None:
    kind = KINDS[name]
    assert not kind.fits(text) or (text.isprintable() and len(text) <= kind.longest)


@pytest.mark.parametrize(
    "line", ["torch==2.0.1+cu117", "cuda-toolkit[cublas,cudart]==12.8", "a.b_c ~= 1.0", "pip"]
)
def test_requirements_of_packaging_pass(line: str) -> None:
    assert grammar.REQUIREMENT.fits(str(Requirement(line)))
