"""Runs a command in a new terminal, shown on ours, so that it cannot type into the user's.

What starts the sandbox is in the terminal's foreground, too, and Ctrl-C would end it: the command
gets these signals from here.

A separate program that needs only the standard library: `python3 -I -S terminal.py COMMAND...`. If
standard input is not a terminal, it execs the command.
"""

# The system calls are used directly, not through pathlib:
# ruff: noqa: PTH123, PTH208, S606

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


def signal_of(key: int, screen: int, leader: int) -> int | None:
    """The signal that a key sends to the group of `leader`, if that is in the foreground; 0: one
    that would stop it. None: the key is input, or another group's.
    """
    settings = termios.tcgetattr(screen)
    if not settings[3] & termios.ISIG or os.tcgetpgrp(screen) != leader:
        return None
    numbers = {termios.VINTR: signal.SIGINT, termios.VQUIT: signal.SIGQUIT, termios.VSUSP: 0}
    return next((n for i, n in numbers.items() if settings[6][i] == bytes([key])), None)


def send(number: int, leader: int) -> None:
    """Send a signal to the group of `leader`, except itself. The first process of the sandbox gets
    none that it does not handle (pid_namespaces(7)): this ends it, as it would elsewhere.
    """
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if int(name) == leader or os.getpgid(int(name)) != leader:
                continue
            with open(f"/proc/{name}/status", encoding="utf-8", errors="replace") as file:
                status = dict(line.split(":", 1) for line in file)
            masks = (int(status[mask], 16) for mask in ("SigCgt", "SigBlk", "SigIgn"))
            is_handled = any(mask >> (number - 1) & 1 for mask in masks)
            is_first = status["NSpid"].split()[1:][-1:] == ["1"]
            os.kill(int(name), signal.SIGKILL if is_first and not is_handled else number)


def carry(screen: int, leader: int) -> None:
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
            if not data:
                watched.remove(0)
            for key in data:
                number = signal_of(key, screen, leader)
                if number is None:
                    write_all(screen, bytes([key]))
                elif number:
                    send(number, leader)


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
        tty.setraw(0, termios.TCSADRAIN)
        carry(screen, child)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
