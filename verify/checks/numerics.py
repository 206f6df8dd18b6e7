"""Numerics: products, convolutions, attention and compiled kernels against known answers.

Separate modules take the readings; this module names the judges for all frameworks.
"""

from __future__ import annotations

from verify.checks.accuracy import (
    AccuracyReading,
    compare,
    judge_accuracy,
    judge_convolution,
    judge_products,
)
from verify.checks.attention import check_attention
from verify.checks.compiled import check_compile
from verify.checks.convolution import check_convolution
from verify.checks.products import check_matmul
from verify.checks.repeats import Repeat, ResumedRun, judge_checkpoint, judge_repeats
from verify.checks.reruns import check_checkpoint, check_determinism
from verify.model.check import Check

__all__ = [
    "CHECKS",
    "AccuracyReading",
    "Repeat",
    "ResumedRun",
    "compare",
    "judge_accuracy",
    "judge_checkpoint",
    "judge_convolution",
    "judge_products",
    "judge_repeats",
]

CHECKS = (
    Check(
        "numerics.matmul", "Matrix products are correct", check_matmul, "standard", 180, gpu=True
    ),
    Check(
        "numerics.convolution",
        "Convolutions and their gradients are correct",
        check_convolution,
        "standard",
        180,
        gpu=True,
    ),
    Check("numerics.determinism", "Training is reproducible", check_determinism, "standard", 180),
    Check(
        "numerics.checkpoint",
        "A checkpoint restores the whole state",
        check_checkpoint,
        "standard",
        180,
    ),
    Check(
        "numerics.attention",
        "Attention is correct with every backend",
        check_attention,
        "standard",
        180,
    ),
    Check("numerics.compile", "Compiled code is correct", check_compile, "standard", 240),
)
