"""What the documents promise is what the code has: codes, commands, options, languages."""

from __future__ import annotations

import html
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.cli import main as cli
from provision.cli.parser import parse
from provision.cli.registry import names
from provision.version import VERSION
from tests import ROOT
from tests.kit.programs import run_program
from tools import reference, transcripts

REWRITE = "to rewrite it: ./run transcripts"


def test_the_lists_of_codes_and_checks_are_those_of_the_code() -> None:
    for page, text in reference.pages().items():
        assert page.read_text(encoding="utf-8") == text, REWRITE


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_readme_names_every_command(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [name for name in sorted(names()) if f"provision {name}" not in text] == []


def test_both_readmes_show_the_same_commands_and_output() -> None:
    def blocks(name: str) -> list[str]:
        return re.findall(
            r"```(?:sh|console|text)\n.*?```", (ROOT / name).read_text("utf-8"), re.DOTALL
        )

    assert blocks("README.md") == blocks("README.zh-CN.md")


def cases(name: str) -> list[tuple[str, list[str]]]:
    """The commands of a page's console blocks, each with what the page says that it prints."""
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)]
    return [
        (words, said.split("\n"))
        for words, _, said in (p.strip().partition("\n") for p in parts)
        if words
    ]


PAGES = (*transcripts.IN_FULL, *transcripts.EXCERPTS)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_of_commands_is_printed(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert transcripts.rewritten(text, whole=page in transcripts.IN_FULL) == text, REWRITE


def typed_commands(text: str) -> Iterator[list[str]]:
    """The commands of a page's blocks for a shell, without a pipe's other commands."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            ends = [number for number, word in enumerate(words) if word in {"|", ">", "&&"}]
            words = words[words[:1] == ["./run"] : ends[0] if ends else None]
            if words[:1] == ["provision"] and words[1:]:
                yield words[1:]


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_command_of_a_page_is_accepted(page: Path) -> None:
    for words in typed_commands(page.read_text(encoding="utf-8")):
        parse(words)


PACKAGES = re.findall(
    r"^\| [^|]+ \| `provision build ([^`]+)`",
    (ROOT / "docs/packages.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


@pytest.mark.parametrize("typed_options", PACKAGES)
def test_the_commands_of_the_packages_have_a_plan(
    typed_options: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "ComfyUI").mkdir()
    (tmp_path / "ComfyUI/requirements.txt").write_text("torch\ntorchvision\n")
    monkeypatch.chdir(tmp_path)
    words = [*shlex.split(typed_options), "--gpu", "RTX 4090", "--driver", "580.95.05"]
    parse(["build", *words])
    assert cli.main(["plan", "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "direct"


def test_ten_packages_have_a_row() -> None:
    assert len(PACKAGES) == 10


def test_the_readme_and_the_examples_show_the_telling_cases() -> None:
    assert sum(len(cases(page)) for page in transcripts.EXCERPTS) >= 9
    assert sum(len(cases(page)) for page in transcripts.IN_FULL) >= 6


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param("b 1\nc 1", "a 1\nb 1\nc 1\nd 1", "b 1\nc 1", id="the same lines"),
        pytest.param("b 1\nc 1", "a 1\nb 2\nc 2\nd 1", "b 2\nc 2", id="newer values"),
        pytest.param("b 1\nc 1", "b 2\n  more\nc 1\nd", "b 2\n  more\nc 1", id="a line more"),
        pytest.param("b 1\nb 2", "a\nb 3\nb 4\nb 5", "b 3\nb 4", id="lines that begin alike"),
    ],
)
def test_an_excerpt_is_taken_from_what_is_printed(before: str, now: str, expected: str) -> None:
    found = transcripts.excerpt(before.split("\n"), now.split("\n"), "provision plan")
    assert "\n".join(found) == expected


def test_an_excerpt_of_what_is_not_printed_is_an_error() -> None:
    with pytest.raises(transcripts.ExcerptError, match="prints no line that begins as: b 1"):
        transcripts.excerpt(["b 1"], ["a 1"], "provision plan")


def test_the_build_of_the_readme_is_in_full_among_the_examples() -> None:
    examples = (ROOT / "docs/examples.md").read_text(encoding="utf-8")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    excerpt = next(re.finditer(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE))[1]
    assert [part for part in excerpt.split("...\n") if part not in examples] == []


def test_the_picture_of_the_terminal_shows_what_is_printed() -> None:
    lines: dict[str, str] = {}
    picture = transcripts.PICTURE.read_text(encoding="utf-8")
    for number, text in re.findall(r'clip-path="url\(#terminal-line-(\d+)\)">([^<]*)<', picture):
        lines[number] = lines.get(number, "") + html.unescape(text).replace("\xa0", " ")
    shown = [
        line
        for words in transcripts.PICTURED
        for line in (f"$ {words}", *transcripts.printed(words).splitlines(), "")
    ]
    assert [line.rstrip() for line in lines.values()] == shown, REWRITE


def test_the_index_of_the_documents_lists_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
    assert pages - set(re.findall(r"\]\(([^)]+)\)", index)) == set()


def test_the_citation_is_valid() -> None:
    path = ROOT / "CITATION.cff"
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    argv += ["vendor.citation-file-format", str(path)]
    done = run_program(argv)
    assert done.returncode == 0, done.stdout
    assert f"version: {VERSION}\n" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_file_that_a_page_links_is_there(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    links = [target for target in targets if "://" not in target]
    assert [link for link in links if not (page.parent / link).exists()] == []
