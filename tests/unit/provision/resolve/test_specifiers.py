"""Our quick comparison of plain releases says what `packaging` says, whatever the specifiers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from provision.catalog.loading import load
from provision.resolve.specifiers import within
from tests.kit.cases import cases
from tests.kit.programs import run_program

CATALOG = load()
NUMBERS = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(
    lambda parts: ".".join(map(str, parts))
)
ODD = st.sampled_from(["1.0rc1", "2.0.post1", "3.0.dev2", "1.0+cu118", "12.4.0.0"])
CLAUSES = st.tuples(st.sampled_from([">=", "<=", "==", "!=", ">", "<", "~="]), NUMBERS).filter(
    lambda pair: pair[0] != "~=" or "." in pair[1]
)
STARS = NUMBERS.map(lambda number: ("==", f"{number}.*"))


@given(NUMBERS | ODD, st.lists(CLAUSES | STARS, max_size=3))
def test_it_says_what_packaging_says(release: str, clauses: list[tuple[str, str]]) -> None:
    specifier = ",".join(f"{sign}{number}" for sign, number in clauses)
    assert within(release, specifier) == SpecifierSet(specifier).contains(release)


@cases(
    "release specifier expected",
    ("within a range", "12.4", "<13.0,>=12.1.105", True),
    ("below a patch release", "12.4", ">=12.4.1", False),
    ("blanks, and ten after nine", "9.10.2.21", " >= 9.3 , < 10.0 ", True),
    ("nothing asked for", "9.0", "", True),
    ("a post-release", "9.0.0.312.post1", "<10.0,>=9.0", True),
    ("which is not above its own number", "9.0.post1", ">9.0", False),
)
def test_releases_are_compared_as_numbers(release: str, specifier: str, *, expected: bool) -> None:
    assert within(release, specifier) is expected


SLOW = (
    "dataclasses",
    # From Python 3.13 on, packaging has it imported by warnings.deprecated.
    *(["inspect"] if sys.version_info < (3, 13) else []),
    "packaging.specifiers",
    "packaging.requirements",
    "pathlib",
    "tempfile",
    "logging",
)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
def test_a_plan_imports_nothing_slow(framework: str, tmp_path: Path) -> None:
    """Each takes several milliseconds, of some forty that a plan takes beside the interpreter."""
    file = tmp_path / "host.json"
    file.write_text('{"driver": "550.54.14", "arch": "x86_64", "gpus": [{"name": "NVIDIA A40"}]}')
    words = ["plan", "--json", "--framework", framework, "--host", str(file)]
    code = (
        f"import sys; from provision.cli import main as cli; code = cli.main({words!r}); "
        f"sys.exit(code or ', '.join(set({SLOW!r}) & sys.modules.keys()) or 0)"
    )
    done = run_program([sys.executable, "-c", code])
    assert done.stderr == ""
