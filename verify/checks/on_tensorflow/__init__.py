"""TensorFlow: the checks that ask it, judged as those that ask PyTorch are."""

from __future__ import annotations

from typing import Tuple

from verify.checks.on_tensorflow import (
    compiling,
    devices,
    libraries,
    loading,
    numerics,
    parallel,
    speed,
    training,
)
from verify.core import Check

CHECKS: Tuple[Check, ...] = (
    *libraries.CHECKS,
    *devices.CHECKS,
    *numerics.CHECKS,
    *compiling.CHECKS,
    *training.CHECKS,
    *loading.CHECKS,
    *parallel.CHECKS,
    *speed.CHECKS,
)
