"""Commands called with what nobody expects: bench/calls.py, in short."""

from __future__ import annotations

import pytest

from bench import calls
from tests.kit.cases import cases

SAME = 500


def test_no_call_ends_as_none_may(pytestconfig: pytest.Config) -> None:
    fuzz = pytestconfig.getoption("--fuzz")
    found = calls.attack(fuzz or SAME, calls.new_seed() if fuzz else 1, processes=1)
    assert len(found) == (fuzz or SAME)
    assert [call for call in found if call.problem] == []
    assert {0, 2, 5} <= {call.code for call in found}  # some get far


@cases(
    "text problem",
    ("one that ends well", "print('fine')", ""),
    ("a bug", "raise ValueError('x')", "a bug"),
    ("a control character", "print('\\x1b[2J')", "a control character"),
    ("a traceback", "print('Traceback (most recent call last)')", "a bug"),
    ("one that hangs", "time.sleep(3)", "more than"),
)
def test_a_call_that_ends_as_none_may_is_found(
    text: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind, put in the place of a command."""

    def main(_: object) -> int:
        try:
            exec(text, {"time": __import__("time")})
        except ValueError:
            return 70
        return 0

    monkeypatch.setattr("provision.cli.main.main", main)
    monkeypatch.setattr(calls, "LIMIT_S", 1)
    assert calls.run(("plan",)).problem.startswith(problem)
    assert bool(problem) == bool(calls.run(("plan",)).problem)
