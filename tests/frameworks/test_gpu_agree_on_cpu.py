"""The comparison of bench/gpu_agree.py with the real torch on the CPU, and a stand-in for CUDA."""

from __future__ import annotations

import pytest

from tests.frameworks.place import ENV, ROOT, python_of
from tests.kit.programs import run_program

pytestmark = pytest.mark.frameworks

# What is by hand here takes a millisecond whatever it is asked: the way there is what is tried.
SCRIPT = """
import ctypes
import torch
from bench import gpu_agree
from bench.cuda_by_hand import Times
from verify.checks.speed import rates
from verify.backends.pytorch import Place

class Stand:
    def __init__(self):
        self.asked = []
    def gemm(self, dtype, size, left, right, *, repeats):
        held = {"fp64": 8, "fp32": 4, "bf16": 2}[dtype] * size * size
        assert left != right
        assert any(ctypes.string_at(left, held)) and any(ctypes.string_at(right, held))
        return self.answer(("gemm", dtype, size), repeats)
    def copy_within(self, size, *, repeats):
        return self.answer(("copy", size), repeats)
    def transfer(self, way, size, *, repeats):
        return self.answer((way, size), repeats)
    def answer(self, what, repeats):
        self.asked.append(what)
        return Times((0.001,) * repeats, (0.001,) * repeats)

rates.SIZES, rates.GIB = (64, 128), 1 << 22
torch.Tensor.pin_memory = lambda self: self
gpu_agree.TRANSFER_BYTES = 1 << 16
place, stand = Place("cpu"), Stand()
before = torch.get_float32_matmul_precision()
cases = [gpu_agree.products(place, stand, name, 3, 2) for name in ("fp32", "bf16", "fp64")]
cases.append(gpu_agree.copies_within(place, stand, 3, 2))
cases += [gpu_agree.transfers(way, place, stand, 3, 2) for way in ("h2d_pinned", "d2h_pinned")]
assert torch.get_float32_matmul_precision() == before
assert len(stand.asked) == 18, stand.asked
for case in cases:
    assert len(case.suite) == len(case.events) == len(case.wall) == 6, case
    assert min(case.suite) > 0, case
for case in cases[:3]:
    assert abs(case.events[0] - 2 * case.size**3 / 1e12 / 0.001) < 1e-12, case
assert cases[3].events[0] == 2 * cases[3].size / 1e9 / 0.001
assert cases[4].events[0] == (1 << 16) / 1e9 / 0.001
print("well")
"""


def test_every_case_is_measured_both_ways() -> None:
    done = run_program(
        [python_of("pytorch"), "-c", SCRIPT],
        cwd=ROOT,
        env={**ENV, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "well\n"
