"""What the texts of outside documents may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from provision.model import grammar
from provision.model.grammar import Grammar

KINDS = {name: kind for name, kind in vars(grammar).items() if isinstance(kind, Grammar)}
UNPRINTABLE = "\n\r\t\0\x1b\x7f\x85\xa0\u2028\u202e\u200b\ud800"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param(grammar.VERSION, "2.0.1", id="a release"),
        pytest.param(grammar.VERSION, "2.9.0.dev20250801+cu128", id="a nightly build"),
        pytest.param(grammar.VERSION, "1!2.0rc1.post2", id="epoch, candidate and post release"),
        pytest.param(grammar.NUMBERS, "450.80.02", id="a driver"),
        pytest.param(grammar.NUMBERS, "580", id="a branch of drivers"),
        pytest.param(grammar.NAME, "cuda-compat-12-2", id="a package of Debian"),
        pytest.param(grammar.DEBIAN_NAME, "libstdc++6", id="another package of Debian"),
        pytest.param(grammar.DEBIAN_VERSION, "7:5.1.9~rc1-0+deb12u1", id="its version"),
        pytest.param(grammar.SHA256, "0" * 64, id="a digest in hexadecimal digits"),
        pytest.param(grammar.TEXT, "“größer” — 显卡 ≥ 2", id="typographic and foreign letters"),
        pytest.param(grammar.ADDRESS, "pypi", id="the installer's own index"),
        pytest.param(
            grammar.ADDRESS,
            "https://wheels.example/a%20b/x-1.0%2Bcu117-py3-none-any.whl?sig=a&b=~c#sha256=0",
            id="an address with a query",
        ),
        pytest.param(grammar.REQUIREMENT, "jax[cuda12-local]==0.4.30", id="extras"),
        pytest.param(grammar.REQUIREMENT, 'numpy<2,>=1.2; python_version < "3.13"', id="a marker"),
        pytest.param(grammar.REQUIREMENT, "x @ https://h.example/x.whl", id="an address"),
    ],
)
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


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param(grammar.VERSION, "abc", id="a word is no version"),
        pytest.param(grammar.VERSION, "", id="nothing is no version"),
        pytest.param(grammar.VERSION, "2.0.1 # x", id="a version with a comment"),
        pytest.param(grammar.NUMBERS, "12.8; touch x", id="numbers with a command"),
        pytest.param(grammar.NUMBERS, "١٢", id="digits that are not ASCII"),
        pytest.param(grammar.NAME, "--privileged", id="a name that is an option"),
        pytest.param(grammar.ADDRESS, "https://h/$(id)`id`", id="an address with backticks"),
        pytest.param(grammar.REQUIREMENT, "--index-url=http://h", id="an option of pip"),
        pytest.param(grammar.DIGEST, "sha256:xyz", id="a digest of other letters"),
    ],
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
