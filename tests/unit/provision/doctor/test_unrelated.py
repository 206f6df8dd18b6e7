"""What other software prints every day must not be taken for a failure of the GPU stack.

The lines are ordinary logs: kernels without an NVIDIA driver, services, web servers, databases,
compilers, package managers, healthy training runs. Many speak of refused connections, missing
files and denied permissions, as failures of the GPU stack do.
"""

from __future__ import annotations

import json

import pytest

from provision.doctor import diagnose
from tests import ROOT

DATA = ROOT / "tests" / "data" / "doctor"
LINES = tuple((DATA / "unrelated.txt").read_text(encoding="utf-8").splitlines())
SUCCESSFUL = json.loads((DATA / "successful.json").read_text(encoding="utf-8"))["runs"]
TRACEBACKS = tuple(
    pytest.param(case["text"], id=case["id"])
    for case in json.loads((DATA / "unrelated_tracebacks.json").read_text(encoding="utf-8"))
)


def codes(text: str) -> list[str]:
    return [cause.code for cause in diagnose([("log", text)]).causes]


def test_there_are_a_thousand_different_lines_and_forty_tracebacks() -> None:
    assert len(LINES) == len(set(LINES)) == 1000
    assert len(TRACEBACKS) == 40


def test_no_ordinary_line_has_a_cause() -> None:
    accused = {line: found for line in LINES if (found := codes(line))}
    assert accused == {}


def test_all_ordinary_lines_together_have_no_cause() -> None:
    assert codes("\n".join(LINES)) == []


@pytest.mark.parametrize("text", TRACEBACKS)
def test_an_ordinary_traceback_has_no_cause(text: str) -> None:
    assert codes(text) == []


def test_one_line_of_a_failure_is_found_among_all_ordinary_ones() -> None:
    failure = "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"
    middle = len(LINES) // 2
    text = "\n".join([*LINES[:middle], failure, *LINES[middle:]])
    assert codes(text)[:1] == ["nvcc-killed-no-memory"]


def test_there_are_a_hundred_logs_of_runs_that_ended_well() -> None:
    assert len({run["id"] for run in SUCCESSFUL}) == len(SUCCESSFUL) > 100


def test_no_run_that_ended_well_is_surely_accused() -> None:
    """Installations, builds, trainings and tests that were really run, whole."""
    accused = {}
    for run in SUCCESSFUL:
        causes = diagnose([("log", run["text"])]).causes
        sure = [cause.code for cause in causes if cause.confidence == "high"]
        if sure:
            accused[run["id"]] = sure
    assert accused == {}
