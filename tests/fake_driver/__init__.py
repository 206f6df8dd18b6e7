"""A fake NVIDIA driver library that the real pynvml loads; see nvml.c for its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests import need
from tests.kit.programs import run_program

LIBRARY = "libnvidia-ml.so.1"
ROOT = Path(__file__).parents[2]

# NVML return codes (nvmlReturn_t) that the tests force.
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED = 3, 4, 9
FUNCTION_NOT_FOUND, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH, UNKNOWN = 13, 15, 18, 999


def build(directory: Path, *, old: bool = False, switches: tuple[str, ...] = ()) -> Path:
    """Compile the library into the directory, which is then fit for LD_LIBRARY_PATH.

    `old` leaves out the functions that old drivers lack; `switches` are others of nvml.c.
    """
    gcc = need.program("gcc", "gcc libc6-dev")
    flags = [f"-D{name}" for name in (*(["OLD_DRIVER"] if old else []), *switches)]
    source = Path(__file__).with_name("nvml.c")
    library = directory / LIBRARY
    argv = [gcc, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags]
    subprocess.run([*argv, "-o", str(library), str(source)], check=True, timeout=60)
    return directory


def write_settings(path: Path, settings: Mapping[str, object]) -> Path:
    """The file that FAKE_DRIVER names. It changes at one stroke, since it is read at any moment."""
    partial = path.with_suffix(".partial")
    partial.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    partial.replace(path)
    return path


def run_python(code: str, library: Path, settings: Path | None, *, timeout_s: float = 60) -> str:
    """Run code in a fresh interpreter that finds the library; pynvml keeps the first it loads."""
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "PYTHONPATH": str(ROOT),
        "PATH": "",
        **({"FAKE_DRIVER": str(settings)} if settings else {}),
    }
    done = run_program([sys.executable, "-c", code], env=env, timeout=timeout_s)
    assert done.returncode == 0, done.stderr
    return done.stdout
