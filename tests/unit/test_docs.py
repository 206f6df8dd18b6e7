"""What the documents promise is what the code has: codes, commands, options, languages."""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import images
import provision
from images.errors import Failure
from provision import cli
from provision.cli import COMMANDS
from provision.model import HostFacts
from verify.checks import CHECKS
from verify.frameworks import FRAMEWORKS

ROOT = Path(__file__).resolve().parents[2]
CODES = (ROOT / "docs/codes.md").read_text(encoding="utf-8")
DOCUMENTED = set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+|offline)`", CODES))


def codes_in_the_source() -> set[str]:
    pattern = re.compile(r'\bcode ?= ?"([a-z0-9-]+)"')
    rooms = [path for room in ("provision", "images") for path in (ROOT / room).rglob("*.py")]
    found = {code for path in rooms for code in pattern.findall(path.read_text(encoding="utf-8"))}
    return found - {"failure"}


def test_every_code_is_documented() -> None:
    assert codes_in_the_source() - DOCUMENTED == set()


def test_every_documented_error_exists() -> None:
    table = CODES.split("## Errors")[1].split("## Reasons")[0]
    documented = set(re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE))
    assert documented - codes_in_the_source() == set()


def test_the_page_of_checks_is_the_suites() -> None:
    page = (ROOT / "docs/checks.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `([a-z0-9.-]+)` \| (\w+) \| ([\w, ]+) \|", page, re.MULTILINE)
    known: dict[str, tuple[str, list[str]]] = {}
    for framework, checks in CHECKS.items():
        for check in checks:
            known.setdefault(check.id, (check.level, []))[1].append(FRAMEWORKS[framework].title)
    everywhere = len(CHECKS)
    expected = [
        (name, level, "all" if len(titles) == everywhere else ", ".join(titles))
        for name, (level, titles) in known.items()
    ]
    assert sorted(documented) == sorted(expected)


def failures(base: type[Failure] = Failure) -> Iterator[type[Failure]]:
    for found in base.__subclasses__():
        yield found
        yield from failures(found)


def test_the_documented_exit_codes_are_those_of_the_classes() -> None:
    for room in (provision, images):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| ([\d, ]+) \|", CODES, re.MULTILINE)
    documented = {code: {int(exit_) for exit_ in exits.split(",")} for code, exits in rows}
    wrong = {
        found.code: found.exit_code
        for found in failures()
        if found.code != "failure" and found.exit_code not in documented.get(found.code, set())
    }
    assert not wrong


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_readme_names_every_command(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [c.name for c in COMMANDS if f"provision {c.name}" not in text] == []


def test_both_readmes_show_the_same_commands_and_output() -> None:
    def blocks(name: str) -> list[str]:
        return re.findall(
            r"```(?:sh|console|text)\n.*?```", (ROOT / name).read_text("utf-8"), re.DOTALL
        )

    assert blocks("README.md") == blocks("README.zh-CN.md")


TYPED = re.findall(
    r"^\$ (provision (?:plan|catalog show) [^\n]*)\n(.*?)\n```",
    (ROOT / "README.md").read_text("utf-8"),
    re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize(("words", "printed"), TYPED, ids=[words for words, _ in TYPED])
def test_what_the_readme_shows_is_what_is_printed(
    words: str, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = HostFacts(arch="x86_64", python="3.11")
    monkeypatch.setattr("provision.options.this_host", lambda: facts)
    monkeypatch.setenv("XDG_DATA_HOME", "/nowhere")
    cli.main(shlex.split(words)[1:])
    assert capsys.readouterr().out.splitlines() == printed.splitlines()


def test_the_readme_shows_the_telling_cases() -> None:
    assert len(TYPED) >= 6


def test_every_file_that_the_readme_links_is_there() -> None:
    for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        links = [t for t in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in t]
        assert [link for link in links if not (ROOT / link).exists()] == []
