"""What a person sees on stderr: one line a step with its time, a bar where there is a terminal.

Nothing here decides; results go to stdout through `provision.cli` alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

WIDTH = 80
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a job and how long it took, in seconds."""

    name: str
    seconds: float


class Console:
    """stderr for people. `quiet` says nothing but warnings and errors."""

    def __init__(self, *, verbose: bool = False) -> None:
        self.steps: list[Step] = []
        self._verbose = verbose
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._colour = self._terminal and not os.environ.get("NO_COLOR")

    def say(self, text: str) -> None:
        """One line. A job does not end because nobody reads along (2>&1 | head)."""
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """A line that belongs to the step under way."""
        self.say(_wrapped(_clean(text), "    ", "      "))

    def warn(self, message: str, fix: str) -> None:
        """Something unwelcome that does not stop the job."""
        words = _wrapped(_clean(message), "warning: ", " " * 9)
        told = words.replace("warning:", self._paint("33", "warning:"), 1)
        self.say(f"{told}\n{_wrapped(_clean(fix), ' ' * 9 + 'fix: ', ' ' * 14)}")

    def fail(self, message: str, fix: str, detail: str = "") -> None:
        """Why the job ends here, and the way out."""
        if detail:
            self.say("\n".join(f"    | {_clean(line)}" for line in detail.splitlines()))
        self.say(f"{self._paint('31;1', 'error:')} {_clean(message)}\n  fix: {_clean(fix)}")

    def detail(self, line: str) -> None:
        """Raw output, for those who asked for it."""
        if self._verbose:
            self.say(f"    | {_clean(line)}")

    @contextlib.contextmanager
    def step(self, name: str, what: str) -> Iterator[None]:
        """Say what begins, and note how long it took."""
        self.say(f"{self._paint('36', f'{name:<8}')} {what}")
        began = time.monotonic()
        try:
            yield
        finally:
            self.steps.append(Step(name=name, seconds=time.monotonic() - began))

    @contextlib.contextmanager
    def build_progress(self, sizes: dict[str, int]) -> Iterator[BuildProgress]:
        """Follow a build: a bar of the bytes downloaded on a terminal, a line a step else."""
        if not self._terminal or self._verbose:
            yield BuildProgress(self, sizes, None, None)
            return
        from rich.console import Console as RichConsole
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (
            TextColumn("    {task.description:<26.26}"),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=RichConsole(stderr=True), transient=True) as progress:
            task = progress.add_task("starting", total=sum(sizes.values()) or None)
            yield BuildProgress(self, sizes, progress, task)

    @contextlib.contextmanager
    def transfer(self) -> Iterator[TransferProgress]:
        """Follow wheels that come and layers that go: two bars on a terminal, a line each else."""
        if not self._terminal or self._verbose:
            quiet = TransferProgress(None)
            yield quiet
            for words in quiet.summary():
                self.note(words)
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
            TextColumn("    {task.description:<7.7}"),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[last]:<14.14}"),
        )
        with Progress(*columns, console=RichConsole(stderr=True), transient=True) as progress:
            shown = TransferProgress(progress)
            yield shown
        for words in shown.summary():
            self.note(words)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


class TransferProgress:
    """Counts the bytes that came and those that went; any thread may tell."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._bytes = {"fetched": 0, "written": 0}
        self._last = {"fetched": 0.0, "written": 0.0}

    def will_fetch(self, total_bytes: int) -> None:
        """So much has to come, what is here already included."""
        self._add("fetched", total_bytes)

    def fetched(self, name: str, count: int) -> None:
        """So many more bytes of a wheel are here; fewer than none where it begins anew."""
        self._advance("fetched", name, count)

    def expect(self, total_bytes: int) -> None:
        """So much has to go, roughly: how large a layer is shows when it is written."""
        self._add("written", total_bytes)

    def wrote(self, title: str, count: int) -> None:
        """So many more bytes of a layer are where they belong."""
        self._advance("written", title, count)

    def summary(self) -> Iterator[str]:
        """What came and what went, and how long after the start the last of it did."""
        for name, count in self._bytes.items():
            if count > 0:
                seconds = self._last[name] - self._began
                yield f"{seconds:5.1f} s  {_in_bytes(count)} {_WORDS[name]}"

    def _add(self, name: str, total: int) -> None:
        if self._progress is not None and total:
            self._tasks[name] = self._progress.add_task(name, total=total, last="")

    def _advance(self, name: str, what: str, count: int) -> None:
        with self._lock:
            self._bytes[name] += count
            self._last[name] = time.monotonic()
        if self._progress is not None and name in self._tasks:
            self._progress.update(self._tasks[name], advance=count, last=what)


_WORDS = {"fetched": "of wheels fetched", "written": "of layers written"}


def _in_bytes(count: int) -> str:
    """2331452000 -> "2.33 GB" (powers of ten, as docker prints)."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _wrapped(text: str, first: str, rest: str) -> str:
    """Lines of at most 80 columns; what cannot be broken (an address, a command) stays whole."""
    lines = text.splitlines() or [""]
    if len(lines) > 1 or len(first) + len(text) <= WIDTH:
        return "\n".join(f"{first if i == 0 else rest}{line}" for i, line in enumerate(lines))
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _clean(text: str) -> str:
    """Text from outside (a path, a tool's output) may not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else "?" for c in text)


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
            self._progress.update(self._task, description=words)

    def _downloaded(self, name: str) -> None:
        size = self._sizes.get(name.lower().replace("_", "-"), 0)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=size, description=name)

    def _done(self, name: str, seconds: float) -> None:
        if self._progress is None and name and seconds >= 1:
            self._console.note(f"{seconds:5.1f} s  {name[:62]}")


def _step_words(command: str) -> str:
    known = next((words for sign, words in _STEPS if sign in command), None)
    return known or re.sub(r"--mount=\S+ ", "", command)
