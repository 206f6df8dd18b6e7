"""What a person sees on stderr: steps, colours where they belong, progress out of BuildKit."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest

from provision.output.console import BuildProgress, Console
from tests.kit.cases import cases


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


@cases(
    "terminal env coloured",
    ("a terminal", True, {"TERM": "xterm"}, True),
    ("a file or a pipe", False, {"TERM": "xterm"}, False),
    ("a terminal that knows no colours", True, {"TERM": "dumb"}, False),
    ("not wished for", True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
    ("an empty NO_COLOR is none", True, {"TERM": "xterm", "NO_COLOR": ""}, True),
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


SUITE = [
    " 1/3  pass   loading.shm              0.2 s",
    " 2/3  fail   numerics.matmul          0.3 s",
    " 3/3  skip   devices.nvml             0.0 s",
    "a banner of the image",
]


def a_job(console: Console) -> None:
    """What a build tells of itself, in short."""
    with console.step("plan", "deciding"):
        console.result("PyTorch 2.0.1")
        console.detail("raw output")
    console.warn("No GPU was seen.", "Name it: --gpu 8.6")
    with console.step("lock", "choosing the wheels"):
        console.progress("an index is asked")
        console.note("The wheels come from a mirror.")
        console.warn("It is slow.", "Name another: --index URL")
        console.result("27 wheels")
    with console.step("verify", "team/torch:1, level quick", named=True):
        for line in SUITE:
            console.suite_line(line)
        console.result("unfit: 1 passed, 1 failed, 1 not run")
    console.fail("It broke.", "Try again.", "line 1\nline 2")


def timeless(text: str) -> list[str]:
    return re.sub(r" +\d+\.\d s  ", " T ", text).splitlines()


ENDING = ["    | line 1", "    | line 2", "error: It broke.", "  fix: Try again."]


def test_a_job_in_a_file_is_one_line_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = screen(monkeypatch, terminal=False)
    console = Console()
    a_job(console)
    assert timeless(stream.getvalue()) == [
        "plan T PyTorch 2.0.1",
        "warning: No GPU was seen.",
        "         fix: Name it: --gpu 8.6",
        "lock T 27 wheels",
        "    The wheels come from a mirror.",
        "warning: It is slow.",
        "         fix: Name another: --index URL",
        "verify T team/torch:1, level quick: unfit: 1 passed, 1 failed, 1 not run",
        "    2/3  fail   numerics.matmul          0.3 s",
        *ENDING,
    ]
    assert [step.name for step in console.steps] == ["plan", "lock", "verify"]


@pytest.mark.parametrize("terminal", [True, False], ids=["a terminal", "a file, with -v"])
def test_a_job_is_followed_by_who_looks_on(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    stream = screen(monkeypatch, terminal=terminal, TERM="xterm", NO_COLOR="1")
    a_job(Console(verbose=not terminal))
    assert stream.getvalue().splitlines() == [
        "plan     deciding",
        "    PyTorch 2.0.1",
        *([] if terminal else ["    | raw output"]),
        "warning: No GPU was seen.",
        "         fix: Name it: --gpu 8.6",
        "lock     choosing the wheels",
        "    an index is asked",
        "    The wheels come from a mirror.",
        "warning: It is slow.",
        "         fix: Name another: --index URL",
        "    27 wheels",
        "verify   team/torch:1, level quick",
        *(f"    {line}" for line in SUITE),
        "    unfit: 1 passed, 1 failed, 1 not run",
        *ENDING,
    ]


@pytest.mark.parametrize(
    ("error", "ending"), [(ValueError, "failed"), (KeyboardInterrupt, "interrupted")]
)
def test_a_stage_that_breaks_off_says_so_and_what_it_had_to_say(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], ending: str
) -> None:
    stream = screen(monkeypatch, terminal=False)
    console = Console()

    def breaks_off() -> None:
        with console.step("build", "team/torch:1 (oci)", named=True):
            console.note("The base is made here.")
            console.result("not yet")
            raise error

    with pytest.raises(error):
        breaks_off()
    console.note("afterwards")
    assert timeless(stream.getvalue()) == [
        f"build T team/torch:1 (oci): {ending}",
        "    The base is made here.",
        "    afterwards",
    ]
    assert [step.name for step in console.steps] == ["build"]


def test_a_long_stage_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = screen(monkeypatch, terminal=False)
    monkeypatch.setattr("provision.output.console.PULSE_S", 0.01)
    console = Console()
    with console.step("build", "an image"):
        waits_for(stream, "build T ...")
        console.progress("using docker")
        with console.transfer() as progress:
            waits_for(stream, "build T ... using docker")
            progress.will_fetch(2_330_000_000)
            progress.fetched("torch", 1_200_000_000)
            waits_for(stream, "build T ... 1.20 of 2.33 GB of wheels fetched")
        console.suite_line("31/55  pass   numerics.matmul")
        waits_for(stream, "build T ... 31/55  pass   numerics.matmul")
        console.suite_line("INFO: a package is imported")
        console.suite_line("")
        shown = stream.getvalue()
        waits_for(stream, "build T ... 31/55  pass   numerics.matmul", after=shown)
        assert "INFO" not in stream.getvalue()
        console.result("2.37 GB")
    assert timeless(stream.getvalue())[-1] == "build T 2.37 GB"
    count = len(stream.getvalue())
    with console.step("verify", "it"):
        pass
    assert "build" not in stream.getvalue()[count:]


def test_a_stage_can_report_its_progress_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = screen(monkeypatch, terminal=False)
    console = Console()
    console.pulse_s = 0.01
    with console.step("page", "the answers"):
        console.progress("3 of 7 machines")
        waits_for(stream, "page T ... 3 of 7 machines")


def waits_for(stream: Screen, line: str, after: str = "") -> None:
    deadline = time.monotonic() + 60  # it hangs
    while line not in timeless(stream.getvalue()[len(after) :]):
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.005)


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
    "#1 [internal] load build definition from Dockerfile.cuda", "#1 DONE 0.0s",
    "#5 [base 1/2] FROM docker.io/library/python:3.11-slim-bookworm", "#5 DONE 3.1s",
    "#9 [uv 2/2] RUN --mount=type=secret,id=ca if [ -s /run/secrets/ca ]; then true; fi",
    "#9 CACHED",
    "#12 [stage-2 3/6] RUN --mount=type=secret,id=ca --mount=type=cache uv pip install everything",
    "#12 23.45  Downloaded torch", "#12 24.01  Downloaded nvidia-cublas-cu11",
    "#12 24.01  Downloaded ruamel_yaml", "#12 25.01 Prepared 26 packages in 20.1s",
    "#12 DONE 61.2s", "#14 exporting layers", "#14 exporting layers 4.2s done", "#14 DONE 0.4s",
]  # fmt: skip


def test_progress_with_v_is_a_line_for_each_step_that_took_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = screen(monkeypatch, terminal=False)
    with Console(verbose=True).build_progress({"torch": 7}) as progress:
        for line in BUILD:
            progress.line(line)
    told = [line for line in stream.getvalue().splitlines() if "|" not in line]
    assert told == [
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
        (0, "step 1/2"), (0, "step 2/2"), (0, "step 3/6"), (700, "torch"),
        (200, "nvidia-cublas-cu11"), (10, "ruamel_yaml"), (0, "unpacking"), (0, "writing layers"),
    ]  # fmt: skip


def test_a_bar_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    screen(monkeypatch, terminal=True, TERM="xterm", COLUMNS="80")
    with Console().build_progress({"torch": 7}) as progress:
        progress.line("#12 [stage-2 3/6] RUN x")
        assert progress._progress is not None
    screen(monkeypatch, terminal=True, TERM="xterm")
    with Console(verbose=True).build_progress({}) as progress:
        assert progress._progress is None


@cases(
    "line",
    ("an empty line", ""),
    ("a mark alone", "#"),
    ("a time that is none", "#12 DONE 1.2.3s"),
    ("a time of dots", "#12 DONE ..s"),
    ("a bracket that is not closed", "#12 [a 1/2"),
    ("an endless name", "#12 [" + "a " * 20_000 + "1/2"),
)
def test_odd_lines_are_passed_over(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    stream = screen(monkeypatch, terminal=False)
    with Console().build_progress({}) as progress:
        progress.line("#12 [a 1/2] RUN x")
        progress.line(line)
    assert stream.getvalue() == ""
