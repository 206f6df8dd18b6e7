"""The suite's speeds are those that cuBLAS and cudaMemcpy give when they are timed by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.kit.programs import run_program

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.gpu


def test_two_ways_of_measuring_agree(gpus: list[str], tmp_path: Path) -> None:
    done = run_program(
        [sys.executable, "-m", "bench.gpu_agree", "--rounds", "3", "--out", str(tmp_path)],
        cwd=ROOT,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = tmp_path.iterdir()
    written = json.loads(path.read_text())
    assert written["agreed"] is True
    assert written["environment"]["gpu"] == gpus[0]
    assert {case["what"] for case in written["cases"]} >= {"gemm fp32", "memory_copy", "h2d_pinned"}
