"""Programs of packages from the index, each fetched and unpacked once for all tests."""

from __future__ import annotations

import os
import subprocess

from uv import find_uv_bin


def uv(*argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run uv with the cache that all tests share."""
    return subprocess.run(
        [find_uv_bin(), *argv],
        capture_output=True,
        text=True,
        input=text,
        timeout=600,
        check=False,
        env={**os.environ, "UV_CACHE_DIR": f"{os.environ['TESTS_SHARED']}/uv"},
    )


def from_pypi(package: str, *argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program of a package."""
    return uv("tool", "run", "--quiet", "--from", package, *argv, text=text)
