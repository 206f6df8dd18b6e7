"""How results look on a terminal, and everywhere else."""

from __future__ import annotations

import io

from provision.output import style
from tests.kit.cases import cases


class Screen(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@cases(
    "terminal columns width",
    ("a terminal's width is used", True, "100", 100),
    ("a line is not too long to be read", True, "300", 120),
    ("a line has room for words", True, "7", 40),
    ("a terminal that does not know its width has the usual one", True, "0", 80),
    ("nonsense is no width", True, "wide", 80),
    ("a file is no terminal", False, "100", 80),
)
def test_the_width_of_a_result(*, terminal: bool, columns: str, width: int) -> None:
    assert style.columns(Screen(terminal=terminal), {"COLUMNS": columns}) == width


@cases(
    "terminal env coloured",
    ("a terminal has colours", True, {"TERM": "xterm"}, True),
    ("a simple one has none", True, {"TERM": "dumb"}, False),
    ("unless they are refused", True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
    ("a file has none", False, {"TERM": "xterm"}, False),
)
def test_whether_a_result_has_colours(
    *, terminal: bool, env: dict[str, str], coloured: bool
) -> None:
    assert style.is_coloured(Screen(terminal=terminal), env) == coloured


@cases(
    "text shown",
    ("the whole answer is green", "Yes: it runs\n     here.\n\nnext:",
     "\x1b[32;1mYes: it runs\x1b[0m\n\x1b[32;1m     here.\x1b[0m\n\nnext:"),
    ("a refusal is red", "No: it fails.", "\x1b[31;1mNo: it fails.\x1b[0m"),
    ("a doubt is yellow", "Not proven: x", "\x1b[33mNot proven: x\x1b[0m"),
    ("a label, not its text", "warning     x", "\x1b[33mwarning\x1b[0m     x"),
    ("a failed check", "FAIL   a.b  x", "\x1b[31;1mFAIL\x1b[0m   a.b  x"),
    ("a sentence that begins alike is no answer", "No way", "No way"),
    ("a word that begins a sentence is no label", "fix it", "fix it"),
    ("nor is one within a line", "see PASS   here", "see PASS   here"),
)  # fmt: skip
def test_what_is_coloured(text: str, shown: str) -> None:
    assert style.coloured(text) == shown
