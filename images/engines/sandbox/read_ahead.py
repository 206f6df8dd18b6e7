"""Reads a layer in a thread while its files are written: both take about as long."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Generator

_PIECES = 8
"""A few megabytes: enough that the threads do not wait for each other at every piece."""
_POLL_S = 0.2
_PATIENCE_S = 5.0


class _End:
    """The end of the pieces, with an error if there was one."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def read_ahead(pieces: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Yield the same pieces; a thread reads the next ones meanwhile."""
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
        except BaseException as error:  # noqa: BLE001  raised in the consumer's thread
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
        # do not wait longer for a thread that waits for a network
        thread.join(_PATIENCE_S)
