"""Real wheels, from the package index that pip is configured for."""

from __future__ import annotations

import sys
from pathlib import Path

from tests import need
from tests.kit.programs import run_program


def downloaded(requirement: str, folder: Path, *more: str) -> Path:
    """The wheel of a requirement ("name==version"), downloaded into a folder of its own; `more` are
    words for pip.
    """
    command = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d"]
    done = run_program([sys.executable, *command, str(folder), *more, requirement], timeout=600)
    if done.returncode:
        need.lacking(f"{requirement} cannot be fetched: {done.stderr[-300:]}")
    [wheel] = folder.glob("*.whl")
    return wheel
