"""What errors say: every sentence and every fix in the sources, put together as far as constants
go. No word is cut, no quote is left open, and what a fix says to type exists.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from provision.cli.parser import build_parser
from tests import ROOT
from tests.kit.cases import cases
from tests.kit.programs import run_program

HOLE = "\N{WHITE SQUARE}"
"""Where a text gets a value that is known only later."""
_RAISES = re.compile(
    r"(?:Error|Failure|BadReference|BadCaBundle)$|^_?(?:refused?|fail|bad\w*|warn)$"
)


class Text(NamedTuple):
    """A text, where it is, and what it is for."""

    where: str
    kind: str
    words: str


@functools.cache
def texts() -> tuple[Text, ...]:
    """All messages and fixes of failures and warnings."""
    return tuple(
        found
        for room in ("provision", "images")
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.name != "__main__.py"
        for found in texts_of(path)
    )


def texts_of(path: Path) -> Iterator[Text]:
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    names = vars(importlib.import_module(dotted))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        given = [("fix", word.value) for word in node.keywords if word.arg == "fix"]
        given += [("message", word.value) for word in node.keywords if word.arg == "message"]
        if given or _RAISES.search(_name_of(node.func)):
            given += [("message", word) for word in node.args]
        for kind, value in given:
            words = put_together(value, names)
            if " " in words.strip():
                yield Text(f"{path.relative_to(ROOT)}:{value.lineno}", kind, words)


def _name_of(function: ast.expr) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def put_together(node: ast.expr, names: dict[str, Any]) -> str:
    """The text of an expression; what only a run could know is a hole."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(put_together(part, names) for part in node.values)
    if isinstance(node, ast.BinOp):
        return put_together(node.left, names) + put_together(node.right, names)
    if isinstance(node, ast.FormattedValue):
        return _value(node.value, names) or HOLE
    return _value(node, names) if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) else ""


def _value(node: ast.expr, names: dict[str, Any]) -> str:
    code = compile(ast.Expression(node), "<a text>", "eval")
    try:
        found = eval(code, dict(names))
    except Exception:  # noqa: BLE001  a name of the function, which has no value yet
        return ""
    return found if isinstance(found, str) else ""


def offenders(pattern: str | re.Pattern[str], kind: str = "") -> list[str]:
    return [
        f"{one.where}: {one.words}"
        for one in texts()
        if kind in {"", one.kind} and re.search(pattern, one.words)
    ]


def test_the_texts_are_found() -> None:
    found = texts()
    assert len([one for one in found if one.kind == "fix"]) > 300
    assert len([one for one in found if one.kind == "message"]) > 300


PROGRAMS = ("provision", "verify", "docker", "podman", "apt-get", "sudo", "systemctl", "nvidia-smi")


def test_no_word_of_a_command_is_cut() -> None:
    cut = "|".join(re.escape(part) for name in PROGRAMS for part in (name[1:], name[:-1]))
    assert offenders(rf"(?<![\w./-])(?:{cut})(?![\w./-])") == []


@cases(
    "pattern",
    ("two spaces", r"\S  +\S"),
    ("a space before a mark", r"\s[.,;:](?:\s|$)"),
    ("two marks", r"(?<!\.)[.,;:][.,;:](?![.:])"),
    ("a value of Python's", r"\b(?:None|True|False)\b"),
    ("a word twice", r"\b(\w+) \1\b"),
)
def test_every_text_reads_well(pattern: str) -> None:
    assert offenders(pattern) == []


@pytest.mark.parametrize("pair", ['""', "``", "()", "[]", "{}"])
def test_what_is_opened_is_closed(pair: str) -> None:
    opening, closing = pair[0], pair[1]
    wrong = [
        f"{one.where}: {one.words}"
        for one in texts()
        if (
            one.words.count(opening) % 2
            if opening == closing
            else one.words.count(opening) != one.words.count(closing)
        )
    ]
    assert wrong == []


def test_a_word_in_single_quotes_has_both() -> None:
    wrong = [
        f"{one.where}: {one.words}"
        for one in texts()
        if len(re.findall(r"(?<![\w)])'|'(?!\w)", re.sub(r"s' (?=\w)", "s ", one.words))) % 2
    ]
    assert wrong == []


# --- what a fix says to type --------------------------------------------------------------------


def _verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(actions[0].choices) if actions else {}


def _wrong_in(command: str) -> str:
    """What the parser does not know of a command of ours, or nothing."""
    words = re.findall(r"--[a-z][a-z-]+|[A-Za-z./][\w./-]*", command)
    parser = build_parser()
    for word in words[1:]:
        verbs = _verbs(parser)
        if verbs and not word.startswith("--"):
            if word not in verbs:
                return f"no command {word}"
            parser = verbs[word]
        elif word.startswith("--") and word not in parser._option_string_actions:
            return f"no option {word}"
    return ""


def test_every_command_of_ours_in_a_text_is_one() -> None:
    command = re.compile(r"(?<!-)\bprovision (?:[a-z]|--)[^;,.()`\"\n]*")
    wrong = [
        f"{one.where}: {why} in: {one.words}"
        for one in texts()
        for found in command.findall(one.words)
        if (why := _wrong_in(found.partition(" and ")[0]))
    ]
    assert wrong == []


# --- what the sources point to ------------------------------------------------------------------

_FILE = re.compile(
    r"(?<![\w/.:\"-])(?:\./)?"
    r"((?:docs|bench|templates|images|provision|verify|tests)/[\w./-]*\w\.(?:md|py|json|toml|txt|yml|png|c))\b"
)
_ANCHOR = re.compile(r"\]\(([^)#\s]*\.md|)#([^)\s]+)\)")


def _sources() -> list[Path]:
    done = run_program(["git", "ls-files"], cwd=ROOT, check=True)
    kinds = {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".cuda", ""}
    found = [ROOT / name for name in done.stdout.splitlines()]
    return [path for path in found if path.suffix in kinds and "tests/data" not in str(path)]


def test_every_file_that_a_source_names_is_there() -> None:
    wrong = []
    for path in _sources():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if "github.com/" in line:
                continue  # a file of somebody else's repository
            wrong += [
                f"{path.relative_to(ROOT)}:{number}: {name}"
                for name in _FILE.findall(line)
                if not (ROOT / name).exists() and not (path.parent / name).exists()
            ]
    assert wrong == []


def test_every_heading_that_a_page_links_to_is_there() -> None:
    wrong = []
    for path in _sources():
        if path.suffix != ".md":
            continue
        for name, anchor in _ANCHOR.findall(path.read_text(encoding="utf-8")):
            page = path.parent / name if name else path
            if "://" in name or not page.is_file():
                continue
            headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
            if anchor not in slugs:
                wrong.append(f"{path.name}: {name}#{anchor}")
    assert wrong == []


# --- how it is said -----------------------------------------------------------------------------

# Words that uv, pip and Docker would not write here.
DIALECT = re.compile(
    r"\b(?:anew|mend(?:s|ed)?|nobody|told|vouch\w*|is none|(?<!here )is no)\b"
    r"|\b(?:leave|left) \S+ away\b"
    r"|\b(?:stands?|lies) (?:in|on|there)\b|\bSee that\b|\bof our own\b|\bbelieved\b"
    r"|\bcalled off\b|\bMake room\b|\bTake a\b|\bprove\b|\bin between\b|\bpromise[sd]?\b"
)


def test_errors_are_in_plain_english() -> None:
    assert offenders(DIALECT) == []


def test_help_is_in_plain_english() -> None:
    def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
        yield parser
        for verb in _verbs(parser).values():
            yield from parsers(verb)

    pages = [parser.format_help() for parser in parsers(build_parser())]
    assert len(pages) > 12
    assert [found for page in pages for found in DIALECT.findall(page)] == []
