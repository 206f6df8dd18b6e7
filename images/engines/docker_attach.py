"""A container of a Docker engine with this process's input, output and terminal.

The engine's stream is the terminal's, or frames of standard output and standard error:
https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerAttach
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import termios
import threading
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from images.engines.container import send_signal
from images.system.foreground import kept_terminal
from images.system.interruption import passed_on

if TYPE_CHECKING:
    from docker.models.containers import Container

_PIECE = 1 << 16
_HEADER = 8  # one byte for the stream, three of zero, four for the size


class AttachedContainer:
    """The connection to a container that was created for this, and has not started yet."""

    def __init__(self, container: Container, *, terminal: bool) -> None:
        self._container: Any = container
        self._terminal = terminal
        engine: Any = container.client
        opened = engine.api.attach_socket(
            container.id or "", params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        )
        self._opened = opened
        self._socket: Any = getattr(opened, "_sock", opened)
        self._socket.settimeout(None)

    def close(self) -> None:
        """Close the connection."""
        self._opened.close()
        self._socket.close()

    def carry(self) -> int:
        """Copy input and output, and pass signals on, until it has ended; returns its exit code."""
        with kept_terminal() if self._terminal else contextlib.nullcontext():
            if self._terminal:
                tty.setraw(0, termios.TCSADRAIN)
                self._resize()
            with passed_on(self._send):
                threading.Thread(target=self._give_input, daemon=True).start()
                try:
                    self._show_output()
                except BrokenPipeError:  # our reader has gone: as the kernel ends a program
                    self._send(signal.SIGKILL)
                    return 128 + signal.SIGPIPE
                return int(self._container.wait(timeout=None)["StatusCode"])

    def _send(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._resize()
        else:
            send_signal(self._container, number)

    def _resize(self) -> None:
        with contextlib.suppress(OSError):
            columns, lines = os.get_terminal_size(0)
            self._container.resize(lines, columns)

    def _give_input(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(0, _PIECE):
                self._socket.sendall(data)
        with contextlib.suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_WR)

    def _show_output(self) -> None:
        if self._terminal:
            while data := self._socket.recv(_PIECE):
                _write(1, data)
            return
        for stream, data in frames(iter(lambda: self._socket.recv(_PIECE), b"")):
            _write(2 if stream == 2 else 1, data)


def frames(pieces: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """(stream, data) of an engine's frames, from pieces that end anywhere: 1 is standard output, 2
    standard error. Data is passed on as it comes, also of an incomplete frame.
    """
    pending, stream, left = b"", 0, 0
    for piece in pieces:
        pending += piece
        while pending:
            if left == 0:
                if len(pending) < _HEADER:
                    break
                stream, left = pending[0], int.from_bytes(pending[4:_HEADER], "big")
                pending = pending[_HEADER:]
                continue
            data, pending = pending[:left], pending[left:]
            left -= len(data)
            yield stream, data


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
