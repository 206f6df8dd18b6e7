"""Mounts a squashfs, or that in a SIF, read-only: by squashfuse, which needs no root, or by a loop
device.

The mount is held by a program of its own (`hold`), which removes it when this process ends, also if
it is killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from images.engines.sandbox.errors import MountError
from images.engines.sandbox.hold import is_mounted, unmount
from images.engines.sandbox.sif import squashfs_offset
from images.system.hashed_file import FileState, changed, state_of
from images.system.interruption import uninterrupted
from images.system.process import environment, which
from images.system.scratch import scratch_directory

INSTALL_FIX = "sudo apt-get install squashfuse fuse3"
MOUNT_POINT = "root"

_HOLD = Path(__file__).with_name("hold.py")
_OPTIONS = "ro,nosuid,nodev"
_END_S = 10.0


@contextlib.contextmanager
def mounted(file: Path, state: FileState | None = None) -> Iterator[Path]:
    """Mount a file for a short while, and give the directory. Errors: see `mount`."""
    with scratch_directory() as scratch:
        place = scratch / MOUNT_POINT
        place.mkdir()
        end = mount(file, place, state)
        try:
            yield place
        finally:
            end()


def mount(file: Path, place: Path, state: FileState | None = None) -> Callable[[], None]:
    """Mount a file on an empty directory; returns what unmounts it. MountError: nothing on this
    host can mount it, with the reason for each way. FileChangedError: it is in another state.
    """
    problems: list[str] = []
    try:
        opened = file.open("rb", buffering=0)
    except OSError as error:
        if state is not None:
            raise changed(file) from error
        raise MountError(
            f"{file} cannot be opened: {error.strerror}.", fix="Name a file that you may read."
        ) from error
    with opened:
        if state is not None and state_of(opened) != state:
            raise changed(file)
        # by its descriptor: its name may be given to another file before the program opens it
        for name, command in _ways(Path(f"/proc/{os.getpid()}/fd/{opened.fileno()}"), place):
            with tempfile.TemporaryFile() as said:
                try:
                    return _hold(command, place, said)
                except _NotMounted:
                    said.seek(0)
                    text = said.read(4000).decode("utf-8", "replace").strip()
                    problems.append(f"{name}: {text or 'gave no reason'}")
    if problems:
        raise MountError(
            f"{file} cannot be mounted.",
            fix="Check that it is a complete squashfs (unsquashfs -s FILE), and that this user can "
            "open /dev/fuse (ls -l /dev/fuse).",
            detail="\n".join(problems),
        )
    raise MountError(
        f"{file} cannot be mounted: squashfuse is not installed, and only root can use a loop "
        "device."
        if os.geteuid()
        else f"{file} cannot be mounted: this host has neither squashfuse nor mount.",
        fix=INSTALL_FIX,
    )


def remove_leftover(place: Path) -> bool:
    """Unmount what a killed process left in a directory; whether nothing is mounted there now."""
    point = place / MOUNT_POINT
    if is_mounted(str(point)):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            unmount(str(point))
    return not is_mounted(str(point))


class _NotMounted(Exception):  # noqa: N818  never leaves this module
    """A way to mount it did not work."""


def _ways(file: Path, place: Path) -> Iterator[tuple[str, list[str]]]:
    """The commands of this host that can mount it; the first is the best one. The kernel's driver
    is not given what squashfuse refuses.
    """
    at = squashfs_offset(file)
    options = f"{_OPTIONS},offset={at}" if at else _OPTIONS
    # A malformed file system may exploit the kernel; squashfuse has no more rights than this user.
    has_fuse = False
    for name in ("squashfuse_ll", "squashfuse"):  # the first is faster
        if program := which(name):
            has_fuse = _fuse_opens()
            yield name, [program, "-f", "-o", options, str(file), str(place)]
    program = which("mount")
    if os.geteuid() == 0 and program and not has_fuse:
        words = [program, "-t", "squashfs", "-o", f"loop,{options}", str(file), str(place)]
        yield "mount", words


def _fuse_opens() -> bool:
    """Whether this host has FUSE, and lets this user have it; containers often do not."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _hold(command: list[str], place: Path, said: IO[bytes]) -> Callable[[], None]:
    with uninterrupted():
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_HOLD), str(place), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment(),
            start_new_session=True,
        )
    output = cast("IO[bytes]", process.stdout)

    def end() -> None:
        with contextlib.suppress(OSError):
            cast("IO[bytes]", process.stdin).close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        output.close()
        remove_leftover(place.parent)

    try:
        is_there = output.readline() == b"mounted\n"
    except BaseException:
        end()
        raise
    if not is_there:
        end()
        raise _NotMounted
    return end
