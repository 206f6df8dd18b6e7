"""Runs a command in a new terminal, shown on ours, so that it cannot type into the user's.

A separate program that needs only the standard library: `python3 -I -S terminal.py COMMAND...`. If
standard input is not a terminal, it execs the command.
"""

# The system calls are used directly, not through pathlib:
# ruff: noqa: PTH208, S606

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import sys
import termios
import tty


def take_size(screen: int) -> None:
    """Set a terminal to the size of ours."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(screen, termios.TIOCSWINSZ, size)


def carry(screen: int) -> None:
    """Copy input and output between the terminals, until the command closes its side."""
    watched = [0, screen]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if screen in ready:
            try:
                data = os.read(screen, 65536)
            except OSError:  # Linux reports this when the last process has closed it
                return
            if not data:
                return
            write_all(1, data)
        if 0 in ready:
            data = os.read(0, 65536)
            if data:
                write_all(screen, data)
            else:
                watched.remove(0)


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def main() -> int:
    argv = sys.argv[1:]
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # listdir's own descriptor is closed by now
                os.close(int(name))
    if not os.isatty(0):
        os.execv(argv[0], argv)
    child, screen = pty.fork()
    if child == 0:
        os.execv(argv[0], argv)
    take_size(screen)
    signal.signal(signal.SIGWINCH, lambda *_: take_size(screen))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        carry(screen)
    finally:
        termios.tcsetattr(0, termios.TCSAFLUSH, before)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
