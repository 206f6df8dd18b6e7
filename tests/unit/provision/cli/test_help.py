"""What --help shows first, and what it leaves to --help-all."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout

import pytest

from provision.cli.help import MOST_LINES, HelpParser
from provision.cli.main import main
from provision.cli.parser import build_parser
from provision.cli.registry import GROUPS, SECTIONS, names, of_group
from tests.kit.cases import cases
from tests.kit.programs import run_program


def parsers() -> Iterator[HelpParser]:
    waiting: list[argparse.ArgumentParser] = [build_parser()]
    while waiting:
        parser = waiting.pop()
        assert isinstance(parser, HelpParser)
        yield parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += dict.fromkeys(action.choices.values())  # one may have two names


@pytest.mark.parametrize("parser", [*parsers()], ids=lambda parser: parser.prog)
def test_a_help_is_short(parser: HelpParser) -> None:
    lines = parser.format_help().splitlines()
    assert len(lines) <= MOST_LINES
    commands = [line for line in lines if line.startswith("  provision ")]
    assert [line for line in lines if len(line) > 80 and line not in commands] == []
    assert lines[0].startswith("usage: ")
    assert lines[1] == ""  # the usage is one row


@pytest.mark.parametrize("parser", [*parsers()], ids=lambda parser: parser.prog)
def test_all_of_it_is_shown_when_asked(parser: HelpParser) -> None:
    shown = parser.whole_help()
    options = [word for action in parser._actions for word in action.option_strings]
    hidden = {"--help-all", *(["--version", "-h", "--help"] if parser.prog == "provision" else [])}
    assert [word for word in options if word not in shown and word not in hidden] == []
    assert parser.format_help() == parser.format_help()  # to show it changes nothing


def test_a_long_help_says_that_there_is_more() -> None:
    (build,) = [parser for parser in parsers() if parser.prog == "provision build"]
    assert "--help-all" in build.format_help()
    assert "--provenance" not in build.format_help()


def test_every_command_is_in_one_section() -> None:
    listed = [name for _, names in SECTIONS for name in names]
    assert sorted(names().intersection(listed)) == sorted(names() - {"completion"})
    assert len(listed) == len(set(listed))


def test_groups_have_examples() -> None:
    groups = {name: [*of_group(name)] for name in GROUPS}
    assert [n for n, all_ in groups.items() if all_ and not any(o.examples for o in all_)] == []


@pytest.mark.parametrize("words", [["--help-all"], ["build", "--help-all"]])
def test_help_all_is_a_result(words: list[str]) -> None:
    said = io.StringIO()
    with redirect_stdout(said), pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    assert "usage: provision" in said.getvalue()


def provision(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "provision", *words]
    return run_program(argv)


@cases(
    "words begin",
    ("monitor", "monitor --help", "monitor [options] -- COMMAND ..."),
    ("batch has an image", "batch --help", "batch [IMAGE] [options]"),
    ("help needs no image", "batch no/such:image -h", "batch [IMAGE] [options]"),
    ("compare", "compare --help", "compare [-h] "),
)
def test_commands_of_the_suite_are_commands_here(words: str, begin: str) -> None:
    done = provision(*words.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: provision {begin}")
    assert "verify batch" not in done.stdout


def test_monitor_ends_as_its_command_does() -> None:
    done = provision(
        "monitor", "--no-live", "--json", "/dev/stdout", "--", sys.executable, "-c", "exit(3)"
    )
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)


def test_batch_runs_in_the_image_that_is_named() -> None:
    done = provision("batch", "no/such:image", "--model", "resnet50")
    assert "no/such:image" in done.stderr
    assert done.returncode not in {0, 70}
