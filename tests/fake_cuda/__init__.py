"""A fake libcudart and libcublas in one file, whose device's time is simulated; see cuda.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests import need


def build(directory: Path) -> Path:
    """Compile it into the directory."""
    gcc = need.program("gcc", "gcc libc6-dev")
    library = directory / "libfake.so"
    argv = [gcc, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*argv, str(Path(__file__).with_name("cuda.c"))], check=True, timeout=60)
    return library
