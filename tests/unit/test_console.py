"""What a person sees on stderr: steps, colours where they belong, progress out of BuildKit."""

from __future__ import annotations

import io
import sys

import pytest

from provision.console import BuildProgress, Console


class Screen(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def screen(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, **env: str) -> Screen:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    stream = Screen(terminal=terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.mark.parametrize(
    ("terminal", "env", "coloured"),
    [
        pytest.param(True, {"TERM": "xterm"}, True, id="a terminal"),
        pytest.param(False, {"TERM": "xterm"}, False, id="a file or a pipe"),
        pytest.param(True, {"TERM": "dumb"}, False, id="a terminal that knows no colours"),
        pytest.param(True, {"TERM": "xterm", "NO_COLOR": "1"}, False, id="not wished for"),
        pytest.param(True, {"TERM": "xterm", "NO_COLOR": ""}, True, id="an empty NO_COLOR is none"),
    ],
)
def test_colours_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], *, terminal: bool, coloured: bool
) -> None:
    stream = screen(monkeypatch, terminal=terminal, **env)
    console = Console()
    with console.step("plan", "deciding"):
        console.warn("w", "f")
    console.fail("m", "f")
    assert ("\x1b[" in stream.getvalue()) == coloured


def test_a_job_reads_like_this(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = screen(monkeypatch, terminal=False)
    console = Console()
    with console.step("plan", "deciding"):
        console.note("PyTorch 2.0.1")
        console.detail("not shown without -v")
    console.warn("No GPU was seen.", "Name it: --gpu 8.6")
    console.fail("It broke.", "Mend it.", "line 1\nline 2")
    assert stream.getvalue().splitlines() == [
        "plan     deciding",
        "    PyTorch 2.0.1",
        "warning: No GPU was seen.",
        "         fix: Name it: --gpu 8.6",
        "    | line 1",
        "    | line 2",
        "error: It broke.",
        "  fix: Mend it.",
    ]
    assert [step.name for step in console.steps] == ["plan"]


def test_long_notes_are_wrapped_and_addresses_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = screen(monkeypatch, terminal=False)
    address = "https://mirror.example/" + "a" * 70
    Console().note(f"The wheels come from an index that is far away: {address} and nowhere else.")
    Console().warn("word " * 30, "other " * 30)
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines if address not in line)
    assert [line for line in lines if address in line]
    assert lines[0].startswith("    The wheels")
    assert lines[1].startswith("      ")


def test_a_step_is_counted_even_when_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    screen(monkeypatch, terminal=False)
    console = Console()
    with pytest.raises(ValueError, match="x"), console.step("lock", "wheels"):
        raise ValueError("x")
    assert [step.name for step in console.steps] == ["lock"]


def test_details_are_shown_to_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = screen(monkeypatch, terminal=False)
    Console(verbose=True).detail("raw")
    assert stream.getvalue() == "    | raw\n"


def test_text_from_outside_does_not_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = screen(monkeypatch, terminal=False)
    console = Console(verbose=True)
    evil = "a\x1b]0;owned\x07\x1b[2Jb"
    console.note(evil)
    console.detail(evil)
    console.warn(evil, evil)
    console.fail(evil, evil, evil)
    text = stream.getvalue()
    assert text.count("a?]0;owned??[2Jb") == 7
    assert all(c.isprintable() or c == "\n" for c in text)


def test_lines_and_letters_of_other_languages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = screen(monkeypatch, terminal=False)
    Console().fail("driver zu alt: \u00fc\n\u9a71\u52a8", "a\n  b")
    assert stream.getvalue() == "error: driver zu alt: \u00fc\n\u9a71\u52a8\n  fix: a\n  b\n"


def test_nobody_reading_along_does_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Screen):
        def write(self, text: str) -> int:
            raise BrokenPipeError(text)

    monkeypatch.setattr(sys, "stderr", Gone(terminal=False))
    console = Console()
    with console.step("plan", "deciding"):
        console.note("x")
    console.fail("m", "f", "d")


BUILD = [
    "#1 [internal] load build definition from Dockerfile.cuda",
    "#1 DONE 0.0s",
    "#5 [base 1/2] FROM docker.io/library/python:3.11-slim-bookworm",
    "#5 DONE 3.1s",
    "#9 [uv 2/2] RUN --mount=type=secret,id=ca if [ -s /run/secrets/ca ]; then true; fi",
    "#9 CACHED",
    "#12 [stage-2 3/6] RUN --mount=type=secret,id=ca --mount=type=cache uv pip install everything",
    "#12 23.45  Downloaded torch",
    "#12 24.01  Downloaded nvidia-cublas-cu11",
    "#12 24.01  Downloaded ruamel_yaml",
    "#12 25.01 Prepared 26 packages in 20.1s",
    "#12 DONE 61.2s",
    "#14 exporting layers",
    "#14 exporting layers 4.2s done",
    "#14 DONE 0.4s",
]


def test_progress_in_a_file_is_a_line_for_each_step_that_took_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = screen(monkeypatch, terminal=False)
    with Console().build_progress({"torch": 7}) as progress:
        for line in BUILD:
            progress.line(line)
    assert stream.getvalue().splitlines() == [
        "      3.1 s  FROM docker.io/library/python:3.11-slim-bookworm",
        "     61.2 s  wheels: download, check, unpack, byte code",
        "      4.2 s  layers written",
    ]


class Bar:
    """What rich's progress would be told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str]] = []

    def update(self, task: int, *, description: str, advance: int = 0) -> None:
        assert task == 1
        self.told.append((advance, description))


def test_progress_on_a_terminal_counts_the_bytes_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    from typing import Any, cast

    screen(monkeypatch, terminal=True)
    bar = Bar()
    sizes = {"torch": 700, "nvidia-cublas-cu11": 200, "ruamel-yaml": 10}
    progress = BuildProgress(Console(), sizes, cast("Any", bar), cast("Any", 1))
    for line in BUILD:
        progress.line(line)
    assert bar.told == [
        (0, "step 1/2"),
        (0, "step 2/2"),
        (0, "step 3/6"),
        (700, "torch"),
        (200, "nvidia-cublas-cu11"),
        (10, "ruamel_yaml"),
        (0, "unpacking"),
        (0, "writing layers"),
    ]


def test_a_bar_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    screen(monkeypatch, terminal=True, TERM="xterm", COLUMNS="80")
    with Console().build_progress({"torch": 7}) as progress:
        progress.line("#12 [stage-2 3/6] RUN x")
        assert progress._progress is not None
    screen(monkeypatch, terminal=True, TERM="xterm")
    with Console(verbose=True).build_progress({}) as progress:
        assert progress._progress is None


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("", id="an empty line"),
        pytest.param("#", id="a mark alone"),
        pytest.param("#12 DONE 1.2.3s", id="a time that is none"),
        pytest.param("#12 DONE ..s", id="a time of dots"),
        pytest.param("#12 [a 1/2", id="a bracket that is not closed"),
        pytest.param("#12 [" + "a " * 20_000 + "1/2", id="an endless name"),
    ],
)
def test_odd_lines_are_passed_over(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    stream = screen(monkeypatch, terminal=False)
    with Console().build_progress({}) as progress:
        progress.line("#12 [a 1/2] RUN x")
        progress.line(line)
    assert stream.getvalue() == ""
