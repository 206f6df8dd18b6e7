"""Commands called with what nobody expects: bench/calls.py, in short."""

from __future__ import annotations

import pytest

from bench import calls

SAME = 500


def test_no_call_ends_as_none_may(pytestconfig: pytest.Config) -> None:
    fuzz = pytestconfig.getoption("--fuzz")
    found = calls.attack(fuzz or SAME, calls.new_seed() if fuzz else 1, processes=1)
    assert len(found) == (fuzz or SAME)
    assert [call for call in found if call.problem] == []
    assert {0, 2, 5} <= {call.code for call in found}  # some get far


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("print('fine')", "", id="one that ends well"),
        pytest.param("raise ValueError('x')", "a bug", id="a bug"),
        pytest.param("print('\\x1b[2J')", "a control character", id="a control character"),
        pytest.param("print('Traceback (most recent call last)')", "a bug", id="a traceback"),
        pytest.param("time.sleep(3)", "more than", id="one that hangs"),
    ],
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
