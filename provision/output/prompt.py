"""Asks the person at the terminal."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator

from provision.errors import BadInputError


class NotConfirmedError(BadInputError):
    """Something would be removed, which was not confirmed, and there is no terminal to ask at."""

    code = "not-confirmed"


def confirm(question: str, *, yes: bool, command: str) -> bool:
    """Whether it may be done: with --yes, or a person says so. `command`: what confirms it.
    NotConfirmedError: there is no terminal.
    """
    if yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise NotConfirmedError(
            "Nothing was removed: there is no terminal to ask at.", fix=f"Confirm it: {command}"
        )
    return ask_at_terminal(question)


def ask_at_terminal(question: str) -> bool:
    """Ask; only "y" or "yes" is a yes, and end of input is a no.

    KeyboardInterrupt at the first Ctrl-C, whenever it comes.
    """
    with _signals() as signals:  # before the question, which a person may answer at once
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        answer = _read_line(sys.stdin.fileno(), signals)
    return answer.strip().lower() in {b"y", b"yes"}


def _read_line(terminal: int, signals: int) -> bytes:
    """The line that was typed, or the part of it before end of input.

    A signal that arrives between Python's last look for one and the read() of the system
    interrupts nothing: Python would raise KeyboardInterrupt only after the next line. So the read
    begins only when there is something to read, and the signal itself ends the waiting for that
    (https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd).
    """
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([terminal, signals], [], [])
        # the handler of a signal has run before this line, and has raised if it was Ctrl-C
        if signals in ready:
            os.read(signals, 4096)
        if terminal in ready:
            typed = _typed(terminal)
            if not typed:
                break
            line += typed
    return line


def _typed(terminal: int) -> bytes:
    """The available input; empty at end of input, and if the terminal is gone."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A descriptor that becomes readable with every signal that Python handles."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    try:
        yield readable
    finally:
        signal.set_wakeup_fd(before)
        os.close(readable)
        os.close(writable)
