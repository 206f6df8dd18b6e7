"""Worker threads that can be abandoned.

Neither a DNS lookup nor a server that sends a byte now and then can be interrupted; the caller
stops waiting, and the process can exit all the same.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from provision.catalog.refresh.model import SourceError

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


class Threads:
    """A pool of daemon threads; a process waits for those of `concurrent.futures` at exit."""

    def __init__(self, count: int, name: str) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = count
        for _ in range(count):
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, work: Callable[..., _Done], *words: Any) -> Future[_Done]:  # noqa: ANN401
        """Queue a call for one of the threads."""
        future: Future[_Done] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work(*words)
            except BaseException as error:  # noqa: BLE001  raised again in the waiting thread
                future.set_exception(error)
            else:
                future.set_result(result)

        self._waiting.put(run)
        return future

    def close(self) -> None:
        """Let the threads end when everything that was submitted is done."""
        for _ in range(self._count):
            self._waiting.put(None)

    def _work(self) -> None:
        while (run := self._waiting.get()) is not None:
            run()


def each(
    threads: Threads,
    items: Mapping[_Key, _Item],
    work: Callable[[_Item], _Done],
    troubles: list[SourceError],
) -> dict[_Key, _Done]:
    """Run a function on every item in parallel, in their order, and collect the failures."""
    running = {key: threads.submit(_attempt, work, item) for key, item in items.items()}
    done = {key: future.result() for key, future in running.items()}
    troubles += [found for found in done.values() if isinstance(found, SourceError)]
    return {key: found for key, found in done.items() if not isinstance(found, SourceError)}


def _attempt(work: Callable[[_Item], _Done], item: _Item) -> _Done | SourceError:
    try:
        return work(item)
    except SourceError as error:
        return error
