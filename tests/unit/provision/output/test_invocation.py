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
from tests.kit.cases import cases
from tests.kit.programs import run_program

COMMANDS = frozenset({"plan", "build", "run", "doctor", "verify"})
RUN = "./run provision"
SPACED = "'../my clone/run' provision"


@cases(
    "before after",
    ("next", "next: provision build .", "next: ./run provision build ."),
    ("a fix", "Test it: provision verify IMAGE", "Test it: ./run provision verify IMAGE"),
    ("help", "See provision --help", "See ./run provision --help"),
    ("a variable before it", "TMPDIR=/path provision ...", "TMPDIR=/path ./run provision ..."),
    ("a pipe", "dmesg | provision doctor --log -", "dmesg | ./run provision doctor --log -"),
    ("quoted", "as `provision plan` does", "as `./run provision plan` does"),
    ("in prose", "ready (run provision doctor)", "ready (run ./run provision doctor)"),
    ("two", "provision plan\nprovision build", "./run provision plan\n./run provision build"),
)
def test_commands_begin_as_the_program_was_called(before: str, after: str) -> None:
    assert replaced(before, RUN, COMMANDS) == after
    assert replaced(before, "provision", COMMANDS) == before


@cases(
    "same",
    ("prose", "provision plans, provision built it"),
    ("a path", "/opt/bin/provision plan"),
    ("the other name", "gpu-provision plan"),
    ("file names", "the files provision/plan and provision.toml"),
    ("an image", "team/provision run"),
    ("another program", "python3 verify.pyz"),
    ("no command", "provision unknown"),
    ("another checkout's run", "gpu-provision/run provision build"),
    ("a line's end", "uv pip install provision\nplan"),
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


@cases(
    "script program words",
    ("./run", "./run", "/c/.venv/bin/provision", "./run provision"),
    ("spaces", "../my clone/run", "/c/.venv/bin/provision", "'../my clone/run' provision"),
    ("sh run", "run", "/c/.venv/bin/provision", "./run provision"),
    ("./run, the other name", "./run", "/c/.venv/bin/gpu-provision", "./run gpu-provision"),
    ("on PATH", "", "/usr/bin/provision", "provision"),
    ("the other name", "", "/usr/bin/gpu-provision", "gpu-provision"),
    ("a path", "", ".venv/bin/provision", ".venv/bin/provision"),
    ("a path with spaces", "", "/my tools/bin/provision", "'/my tools/bin/provision'"),
    ("python -m", "", "/c/provision/__main__.py", "provision"),
)
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
    return run_program(["sh", "-c", line], cwd=directory)


@cases(
    "way words label says",
    ("the first command", "'../my clone/run'", "", "next ", "runs on "),
    ("wrong usage", "'{run}'", "plan --bogus", "  fix: See ", "usage: "),
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
