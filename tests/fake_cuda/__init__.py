"""A fake libcudart and libcublas in one file, whose device's time is simulated; see cuda.c."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def build(directory: Path) -> Path:
    """Compile it into the directory."""
    gcc = shutil.which("gcc")
    if gcc is None:
        if os.environ.get("CI") == "true":
            pytest.fail("gcc is needed to build the fake CUDA, and CI must have it")
        pytest.skip("gcc is needed to build the fake CUDA")
    library = directory / "libfake.so"
    argv = [gcc, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*argv, str(Path(__file__).with_name("cuda.c"))], check=True, timeout=60)
    return library
