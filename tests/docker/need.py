"""What a test needs and the machine may lack: a failure where everything must run, else a skip."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def lacking(reason: str) -> NoReturn:
    """Fail where everything must run (CI=true), and skip elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def program(name: str, package: str | None = None) -> str:
    """The path of a tool."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None:
        lacking(f"{name} is not installed: apt-get install {package or name}")
    return path


def root() -> None:
    """The right to start an engine, to mount, and to hide a file."""
    if os.geteuid() != 0:
        lacking("only root can start a private engine: run pytest with sudo -E")


def no_gpu() -> None:
    """What is said of GPU checks here holds where the product sees no GPU."""
    from provision.host import detect

    if detect().gpus:
        pytest.skip("this machine has a GPU: tests/gpu speaks about it")
