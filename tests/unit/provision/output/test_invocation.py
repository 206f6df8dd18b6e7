"""Commands in what people read begin as the program was called, and work when they are typed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.output import invocation, text
from provision.output.console import Console
from provision.output.invocation import replaced, words_of
from provision.output.stdout import print_document, print_json, print_result
from tests import ROOT

COMMANDS = frozenset({"plan", "build", "run", "doctor", "verify"})
RUN = "./run provision"
SPACED = "'../my clone/run' provision"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("next: provision build .", "next: ./run provision build ."),
        ("Test it: provision verify IMAGE", "Test it: ./run provision verify IMAGE"),
        ("See provision --help", "See ./run provision --help"),
        ("TMPDIR=/path provision ...", "TMPDIR=/path ./run provision ..."),
        ("dmesg | provision doctor --log -", "dmesg | ./run provision doctor --log -"),
        ("as `provision plan` does", "as `./run provision plan` does"),
        ("ready (run provision doctor)", "ready (run ./run provision doctor)"),
        ("provision plan\nprovision build", "./run provision plan\n./run provision build"),
    ],
    ids=["next", "a fix", "help", "a variable before it", "a pipe", "quoted", "in prose", "two"],
)
def test_commands_begin_as_the_program_was_called(before: str, after: str) -> None:
    assert replaced(before, RUN, COMMANDS) == after
    assert replaced(before, "provision", COMMANDS) == before


@pytest.mark.parametrize(
    "same",
    [
        pytest.param("provision plans, provision built it", id="prose"),
        pytest.param("/opt/bin/provision plan", id="a path"),
        pytest.param("gpu-provision plan", id="the other name"),
        pytest.param("the files provision/plan and provision.toml", id="file names"),
        pytest.param("team/provision run", id="an image"),
        pytest.param("python3 verify.pyz", id="another program"),
        pytest.param("provision unknown", id="no command"),
        pytest.param("gpu-provision/run provision build", id="another checkout's run"),
        pytest.param("uv pip install provision\nplan", id="a line's end"),
    ],
)
def test_what_is_no_command_stays(same: str) -> None:
    assert replaced(same, RUN, COMMANDS) == same


PIECES = st.sampled_from(
    ["provision", "plan", "build", "gpu-provision", "./run", "'../my", "clone/run'", "x", "--help",
     "`provision", "(provision", "plan.", "\n", "/a/provision", "./prov", "..."]
)  # fmt: skip


@given(
    st.lists(PIECES).map(" ".join),
    st.sampled_from([RUN, SPACED, "./prov provision", "./run gpu-provision", "gpu-provision",
                     "/v/bin/provision", "'/a b/bin/provision'"]),
)  # fmt: skip
def test_a_text_that_was_changed_is_not_changed_again(words: str, by: str) -> None:
    once = replaced(words, by, COMMANDS)
    assert replaced(once, by, COMMANDS) == once


@pytest.mark.parametrize("width", range(20, 60))
def test_nor_is_one_that_was_wrapped_since(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(invocation._Call, "words", SPACED)
    monkeypatch.setattr(invocation._Call, "commands", COMMANDS)
    lines = "\n".join(text.filled("Test it now: provision verify IMAGE", rest="  ", columns=width))
    assert invocation.as_called(lines) == lines
    assert " ".join(lines.split()) == f"Test it now: {SPACED} verify IMAGE"


@pytest.mark.parametrize(
    ("script", "program", "words"),
    [
        ("./run", "/c/.venv/bin/provision", "./run provision"),
        ("../my clone/run", "/c/.venv/bin/provision", "'../my clone/run' provision"),
        ("run", "/c/.venv/bin/provision", "./run provision"),
        ("./run", "/c/.venv/bin/gpu-provision", "./run gpu-provision"),
        ("", "/usr/bin/provision", "provision"),
        ("", "/usr/bin/gpu-provision", "gpu-provision"),
        ("", ".venv/bin/provision", ".venv/bin/provision"),
        ("", "/my tools/bin/provision", "'/my tools/bin/provision'"),
        ("", "/c/provision/__main__.py", "provision"),
    ],
    ids=["./run", "spaces", "sh run", "./run, the other name", "on PATH", "the other name",
         "a path", "a path with spaces", "python -m"],
)  # fmt: skip
def test_how_it_was_called(script: str, program: str, words: str) -> None:
    assert words_of(script, program, ["/bin", "/usr/bin"]) == words


def test_only_what_people_read_is_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(invocation._Call, "words", RUN)
    monkeypatch.setattr(invocation._Call, "commands", COMMANDS)
    console, line = Console(verbose=True), "Try provision plan"
    print_result(line)
    print_document(line)
    print_json(line)
    console.warn(line, line)
    console.fail(line, line, line)
    console.detail(line)
    out, err = capsys.readouterr()
    assert out.splitlines() == ["Try ./run provision plan", line, f'"{line}"']
    assert err.count("Try ./run provision plan") == 4
    assert err.count(f"| {line}") == 2


def test_a_command_over_several_lines_is_not_broken_in_quotes() -> None:
    words = f"provision build {'-' * 60} --gpu 'RTX 4090' --driver 580"
    lines = text.command(words)
    assert "'RTX 4090'" in lines[1]
    assert " ".join(line.rstrip("\\").strip() for line in lines) == words
    assert all(line.endswith(" \\") for line in lines[:-1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """./run of a checkout whose environment is the one of these tests."""
    root = tmp_path_factory.mktemp("clones") / "my clone"
    (root / ".venv").mkdir(parents=True)
    for name in ("run", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, root)
    (root / ".venv" / "bin").symlink_to(sysconfig.get_path("scripts"))
    sums = subprocess.run(
        ["cksum", "pyproject.toml", "requirements.txt"], cwd=root, capture_output=True, check=True
    )
    stamp = f"requirements.txt\n\n{root}\n{sums.stdout.decode()}"
    (root / ".venv" / "stamp").write_text(stamp)
    assert Path(sys.executable).parent.samefile(root / ".venv" / "bin")
    return root / "run"


def shell(line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line], cwd=directory, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("way", "words", "label", "says"),
    [
        pytest.param("'../my clone/run'", "", "next ", "runs on ", id="the first command"),
        pytest.param("'{run}'", "plan --bogus", "  fix: See ", "usage: ", id="wrong usage"),
    ],
)
def test_what_a_checkout_prints_works_when_typed(
    run: Path, way: str, words: str, label: str, says: str
) -> None:
    here = run.parent.parent / "elsewhere"
    here.mkdir(exist_ok=True)
    by = way.format(run=run)
    shown = shell(f"{by} provision {words}", here)
    lines = (shown.stdout + shown.stderr).splitlines()
    assert [line for line in lines if "provision " in line and f"{by} provision " not in line] == []
    (line,) = [line for line in lines if line.startswith(label)]
    done = shell(line.removeprefix(label).strip(), here)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def test_json_is_for_other_machines(run: Path) -> None:
    done = shell("./run provision plan --bogus --json", run.parent)
    assert json.loads(done.stdout)["error"]["fix"] == "See provision --help"
    assert "fix: See ./run provision --help" in done.stderr
