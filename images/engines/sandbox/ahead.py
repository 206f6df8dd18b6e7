"""Does the reading of a layer beside the writing of its files: both take about as long."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Generator

_PIECES = 8
"""A few megabytes: enough that neither waits for every piece of the other."""
_POLL_S = 0.2
_PATIENCE_S = 5.0


class _End:
    """What follows the last piece; with an error if there was one."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def ahead(pieces: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Give the same pieces, the next ones of which are made meanwhile, in a thread."""
    waiting: queue.Queue[bytes | _End] = queue.Queue(_PIECES)
    unwanted = threading.Event()

    def hand_over(one: bytes | _End) -> None:
        while not unwanted.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put(one, timeout=_POLL_S)
                return

    def work() -> None:
        end = _End()
        try:
            with contextlib.closing(pieces):
                for piece in pieces:
                    hand_over(piece)
                    if unwanted.is_set():
                        return
        except BaseException as error:  # noqa: BLE001  it is raised where it is waited for
            end = _End(error)
        hand_over(end)

    thread = threading.Thread(target=work, name="layer", daemon=True)
    thread.start()
    try:
        while not isinstance(piece := waiting.get(), _End):
            yield piece
        if piece.error is not None:
            raise piece.error
    finally:
        unwanted.set()
        # one that waits for a network ends with it; nobody waits for that
        thread.join(_PATIENCE_S)
