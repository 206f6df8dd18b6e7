"""NVIDIA's own libnvrtc, which needs no GPU: one release does not find its second library."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path

from tests import ROOT
from tests.kit.index_wheels import downloaded
from tests.kit.programs import run_program

# As JAX opens it: by its path, before anything with a search path does.
LOOK = """
import ctypes, json, sys
ctypes.cdll.LoadLibrary(sys.argv[1])
from verify.checks.libraries.files import Places, judge_files
from verify.device import nvrtc
from verify.device.maps import mapped, read_maps
compiled = nvrtc.compile_with(mapped(read_maps()))
places = Places((sys.argv[2],))
outcome = judge_files(mapped(read_maps()), places, "13.0", convolved=False, compiled=compiled)
print(json.dumps([outcome.status.value, outcome.message, outcome.fix]))
"""


def installed(requirement: str, folder: Path) -> Path:
    """The site directory that the wheel was unpacked into."""
    wheel = downloaded(requirement, folder)
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder / "site")
    wheel.unlink()
    return folder / "site"


def judged(library: Path, site: Path, **environ: str) -> list[str]:
    """Status, message and fix of libraries.files in a process that has opened this library."""
    done = run_program(
        [sys.executable, "-c", LOOK, str(library), str(site)],
        cwd=ROOT,
        env={**os.environ, **environ},
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found


def test_a_release_without_a_search_path_compiles_only_with_help(tmp_path: Path) -> None:
    site = installed("nvidia-cuda-nvrtc==13.0.88", tmp_path)
    folder = site / "nvidia" / "cu13" / "lib"
    status, message, fix = judged(folder / "libnvrtc.so.13", site)
    assert status == "fail"
    assert "failed to open libnvrtc-builtins.so.13.0" in message
    assert f"LD_LIBRARY_PATH={folder}" in fix
    assert judged(folder / "libnvrtc.so.13", site, LD_LIBRARY_PATH=str(folder))[0] == "pass"


def test_a_release_with_a_search_path_compiles(tmp_path: Path) -> None:
    site = installed("nvidia-cuda-nvrtc-cu12==12.9.86", tmp_path)
    library = site / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
    assert judged(library, site)[0] == "pass"
