"""The judge of what XLA compiled."""

from __future__ import annotations

from tests.kit.cases import cases
from tests.unit.verify.checks.test_judges import holds
from verify.checks.numerics.xla import XlaRun, judge_compiled
from verify.model.check import Status

PASS, FAIL = Status.PASS, Status.FAIL


@cases(
    "compiled status word",
    ("right numbers pass", XlaRun(1e-7, strict=True, kernels=4), PASS, "4 fused kernels"),
    ("a fallback fails", XlaRun(1e-7, strict=False, kernels=4), FAIL, "bypassed"),
    ("wrong numbers fail", XlaRun(1e-3, strict=True, kernels=4), FAIL, "off by 0.001"),
    ("NaN fails", XlaRun(float("nan"), strict=True, kernels=4), FAIL, "off by nan"),
    ("a missing libdevice names its flag",
     XlaRun(error="INTERNAL: libdevice not found at ./libdevice.10.bc"), FAIL,
     "xla_gpu_cuda_data_dir"),
    ("so is ptxas", XlaRun(error="Couldn't invoke ptxas --version"), FAIL, "PATH"),
    ("the rest too", XlaRun(error="UNKNOWN: odd"), FAIL, "XLA is broken"),
)  # fmt: skip
def test_compiled(compiled: XlaRun, status: Status, word: str) -> None:
    holds(judge_compiled(compiled, "cuda", "it ran as Python", "XLA_FLAGS"), status, word)
