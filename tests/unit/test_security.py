"""SECURITY.md: each promise names tests, and they exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests import ROOT

TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
NO_PROMISES = {"How to report", "What is trusted", "What is not guaranteed"}
TEST = re.compile(r"tests/[\w/]+\.py(?:::\w+)?")


def promises(section: str) -> list[str]:
    """The bullets and the rows of a section."""
    bullets = re.findall(r"^- .*(?:\n  .*)*", section, re.MULTILINE)
    rows = re.findall(r"^\| (?!\| |--- ).*", section, re.MULTILINE)
    return [*bullets, *rows]


PROMISES = [
    pytest.param(promise, id=" ".join(re.findall(r"\w+", promise)[:8]))
    for title, section in SECTIONS.items()
    if title not in NO_PROMISES
    for promise in promises(section)
]


def test_the_sections_are_those_that_are_read() -> None:
    assert set(SECTIONS) >= NO_PROMISES
    assert len(PROMISES) >= 30
    for title in set(SECTIONS) - NO_PROMISES:
        assert promises(SECTIONS[title]), title


@pytest.mark.parametrize("promise", PROMISES)
def test_each_promise_names_a_test(promise: str) -> None:
    assert TEST.search(promise), promise


@pytest.mark.parametrize("named", sorted(set(TEST.findall(TEXT))))
def test_the_named_tests_exist(named: str) -> None:
    path, _, function = named.partition("::")
    found = {
        node.name
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert found, f"{path} has no test"
    assert not function or function in found


def test_a_link_shows_the_name_of_its_file() -> None:
    links = re.findall(r"\[(\w+)\]\((tests/[^)]+)\)", TEXT)
    assert [(word, path) for word, path in links if f"/{word}.py" not in path] == []


@pytest.mark.parametrize(
    "promise",
    ["- A promise without a test.", "- A promise\n  of two lines.", "| one | promise | |"],
)
def test_a_promise_without_a_test_is_found(promise: str) -> None:
    (found,) = promises(f"Some words.\n\n{promise}\n\nMore words.\n")
    assert found == promise
    assert TEST.search(found) is None
