"""The script for a short time on a GPU: its halves fit into five minutes and eight files."""

from __future__ import annotations

import re

import pytest

from tests import ROOT, need
from tests.gpu.probes import PROBES
from tests.kit.programs import run_program

SCRIPT = ROOT / "tests" / "gpu" / "record.sh"
TEXT = SCRIPT.read_text()
# A half's steps: (name, seconds, file, command).
STEP = re.compile(r"^ +step (\S+) (\d+) (\S+) (.*(?:\\\n.*)?)$", re.MULTILINE)
HALVES = {str(number): STEP.findall(half) for number, half in enumerate(TEXT.split("\nelse\n"), 1)}
MOST_S, MOST_FILES = 300, 8


@pytest.mark.parametrize("half", HALVES)
def test_a_half_fits(half: str) -> None:
    steps = HALVES[half]
    assert len(steps) >= 5
    assert sum(int(seconds) for _, seconds, _, _ in steps) <= MOST_S
    files = {f"{half}-{file}" for _, _, file, _ in steps} | {f"{half}-steps.tsv"}
    files |= {f"{half}-busy.json"} if half == "1" else set()
    files |= set(re.findall(rf"{half}-[\w-]+\.json", " ".join(step[3] for step in steps)))
    assert len(files) <= MOST_FILES, files


def test_each_probe_has_a_step() -> None:
    asked = set(re.findall(r'"\$\{probe\[@\]\}" (\w+)', TEXT)) - {"verify"}
    assert asked == set(PROBES)


def test_the_script_is_clean_by_shellcheck() -> None:
    done = run_program([need.program("shellcheck"), str(SCRIPT)])
    assert done.stdout == ""


@pytest.mark.parametrize("words", [(), ("3",)], ids=["no half", "a half that is not there"])
def test_a_wrong_word_is_refused(words: tuple[str, ...]) -> None:
    done = run_program(["bash", str(SCRIPT), *words])
    assert done.returncode == 2
    assert done.stderr.startswith("usage: OUT=DIR ")
