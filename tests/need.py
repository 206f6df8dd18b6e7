"""What a test needs and the machine may lack: a failure where everything must run, else a skip.

What does not apply here (root may read every file; this machine has a GPU) is a plain skip.
"""

from __future__ import annotations

import os
import pty
import shutil
from typing import NoReturn

import pytest

# Between what is missing and what to type, in the reason of a skip.
FIX = "; fix: "


def lacking(reason: str, fix: str = "") -> NoReturn:
    """Fail where everything must run (CI=true), and skip elsewhere."""
    said = f"{reason}{FIX}{fix}" if fix else reason
    if os.environ.get("CI") == "true":
        pytest.fail(said)
    pytest.skip(said)


def program(name: str, package: str | None = None) -> str:
    """The path of a tool."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None:
        lacking(f"{name} is not installed", f"apt-get install {package or name}")
    return path


def terminal() -> tuple[int, int]:
    """A pseudo-terminal: whoever looks at it, and the program's end."""
    try:
        return pty.openpty()
    except OSError as error:
        lacking(
            f"there is no pseudo-terminal: {error}",
            "mount -t devpts -o ptmxmode=666 devpts /dev/pts && ln -sf pts/ptmx /dev/ptmx",
        )


def root() -> None:
    """The right to start an engine, to mount, and to hide a file."""
    if os.geteuid() != 0:
        lacking("only root can start a private engine", "sudo -E ./run test --all")


def no_gpu() -> None:
    """What is said of GPU checks here holds where the product sees no GPU."""
    from provision.host import detect

    if detect().gpus:
        pytest.skip("this machine has a GPU: tests/gpu speaks about it")
