"""Words are completed in real shells."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from provision.cli.commands.completion import SHELLS
from provision.cli.main import main
from tests import ROOT, need
from tests.kit.programs import run_program

BASH = """
source <(provision completion bash)
COMP_LINE="$1" COMP_POINT=${#1} COMP_TYPE=9
read -ra COMP_WORDS <<< "$1"
[[ "$1" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_python_argcomplete provision
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = """
provision completion fish | source
complete -C $argv[1]
"""
CASES = [
    pytest.param("provision bu", ["build", "bundle"], id="a command"),
    pytest.param("provision fleet ver", ["verify"], id="an action"),
    pytest.param("provision build --framework ", ["jax", "pytorch", "tensorflow"], id="frameworks"),
    pytest.param("provision verify image --level f", ["full"], id="a level"),
    pytest.param("provision plan --cuda 11.7", ["11.7"], id="a CUDA version"),
    pytest.param("provision plan --gpu H10", ["H100"], id="a GPU"),
    pytest.param("provision build --cut A4", ["A40"], id="a GPU whose code is kept"),
    pytest.param("provision build --exclude", ["--exclude-unneeded"], id="an option"),
    pytest.param("provision nothing --x", [], id="an unknown command"),
]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "provision"
    call = "from provision.__main__ import run; run()"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{call}" "$@"\n')
    program.chmod(0o755)
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "LC_ALL": "C.UTF-8",
    }


def words(argv: list[str], env: dict[str, str]) -> list[str]:
    done = run_program(argv, env=env)
    assert not done.stderr
    return sorted(line.split("\t")[0].strip() for line in done.stdout.splitlines() if line.strip())


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash(line: str, expected: list[str], env: dict[str, str]) -> None:
    found = words([need.program("bash"), "--norc", "-c", BASH, "bash", line], env)
    assert _fits(found, expected)


@pytest.mark.parametrize(("line", "expected"), CASES[:3])
def test_fish(line: str, expected: list[str], env: dict[str, str]) -> None:
    found = words([need.program("fish"), "--no-config", "-c", FISH, line], env)
    assert _fits(found, expected)


def _fits(found: list[str], expected: list[str]) -> bool:
    """A GPU has several names that begin alike."""
    return found == expected or (bool(expected) and all(w.startswith(expected[0]) for w in found))


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "Use bash, zsh or fish." in capsys.readouterr().err


@pytest.mark.parametrize("shell", SHELLS)
def test_the_code_is_printed_alone(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    out, err = capsys.readouterr()
    assert "provision" in out
    assert not err
