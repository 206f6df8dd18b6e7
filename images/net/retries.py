"""Timeouts and retries: how long to wait, how often to try again, and after which answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TypeVar

from images.net.address import host_of
from images.net.errors import REACH_FIX, BrokenOff
from images.net.head import Head

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""
# One failed try and a short pause are not reported.
_SILENT_S = 2.0

_Answer = TypeVar("_Answer", bound=Head)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How long to wait, and how often to try again.

    `commit_s` is for the end of an upload: registries copy or hash gigabytes before they answer.
    `tries` limits the failures in a row without progress; the wait doubles after each.
    """

    connect_s: float = 10.0
    silence_s: float = 60.0
    answer_s: float = 60.0
    commit_s: float = 600.0
    tries: int = 5
    first_wait_s: float = 0.5
    longest_wait_s: float = 20.0
    on_wait: Callable[[str], None] = field(default=lambda _: None, compare=False)
    """Called, from any thread, before a retry with the reason."""

    def wait_s(self, failures: int, asked_s: float | None = None) -> float:
        """The wait after this many failures; `asked_s` is what the server requests."""
        doubled: float = self.first_wait_s * 2 ** max(0, failures - 1)
        return min(self.longest_wait_s, max(doubled, asked_s or 0.0))


class Tries:
    """Counts failures in a row, and pauses after each."""

    def __init__(
        self,
        retries: Retries,
        *,
        most: Callable[[], int] | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._retries = retries
        self._most = most or (lambda: retries.tries)
        self._sleep = sleep
        self.failures = 0

    def run(self, ask: Callable[[], _Answer]) -> _Answer:
        """Call `ask` until its answer is not a retryable one or the tries are used up: then return
        the last answer, or raise BrokenOff.
        """
        while True:
            try:
                answer = ask()
            except BrokenOff as error:  # noqa: PERF203  each try is a request
                if not self.again(error):
                    raise
            else:
                if answer.status not in AGAIN or not self.again(busy(answer)):
                    return answer

    def again(self, trouble: BrokenOff, *, progress: bool = False) -> bool:
        """Count a failure and pause before the next try; False if there is to be none."""
        if not self.count(trouble, progress=progress):
            return False
        self.pause(trouble)
        return True

    def count(self, trouble: BrokenOff, *, progress: bool = False) -> bool:
        """Count a failure, and return whether to try again."""
        self.failures = 1 if progress else self.failures + 1
        return not trouble.final and self.failures < self._most()

    def pause(self, trouble: BrokenOff) -> None:
        """Wait, longer each time and at least as long as the server requests, up to the limit."""
        # jitter: many clients may have been refused at the same time
        spread = random.uniform(0.8, 1.0)  # noqa: S311
        # no jitter on what the server requests: earlier it would refuse again
        seconds = max(
            self._retries.wait_s(self.failures) * spread,
            self._retries.wait_s(0, trouble.asked_s) if trouble.asked_s else 0.0,
        )
        if self.failures > 1 or seconds > _SILENT_S:
            self._retries.on_wait(f"{trouble}; trying again in {seconds:.0f} s")
        self._sleep(seconds)


def busy(answer: Head, fix: str = REACH_FIX) -> BrokenOff:
    """The BrokenOff for an answer whose status says to try again."""
    more = ": too many requests from here for now" if answer.status == 429 else ""
    return BrokenOff(
        f"answered HTTP {answer.status}{more}",
        host=host_of(answer.url),
        kind="busy",
        fix=f"Try again later. {fix}",
        asked_s=retry_after(answer, time.time()),
    )


def retry_after(answer: Head, now: float) -> float | None:
    """The wait that the server requests (Retry-After), in seconds."""
    text = answer.headers.get("retry-after", "").strip()
    # isdigit alone is true for superscripts, which float() refuses
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now) if text else None
    except (TypeError, ValueError, OverflowError):
        return None
