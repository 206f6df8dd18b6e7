"""Programs of packages from the index, each fetched and unpacked once for all tests."""

from __future__ import annotations

import os
import subprocess

from uv import find_uv_bin

from tests.kit.programs import run_program


def uv(*argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run uv with the cache that all tests share."""
    return run_program(
        [find_uv_bin(), *argv],
        given=text,
        env={**os.environ, "UV_CACHE_DIR": f"{os.environ['TESTS_SHARED']}/uv"},
        timeout=600,
    )


def from_pypi(package: str, *argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program of a package."""
    return uv("tool", "run", "--quiet", "--from", package, *argv, text=text)
