"""What a person sees on stderr: one line a step with its time, a bar where there is a terminal.

Nothing here decides; results go to stdout through `provision.cli` alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_BUILDKIT_STEP = re.compile(r"#(\d+) \[(?:[^\]]*?)(\d+)/(\d+)\] (.*)")
_BUILDKIT_DONE = re.compile(r"#(\d+) DONE ([\d.]+)s")
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
        self._colour = self._terminal and "NO_COLOR" not in os.environ

    def say(self, text: str) -> None:
        """One line."""
        print(text, file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """A line that belongs to the step under way."""
        self.say(f"    {text}")

    def warn(self, message: str, fix: str) -> None:
        """Something unwelcome that does not stop the job."""
        self.say(f"{self._paint('33', 'warning:')} {message}\n         fix: {fix}")

    def fail(self, message: str, fix: str, detail: str = "") -> None:
        """Why the job ends here, and the way out."""
        if detail:
            self.say("\n".join(f"    | {line}" for line in detail.splitlines()))
        self.say(f"{self._paint('31;1', 'error:')} {message}\n  fix: {fix}")

    def detail(self, line: str) -> None:
        """Raw output, for those who asked for it."""
        if self._verbose:
            self.say(f"    | {line}")

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

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


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
            self._names[match[1]] = f"{match[2]}/{match[3]} {match[4]}"
            self._describe(f"step {match[2]}/{match[3]}")
        elif match := _BUILDKIT_DONE.match(text):
            self._done(self._names.pop(match[1], ""), float(match[2]))
        elif match := _UV_DOWNLOADED.search(text):
            self._downloaded(match[1])
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
            self._console.note(f"{seconds:5.1f} s  {name[:64]}")
