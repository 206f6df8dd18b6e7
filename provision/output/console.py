"""Progress and messages on stderr. Nothing here decides; `stdout` prints the results.

On a terminal, and with --verbose, a stage prints its name and then what happens in it. In a file or
a CI log it is one line when it has ended: its name, its time, its result; then what a reader has to
know (`note`, `warn`). A long stage reports its progress every minute, or every `pulse_s`.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from images.text.printable import printable, printable_lines
from provision.output import chinese
from provision.output.invocation import as_called
from provision.output.style import columns, is_coloured, paint

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PULSE_S = 60.0
_CHECK = re.compile(r"\s*\d+/\d+\s+(pass|skip|fail|error)\s")  # a line of the suite
_BUILDKIT_STEP = re.compile(r"#(\d+) \[(?:[^\]]*?)(\d+)/(\d+)\] (.*)")
_EXPORTED = re.compile(r"#\d+ exporting layers ([\d.]+)s done")
_BUILDKIT_DONE = re.compile(r"#(\d+) DONE (\d+(?:\.\d+)?)s")
# Steps of Dockerfile.cuda that take time, by what their command holds.
_STEPS = (
    ("apt-get install", "Python into the base"),
    ("uv pip install", "wheels: download, check, unpack, byte code"),
    ("uv.txt", "uv, which installs the wheels"),
)
_UV_INSTALLING = re.compile(r" Prepared \d+ packages")
_UV_DOWNLOADED = re.compile(r" Downloaded ([A-Za-z0-9_.\-]+)")


class Step(NamedTuple):
    """One step of a job and how long it took, in seconds."""

    name: str
    seconds: float


class _Stage:
    """A running step, of which a log shows only the end."""

    def __init__(self, *, name: str, what: str, named: bool) -> None:
        self.name = name
        self.what = what
        self.named = named
        self.results: list[str] = []
        self.texts: list[str] = []
        self.status: Callable[[], str] = str
        self.over = threading.Event()

    def ending(self, problem: str) -> str:
        """The text of its line: the result, and its subject if that is not obvious."""
        result = problem or "; ".join(self.results)
        what = self.what if self.named or not result else ""
        return ": ".join(filter(None, (what, result)))


class Console:
    """stderr for people."""

    def __init__(self, *, verbose: bool = False) -> None:
        self.steps: list[Step] = []
        self.pulse_s = PULSE_S  # between two reports of progress in a log
        self._verbose = verbose
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._colour = is_coloured(sys.stderr, os.environ)
        self._width = columns(sys.stderr, os.environ)
        self._is_brief = not self._terminal and not verbose
        self._stage: _Stage | None = None

    def say(self, text: str) -> None:
        """Lines of text: control characters are removed, and commands are as they are typed."""
        self._write(as_called(printable_lines(text)))

    @staticmethod
    def _write(text: str) -> None:
        """The only place that writes: our own colours, and text that is already printable. A job
        does not end because its output is closed (2>&1 | head).
        """
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """A remark about the current step, shown on a terminal and in a log."""
        self._tell(self._wrapped(text, "    ", "      "))

    def result(self, text: str) -> None:
        """The result of the running step."""
        if self._is_brief and self._stage is not None:
            self._stage.results.append(printable(text))
        else:
            self.note(text)

    def progress(self, text: str) -> None:
        """The progress of the running step, on a terminal only; not in a file."""
        if not self._is_brief:
            self.note(text)
        elif self._stage is not None and (words := printable(text).strip()):
            self._stage.status = lambda: words

    def suite_line(self, line: str) -> None:
        """A line from a running suite: in a file, failed checks only; packages print others."""
        check = _CHECK.match(line)
        if check and check[1] in {"fail", "error"}:
            self.note(line.strip() if self._is_brief else line)
        elif check or not self._is_brief:
            self.progress(line)

    def warn(self, message: str, fix: str) -> None:
        """A problem that does not stop the job. `fix`: "" if nothing helps."""
        words = self._wrapped(message, "warning: ", " " * 9)
        help_ = f"\n{self._wrapped(fix, ' ' * 9 + 'fix: ', ' ' * 14)}" if fix else ""
        self._tell(words.replace("warning:", self._paint("33", "warning:"), 1) + help_)

    def fail(self, message: str, fix: str, detail: str = "", *, code: str = "") -> None:
        """Why the job ends here, and the fix; what the code means, for a Chinese locale."""
        if detail:
            self.quote(detail)
        words = as_called(f"error: {printable_lines(message)}\n  fix: {printable_lines(fix)}")
        if self._terminal:  # a line of a log is whole, to be found
            words = self._wrapped(message, "error: ", " " * 7)
            words += f"\n{self._wrapped(fix, '  fix: ', ' ' * 7)}"
        if said := chinese.sentence(code):
            words += f"\n {chinese.LABEL}: {said}"
        self._write(words.replace("error:", self._paint("31;1", "error:"), 1))

    def detail(self, line: str) -> None:
        """Raw output, with --verbose only."""
        if self._verbose:
            self.quote(line)

    def quote(self, text: str) -> None:
        """Lines of the output of other programs, as they are."""
        self._write(printable_lines("\n".join(f"    | {line}" for line in text.splitlines())))

    @contextlib.contextmanager
    def step(self, name: str, what: str, *, named: bool = False) -> Iterator[None]:
        """A stage of a job: what it does, how long it took, its result. `named`: the line at its
        end repeats its subject.
        """
        if not self._is_brief:
            self._write(f"{self._paint('36', f'{name:<8}')} {printable(what)}")
        began = time.monotonic()
        stage = _Stage(name=name, what=printable(what), named=named)
        with self._staged(stage, began) if self._is_brief else contextlib.nullcontext():
            try:
                yield
            finally:
                self.steps.append(Step(name=name, seconds=time.monotonic() - began))

    @contextlib.contextmanager
    def _staged(self, stage: _Stage, began: float) -> Iterator[None]:
        """Report a stage when it has ended, and its progress while it takes long."""
        self._stage = stage
        threading.Thread(target=self._pulse, args=(stage, began), daemon=True).start()
        problem = ""
        try:
            yield
        except BaseException as error:
            problem = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            raise
        finally:
            stage.over.set()
            self._stage = None
            self._say_stage(stage, began, stage.ending(problem))
            for text in stage.texts:
                self._write(text)

    def _pulse(self, stage: _Stage, began: float) -> None:
        while not stage.over.wait(self.pulse_s):
            status = stage.status()
            self._say_stage(stage, began, f"... {status}" if status else "...")

    def _say_stage(self, stage: _Stage, began: float, text: str) -> None:
        # not wrapped: a line of a log is found, sorted and counted by its beginning
        self.say(f"{stage.name:<8} {time.monotonic() - began:6.1f} s  {text}")

    def _tell(self, text: str) -> None:
        """Now, or below the line of the running stage."""
        if self._stage is not None:
            self._stage.texts.append(text)
        else:
            self._write(text)

    @contextlib.contextmanager
    def build_progress(self, sizes: dict[str, int]) -> Iterator[BuildProgress]:
        """Follow a build: a bar of the bytes downloaded on a terminal, a line per step with -v."""
        if not self._terminal or self._verbose:
            yield BuildProgress(self, sizes, None, None)
            return
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("    {task.description:<26.26}", markup=False),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=RichConsole(stderr=True), transient=True) as progress:
            task = progress.add_task("starting", total=sum(sizes.values()) or None)
            yield BuildProgress(self, sizes, progress, task)

    @contextlib.contextmanager
    def transfer(self) -> Iterator[TransferProgress]:
        """Follow the download of wheels and the writing of layers: two bars on a terminal, a line
        each afterwards.
        """
        if not self._terminal or self._verbose:
            quiet = TransferProgress(None)
            if self._stage is not None:
                before = self._stage.status
                self._stage.status = lambda: quiet.status() or before()
            yield quiet
            for words in quiet.summary():
                self.progress(words)
            return
        from rich.console import Console as RichConsole
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("    {task.description:<7.7}", markup=False),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[last]:<14.14}", markup=False),
        )
        with Progress(*columns, console=RichConsole(stderr=True), transient=True) as progress:
            shown = TransferProgress(progress)
            yield shown
        for words in shown.summary():
            self.note(words)

    def _paint(self, code: str, text: str) -> str:
        return paint(code, text) if self._colour else text

    def _wrapped(self, text: str, first: str, rest: str) -> str:
        """Printable lines as wide as the terminal; what cannot be broken (a URL) stays whole."""
        text = as_called(printable_lines(text))
        lines = text.splitlines() or [""]
        if len(lines) > 1 or len(first) + len(text) <= self._width:
            return "\n".join(f"{first if i == 0 else rest}{line}" for i, line in enumerate(lines))
        from provision.output.text import filled

        return "\n".join(filled(text, first, rest, columns=self._width))


class TransferProgress:
    """Counts the bytes that were fetched and written; thread-safe."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._bytes = dict.fromkeys(_WORDS, 0)
        self._expected = dict.fromkeys(_WORDS, 0)
        self._last = dict.fromkeys(_WORDS, 0.0)

    def will_fetch(self, total_bytes: int) -> None:
        """Bytes to fetch in total, including what is already here."""
        self._add("fetched", total_bytes)

    def fetched(self, name: str, count: int) -> None:
        """More bytes of a wheel were fetched; negative if its download starts again."""
        self._advance("fetched", name, count)

    def expect(self, total_bytes: int) -> None:
        """Bytes to write, roughly: the size of a layer is known only when it is written."""
        self._add("written", total_bytes)

    def wrote(self, title: str, count: int) -> None:
        """More bytes of a layer were written to the target."""
        self._advance("written", title, count)

    def will_copy(self, total_bytes: int) -> None:
        """Bytes to copy or check on this machine in total."""
        self._add("copied", total_bytes)

    def copied(self, name: str, count: int) -> None:
        """More bytes of a file were copied or checked."""
        self._advance("copied", name, count)

    def say(self, text: str) -> None:
        """A line above the bars, on a terminal."""
        if self._progress is not None:
            self._progress.console.print(f"    {printable(text)}", markup=False, highlight=False)

    def status(self) -> str:
        """How much was fetched and written so far: "1.20 of 2.33 GB of wheels fetched"."""
        with self._lock:
            parts = [
                f"{count / 1e9:.2f} of {self._expected[name] / 1e9:.2f} GB {_WORDS[name]}"
                for name, count in self._bytes.items()
                if count > 0
            ]
        return ", ".join(parts)

    def summary(self) -> Iterator[str]:
        """What was fetched and written, and how long after the start each was complete."""
        for name, count in self._bytes.items():
            if count > 0:
                seconds = self._last[name] - self._began
                yield f"{seconds:5.1f} s  {_in_bytes(count)} {_WORDS[name]}"

    def _add(self, name: str, total: int) -> None:
        with self._lock:
            self._expected[name] += total
        if self._progress is not None and total:
            self._tasks[name] = self._progress.add_task(name, total=total, last="")

    def _advance(self, name: str, what: str, count: int) -> None:
        with self._lock:
            self._bytes[name] += count
            self._last[name] = time.monotonic()
        if self._progress is not None and name in self._tasks:
            self._progress.update(self._tasks[name], advance=count, last=printable(what))


_WORDS = {"fetched": "of wheels fetched", "written": "of layers written", "copied": "copied"}


def _in_bytes(count: int) -> str:
    """2331452000 -> "2.33 GB" (powers of ten, as docker prints)."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


class BuildProgress:
    """Reads BuildKit's plain progress, line by line."""

    def __init__(
        self,
        console: Console,
        sizes: dict[str, int],
        progress: Progress | None,
        task: TaskID | None,
    ) -> None:
        self._console = console
        self._sizes = sizes
        self._progress = progress
        self._task = task
        self._names: dict[str, str] = {}

    def line(self, text: str) -> None:
        """One line of the builder's output."""
        self._console.detail(text)
        if match := _BUILDKIT_STEP.match(text):
            self._names[match[1]] = _step_words(match[4])
            self._describe(f"step {match[2]}/{match[3]}")
        elif match := _BUILDKIT_DONE.match(text):
            self._done(self._names.pop(match[1], ""), float(match[2]))
        elif match := _UV_DOWNLOADED.search(text):
            self._downloaded(match[1])
        elif _UV_INSTALLING.search(text):
            self._describe("unpacking")
        elif match := _EXPORTED.match(text):
            self._done("layers written", float(match[1]))
        elif "exporting layers" in text:
            self._describe("writing layers")

    def _describe(self, words: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=printable(words))

    def _downloaded(self, name: str) -> None:
        size = self._sizes.get(name.lower().replace("_", "-"), 0)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=size, description=printable(name))

    def _done(self, name: str, seconds: float) -> None:
        if self._progress is None and name and seconds >= 1:
            self._console.progress(f"{seconds:5.1f} s  {name[:62]}")


def _step_words(command: str) -> str:
    known = next((words for sign, words in _STEPS if sign in command), None)
    return known or re.sub(r"--mount=\S+ ", "", command)
