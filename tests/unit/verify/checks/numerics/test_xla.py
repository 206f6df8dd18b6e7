"""The judge of what XLA compiled."""

from __future__ import annotations

import pytest

from tests.unit.verify.checks.test_judges import holds
from verify.checks.numerics.xla import XlaRun, judge_compiled
from verify.model.check import Status

PASS, FAIL = Status.PASS, Status.FAIL


@pytest.mark.parametrize(
    ("compiled", "status", "word"),
    [
        pytest.param(XlaRun(1e-7, strict=True, kernels=4), PASS, "4 fused kernels",
                     id="right numbers pass"),
        pytest.param(XlaRun(1e-7, strict=False, kernels=4), FAIL, "bypassed",
                     id="a fallback fails"),
        pytest.param(XlaRun(1e-3, strict=True, kernels=4), FAIL, "off by 0.001",
                     id="wrong numbers fail"),
        pytest.param(XlaRun(float("nan"), strict=True, kernels=4), FAIL, "off by nan",
                     id="NaN fails"),
        pytest.param(XlaRun(error="INTERNAL: libdevice not found at ./libdevice.10.bc"), FAIL,
                     "xla_gpu_cuda_data_dir", id="a missing libdevice names its flag"),
        pytest.param(XlaRun(error="Couldn't invoke ptxas --version"), FAIL, "PATH",
                     id="so is ptxas"),
        pytest.param(XlaRun(error="UNKNOWN: odd"), FAIL, "XLA is broken", id="the rest too"),
    ],
)  # fmt: skip
def test_compiled(compiled: XlaRun, status: Status, word: str) -> None:
    holds(judge_compiled(compiled, "cuda", "it ran as Python", "XLA_FLAGS"), status, word)
