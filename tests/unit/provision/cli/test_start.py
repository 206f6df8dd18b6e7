"""`provision` alone says what this machine is, and what to type next."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from provision.catalog.loading import load
from provision.cli import start
from provision.cli.main import main
from provision.cli.parser import parse
from provision.cli.registry import commands
from provision.model.plan import Gpu, HostFacts, Plan, Request
from provision.resolve import resolve
from tests.kit.cases import cases

CARD = Gpu(name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9))
OLD = Gpu(name="Tesla K80", compute_capability=(3, 7))


def host(driver: str | None, gpus: tuple[Gpu, ...] | None) -> HostFacts:
    return HostFacts(
        label="here",
        driver=driver,
        gpus=gpus,
        arch="x86_64",
        os_id="debian",
        os_version="12",
        python="3.11",
    )


def said(facts: HostFacts, *, has_project: bool = False) -> dict[str, str]:
    def planned() -> Plan:
        return resolve((facts,), Request(), load())

    text = start.start_text(facts, planned, has_project=has_project)
    assert max(map(len, text.splitlines())) <= 80
    return {row[:12].strip(): row[12:] for row in text.splitlines()}


@cases(
    "facts command",
    ("a GPU and its driver", host("580.95.05", (CARD, CARD)), "provision build"),
    ("certainly no GPU", host(None, ()), start.ELSEWHERE),
    ("a GPU without a driver", host(None, None), "provision doctor"),
    ("a driver that shows no GPU", host("580.95.05", None), "provision doctor"),
    ("a GPU that nothing runs on", host("390.10", (OLD,)), "provision plan"),
)
def test_the_next_command_fits_the_machine(facts: HostFacts, command: str) -> None:
    assert said(facts)["next"] == command


def test_what_works_is_what_build_would_plan() -> None:
    facts = host("580.95.05", (CARD,))
    assert said(facts)["works"] == resolve((facts,), Request(), load()).title
    assert "2 x NVIDIA GeForce RTX 4090" in said(host("580.95.05", (CARD, CARD)))["machine"]


@cases(
    "name text found",
    ("a framework", "requirements.txt", "torch==2.4.1\n", True),
    ("no framework", "requirements.txt", "requests\n", False),
    ("a malformed line", "requirements.txt", "torch >= \n", False),
    ("no TOML", "pyproject.toml", "[project\n", False),
    ("no project", "README.md", "torch\n", False),
)
def test_a_project_is_built_if_it_requires_a_framework(
    tmp_path: Path, name: str, text: str, *, found: bool
) -> None:
    (tmp_path / name).write_text(text)
    assert start.has_project(tmp_path) is found
    facts = host("580.95.05", (CARD,))
    command = "provision build ." if found else "provision build"
    assert said(facts, has_project=found)["next"] == command


def test_provision_alone_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("provision.host.detect", lambda: host("580.95.05", (CARD,)))
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert "next        provision build\n" in out
    assert not err


EXAMPLES = {one.words: one.examples for one in commands() if one.examples}


@pytest.mark.parametrize("command", EXAMPLES, ids=str)
def test_each_command_has_examples_that_it_takes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*command.split(), "--help-all"])
    shown = capsys.readouterr().out
    for line in EXAMPLES[command]:
        assert line in shown


@pytest.mark.parametrize("line", sorted({o for lines in EXAMPLES.values() for o in lines}), ids=str)
def test_an_example_is_a_command(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "eval":
        words = shlex.split(words[1].removeprefix("$(").removesuffix(")"))
    words = words[words.index("provision") + 1 :]
    ends = [words.index(mark) for mark in ("|", ">") if mark in words]
    assert parse(words[: min(ends, default=None)]).command.name
