"""How results look on a terminal, and everywhere else."""

from __future__ import annotations

import io

import pytest

from provision.output import style


class Screen(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "columns", "width"),
    [
        pytest.param(True, "100", 100, id="a terminal's width is used"),
        pytest.param(True, "300", 120, id="a line is not too long to be read"),
        pytest.param(True, "7", 40, id="a line has room for words"),
        pytest.param(True, "0", 80, id="a terminal that does not know its width has the usual one"),
        pytest.param(True, "wide", 80, id="nonsense is no width"),
        pytest.param(False, "100", 80, id="a file is no terminal"),
    ],
)
def test_the_width_of_a_result(*, terminal: bool, columns: str, width: int) -> None:
    assert style.columns(Screen(terminal=terminal), {"COLUMNS": columns}) == width


@pytest.mark.parametrize(
    ("terminal", "env", "coloured"),
    [
        pytest.param(True, {"TERM": "xterm"}, True, id="a terminal has colours"),
        pytest.param(True, {"TERM": "dumb"}, False, id="a simple one has none"),
        pytest.param(True, {"TERM": "xterm", "NO_COLOR": "1"}, False, id="unless they are refused"),
        pytest.param(False, {"TERM": "xterm"}, False, id="a file has none"),
    ],
)
def test_whether_a_result_has_colours(
    *, terminal: bool, env: dict[str, str], coloured: bool
) -> None:
    assert style.is_coloured(Screen(terminal=terminal), env) == coloured


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(
            "Yes: it runs\n     here.\n\nnext:",
            "\x1b[32;1mYes: it runs\x1b[0m\n\x1b[32;1m     here.\x1b[0m\n\nnext:",
            id="the whole answer is green",
        ),
        pytest.param("No: it fails.", "\x1b[31;1mNo: it fails.\x1b[0m", id="a refusal is red"),
        pytest.param("Not proven: x", "\x1b[33mNot proven: x\x1b[0m", id="a doubt is yellow"),
        pytest.param("warning     x", "\x1b[33mwarning\x1b[0m     x", id="a label, not its text"),
        pytest.param("FAIL   a.b  x", "\x1b[31;1mFAIL\x1b[0m   a.b  x", id="a failed check"),
        pytest.param("No way", "No way", id="a sentence that begins alike is no answer"),
        pytest.param("fix it", "fix it", id="a word that begins a sentence is no label"),
        pytest.param("see PASS   here", "see PASS   here", id="nor is one within a line"),
    ],
)
def test_what_is_coloured(text: str, shown: str) -> None:
    assert style.coloured(text) == shown
