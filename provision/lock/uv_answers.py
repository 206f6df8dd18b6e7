"""What uv is asked in one job, and what it answered."""

from __future__ import annotations

import atexit
import contextlib
import functools
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from images.system.scratch import scratch_directory
from provision.lock.sources import SourceView
from provision.lock.uv import Outcome, SourcesForUv, WheelTarget, guarded_python
from provision.model.plan import DeclaredIndex

Answer = tuple[Outcome, str, str]
"""The outcome, the reason in one line, and the lock or what uv printed."""


@dataclass(frozen=True, slots=True)
class UvQuestion:
    """What uv is asked, as for `run_uv`."""

    lines: tuple[str, ...]
    target: WheelTarget
    index: str | None
    offline: bool
    alone: bool
    releases_only: bool
    constraints: tuple[str, ...]
    addresses: tuple[str, ...]
    declared: tuple[DeclaredIndex, ...] = ()
    view: SourceView | None = None


class UvAnswers:
    """What uv answered in one job: it is asked each question once, by the first thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[UvQuestion, Future[Answer]] = {}

    def of(self, question: UvQuestion, ask: Callable[[], Answer]) -> Answer:
        """The answer that is known, or that `ask` gives."""
        with self._lock:
            first = question not in self._known
            answer = self._known.setdefault(question, Future())
        if first:
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)
                raise
        return answer.result()


def sources_for_uv(made: Path, view: SourceView | None) -> SourcesForUv | None:
    """What a view gives uv, in its directory; None: only releases with wheels count."""
    python = _python(tempfile.gettempdir()) if view is not None else None
    if view is None or python is None:
        return None
    wheels = made / "wheels"
    wheels.mkdir()
    for one in view.built:
        (wheels / one.path.name).symlink_to(one.path)
    (made / "uv.toml").write_text(view.settings(), encoding="utf-8")
    overrides = made / "overrides.txt"
    overrides.write_text("".join(f"{line}\n" for line in view.overrides), encoding="utf-8")
    return SourcesForUv(
        python=python, wheels=wheels, overrides=overrides, wheels_only=view.wheels_only
    )


def _python(place: str) -> Path | None:
    """One for all calls of a process: uv asks a Python that it does not know about itself."""
    made = _made_python(place)
    if made is not None and not made.exists():  # what cleans temporary files took it
        _made_python.cache_clear()
        made = _made_python(place)
    return made


@functools.cache
def _made_python(place: str) -> Path | None:
    kept = contextlib.ExitStack()
    atexit.register(kept.close)
    return guarded_python(kept.enter_context(scratch_directory(Path(place))))
