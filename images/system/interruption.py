"""The signals that interrupt this program, and a delay of them during calls that must not be."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from types import FrameType

ENDING = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM),
    *(signal.SIGPROF, signal.SIGXCPU, signal.SIGIO, signal.SIGPWR),
)
"""Those that others send and that end a program by default, without time to clean up. Batch systems
announce a time limit by any of them (Slurm: --signal).
"""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay the first interruption to the end of the block; a second one acts at once.

    For short calls: an interrupted one may leave a connection pool locked, or a container or
    process that nothing keeps track of.
    """
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in ENDING}
    came: list[int] = []

    def put_off(number: int, frame: FrameType | None) -> None:
        handler = handlers[number]
        if came and callable(handler):
            handler(number, frame)
        came.append(number)

    if threading.current_thread() is not threading.main_thread():
        handlers.clear()  # only the main thread gets signals
    try:
        for number, handler in handlers.items():
            if callable(handler):
                signal.signal(number, put_off)
        yield
    finally:
        for number, handler in handlers.items():
            if callable(handler):
                signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


_USUAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@final
class HandedOn:
    """Hands the first signal that would end this program on to what runs for it, once `to` has said
    how: that can then say what it has found, and end. The next signal, or `grace_s` later, ends
    this program as usual.
    """

    def __init__(self, grace_s: float) -> None:
        self.came = False
        self._grace_s = grace_s
        self._send: Callable[[int], object] | None = None
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None

    def to(self, send: Callable[[int], object]) -> None:
        """`send` is called in a thread, with SIGTERM or what a user sends: Ctrl-C, a hang-up."""
        self._send = send

    def __enter__(self) -> HandedOn:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                if callable(handler := signal.getsignal(number)):
                    self._before[number] = handler
                    signal.signal(number, self._first)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        if self._timer is not None:
            self._timer.cancel()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _first(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        if self._send is None:
            self._before[number](number, frame)
            return
        self.came = True
        with contextlib.suppress(KeyboardInterrupt):  # it keeps the number for the exit code
            self._before[number](number, frame)
        sent = number if number in _USUAL else signal.SIGTERM
        threading.Thread(target=self._send, args=(sent,), daemon=True).start()
        main = threading.main_thread().ident
        self._timer = threading.Timer(self._grace_s, signal.pthread_kill, (main, number))
        self._timer.daemon = True
        self._timer.start()


_PATIENCE = 2


@contextlib.contextmanager
def passed_on(send: Callable[[int], None]) -> Iterator[None]:
    """Call `send`, in a thread, with each signal that would end this program, and with changes of
    the terminal's size. After two that would end it SIGKILL is sent. Ignored ones stay ignored.
    """
    numbers: SimpleQueue[int] = SimpleQueue()
    before: dict[int, Any] = {}

    def work() -> None:
        endings = 0
        while number := numbers.get():
            endings += number in ENDING
            send(signal.SIGKILL if endings > _PATIENCE else number)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        for one in map(int, (*ENDING, signal.SIGWINCH)):
            if (handler := signal.getsignal(one)) != signal.SIG_IGN:
                before[one] = handler
                signal.signal(one, lambda came, _: numbers.put(came))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        numbers.put(0)
        worker.join()
