"""Which files stay out of an image; where git is at hand, it says the same of a .gitignore."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.build.project.ignore import (
    IgnoreRule,
    names_in,
    read_dockerignore,
    read_gitignore,
    verdict,
)
from tests.kit.cases import cases
from tests.kit.projects import project


def excluded(path: str, *rules: IgnoreRule) -> bool:
    """Whether a file stays out, with what is decided for its directories."""
    parts = path.split("/")
    above = None
    for depth in range(1, len(parts)):
        above = verdict(parts[:depth], rules, directory=True, above=above)
    return verdict(parts, rules, directory=False, above=above) is not None


GIT = [
    pytest.param("*.log", "a.log", True, id="a pattern"),
    pytest.param("*.log", "x/y/a.log", True, id="a pattern at any depth"),
    pytest.param("/a.log", "x/a.log", False, id="only at the top"),
    pytest.param("data/", "data/x", True, id="a directory"),
    pytest.param("data/", "x/data/y", True, id="a directory at any depth"),
    pytest.param("data/", "data", False, id="a file of the same name"),
    pytest.param("x/data", "y/x/data", False, id="a path is from the top"),
    pytest.param("**/x", "a/b/x", True, id="two stars before"),
    pytest.param("x/**", "x/a/b", True, id="two stars after"),
    pytest.param("a/**/b", "a/b", True, id="two stars for nothing"),
    pytest.param("a/**/b", "a/x/y/b", True, id="two stars for two directories"),
    pytest.param("*.log\n!keep.log", "keep.log", False, id="an exception"),
    pytest.param("data/\n!data/keep", "data/keep", True, id="no exception below a directory"),
    pytest.param("data/*\n!data/keep", "data/keep", False, id="an exception beside others"),
    pytest.param("# a\n\n", "a", False, id="a comment"),
    pytest.param("\\#a", "#a", True, id="a hash that is meant"),
    pytest.param("a ", "a", True, id="blanks at the end"),
    pytest.param("a?c", "abc", True, id="a question mark"),
    pytest.param("a?c", "a/c", False, id="a question mark is no slash"),
    pytest.param("[ab]x", "bx", True, id="a class"),
    pytest.param("[!ab]x", "cx", True, id="a negated class"),
    pytest.param("[^ab]x", "cx", True, id="a class negated as in a shell"),
    pytest.param("a\\*b", "a*b", True, id="a star that is meant"),
    pytest.param("a\\*b", "axb", False, id="a star that is meant, for another"),
    pytest.param("*", ".x", True, id="names with a dot"),
]


@pytest.mark.parametrize(("text", "path", "out"), GIT)
def test_a_gitignore(text: str, path: str, *, out: bool) -> None:
    assert excluded(path, *read_gitignore(text)) == out


@pytest.mark.parametrize(("text", "path", "out"), GIT)
def test_git_says_the_same(text: str, path: str, out: bool, tmp_path: Path) -> None:  # noqa: FBT001
    project(tmp_path, {".gitignore": text, path: ""})
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, capture_output=True)
    command = ["git", "-C", str(tmp_path), "check-ignore", "-q", "--no-index", path]
    assert (subprocess.run(command, check=False).returncode == 0) == out


@cases(
    "text path out",
    ("a directory", "data", "data/x", True),
    ("every pattern is from the top", "data", "x/data", False),
    ("at any depth", "**/data", "x/data", True),
    ("slashes do not matter", "/data/", "data/x", True),
    ("only what is named", "*\n!src", "src/a/b", False),
    ("only what is named, for another", "*\n!src", "other/a", True),
    ("an exception below a directory", "data\n!data/keep", "data/keep", False),
    ("the last one counts", "!a\na", "a", True),
    ("outside of the project", "../x", "x", False),
)
def test_a_dockerignore(text: str, path: str, *, out: bool) -> None:
    assert excluded(path, *read_dockerignore(text)) == out


@cases(
    "git docker path out",
    ("what git ignores", "weights/", "!weights", "weights/a.bin", False),
    ("either of them excludes", "!a.log", "*.log", "a.log", True),
)
def test_both(git: str, docker: str, path: str, *, out: bool) -> None:
    assert excluded(path, *read_gitignore(git), *read_dockerignore(docker)) == out


def test_only_whole_names_are_names() -> None:
    text = "!a/.env\n!/b.pem/\n!*.key\n!src/**\n!c?\n!d[ab]\n!e\\*f\ng.pem\n"
    assert names_in(read_dockerignore(text)) == {("a", ".env"), ("b.pem",)}


def test_a_gitignore_below_is_about_its_directory() -> None:
    rules = read_gitignore("/x\n*.log", ("sub",))
    assert excluded("sub/x", *rules)
    assert excluded("sub/deep/a.log", *rules)
    assert not excluded("x", *rules)
    assert not excluded("a.log", *rules)


def test_no_pattern_takes_long() -> None:
    start = time.process_time()
    rules = read_gitignore("\n".join(["*a" * 40 + "b", "**/" * 40 + "x", "[" * 200, "a/**/" * 30]))
    for path in ("a" * 250, "/".join("a" * 100)):
        excluded(path, *rules)
    assert time.process_time() - start < 5


@settings(max_examples=300)
@given(st.text(alphabet="ab*?[]!/\\#. -^", max_size=15), st.sampled_from(["a", "a/b", "b/a.b"]))
def test_no_pattern_is_a_bug(text: str, path: str) -> None:
    excluded(path, *read_gitignore(text), *read_dockerignore(text))
