"""What other software prints every day must not be taken for a failure of the GPU stack.

The lines are ordinary logs: kernels without an NVIDIA driver, services, web servers, databases,
compilers, package managers, healthy training runs. Many speak of refused connections, missing
files and denied permissions, as failures of the GPU stack do.
"""

from __future__ import annotations

import json

import pytest

from provision.doctor import diagnose, load
from provision.doctor.account import verdict_of
from tests import ROOT

DATA = ROOT / "tests" / "data" / "doctor"
LINES = tuple((DATA / "unrelated.txt").read_text(encoding="utf-8").splitlines())
SUCCESSFUL = json.loads((DATA / "successful.json").read_text(encoding="utf-8"))["runs"]
TRACEBACKS = tuple(
    pytest.param(case["text"], id=case["id"])
    for case in json.loads((DATA / "unrelated_tracebacks.json").read_text(encoding="utf-8"))
)


GENERIC = frozenset(failure.code for failure in load().failures if failure.generic)


def codes(text: str) -> list[str]:
    """Causes of the GPU stack. What any program has, a module or a file that is missing, may be
    named where a text ends with it, and never surely.
    """
    causes = diagnose([("log", text)]).causes
    assert [one.code for one in causes if one.code in GENERIC and one.confidence == "high"] == []
    return [cause.code for cause in causes if cause.code not in GENERIC]


def codes_of_all(text: str) -> list[str]:
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


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param("ModuleNotFoundError: No module named 'requests'", "python-module-missing"),
        pytest.param("bash: line 3: foo5: command not found", "program-missing"),
        pytest.param("cp: cannot stat 'a4.txt': No such file or directory", "file-missing"),
        pytest.param("E: Unable to locate package nodejs-8", "apt-package-unknown"),
        pytest.param("Error: listen EADDRINUSE: address already in use :::3000", "address-in-use"),
        pytest.param("main.c:7:12: error: expected ';' before 'return'", "source-does-not-compile"),
    ],
)
def test_what_any_program_has_is_named_where_a_text_ends_with_it(line: str, code: str) -> None:
    steps = "\n".join(f"step {number} loss 0.{number}" for number in range(300))
    assert codes_of_all(f"{steps}\n{line}")[:1] == [code]
    assert code not in codes_of_all(f"{line}\n{steps}")


def test_one_line_of_a_failure_is_found_among_all_ordinary_ones() -> None:
    failure = "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"
    middle = len(LINES) // 2
    text = "\n".join([*LINES[:middle], failure, *LINES[middle:]])
    assert codes(text)[:1] == ["nvcc-killed-no-memory"]


def test_there_are_a_hundred_logs_of_runs_that_ended_well() -> None:
    assert len({run["id"] for run in SUCCESSFUL}) == len(SUCCESSFUL) > 100


def is_healthy(text: str) -> bool:
    return verdict_of(diagnose([("log", text)]), asked_of_a_text=True) == "healthy"


def test_nine_of_ten_runs_that_ended_well_are_healthy_and_none_that_failed() -> None:
    failed = json.loads((DATA / "failed.json").read_text(encoding="utf-8"))["runs"]
    assert sum(is_healthy(run["text"]) for run in SUCCESSFUL) >= 0.9 * len(SUCCESSFUL)
    assert [run["id"] for run in failed if is_healthy(run["text"])] == []
    assert [case for case in TRACEBACKS if is_healthy(str(case.values[0]))] == []


def test_no_run_that_ended_well_is_surely_accused() -> None:
    """Installations, builds, trainings and tests that were really run, whole."""
    accused = {}
    for run in SUCCESSFUL:
        causes = diagnose([("log", run["text"])]).causes
        sure = [cause.code for cause in causes if cause.confidence == "high"]
        if sure:
            accused[run["id"]] = sure
    assert accused == {}
