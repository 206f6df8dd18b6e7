"""Workers that are left behind if need be.

Neither a name look-up nor a server that sends a byte now and then can be told to hurry; whoever
waits stops waiting, and the process can end all the same.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_Done = TypeVar("_Done")


class Threads:
    """A pool of daemon threads; `concurrent.futures` has none that a process does not wait for."""

    def __init__(self, count: int, name: str) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = count
        for _ in range(count):
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, work: Callable[..., _Done], *words: Any) -> Future[_Done]:  # noqa: ANN401
        """Let one of them do it."""
        future: Future[_Done] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work(*words)
            except BaseException as error:  # noqa: BLE001  raised again where it is waited for
                future.set_exception(error)
            else:
                future.set_result(result)

        self._waiting.put(run)
        return future

    def close(self) -> None:
        """Let them go home when what was submitted is done."""
        for _ in range(self._count):
            self._waiting.put(None)

    def _work(self) -> None:
        while (run := self._waiting.get()) is not None:
            run()
