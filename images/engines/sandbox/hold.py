"""Mounts a squashfs for as long as its standard input is open: a separate program.

`python3 -I -S hold.py DIRECTORY COMMAND...` runs the command, which mounts a file on the directory:
either it stays in the foreground and serves the mount (squashfuse), or it ends at once (mount). It
writes "mounted" to standard output when the mount is there. When the program that started this one
ends, for whatever reason, its end of the pipe is closed, and the mount is removed.
"""

# The system calls are used directly, not through pathlib:

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time

_LONGEST_S = 30.0
_POLL_S = 0.005
_END_S = 3.0
_SET_DEATH_SIGNAL = 1


class _Ended(BaseException):
    """A signal asked this program to end."""


def _end(number: int, frame: object) -> None:
    del number, frame
    raise _Ended


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)


def unmount(place: str) -> None:
    """Detach what is mounted at a place; programs that still use it keep it until they end."""
    for command in (
        ["umount", "--lazy", place],
        ["fusermount3", "-u", "-z", place],
        ["fusermount", "-u", "-z", place],
    ):
        if not is_mounted(place):
            return
        if shutil.which(command[0]):
            subprocess.run(command, check=False, capture_output=True, timeout=_END_S)


def is_mounted(place: str) -> bool:
    """Whether something is mounted at a place; also a mount whose server has ended, or which cannot
    show its root (os.path.ismount says that these are none).
    """
    try:
        return os.lstat(place).st_dev != os.lstat(f"{place}/..").st_dev
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _wait(place: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _LONGEST_S
    while time.monotonic() < deadline:
        if is_mounted(place):
            return True
        code = process.poll()
        if code is not None:
            return code == 0 and is_mounted(place)
        time.sleep(_POLL_S)
    return False


def main() -> int:
    place, command = sys.argv[1], sys.argv[2:]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    process = None
    mounted = False
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            preexec_fn=_die_with_us,  # noqa: PLW1509  there are no threads
        )
        mounted = _wait(place, process)
        if mounted:
            os.write(1, b"mounted\n")
            select.select([0], [], [])
    except _Ended:
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        unmount(place)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S if mounted else 0)
            process.kill()
            process.wait()
    return 0 if mounted else 1


if __name__ == "__main__":
    sys.exit(main())
