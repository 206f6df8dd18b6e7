"""JAX: the checks that ask it, judged as those that ask PyTorch are."""

from __future__ import annotations

from typing import Tuple

from verify.checks.on_jax import devices, libraries, numerics, parallel, speed, training
from verify.core import Check

CHECKS: Tuple[Check, ...] = (
    *libraries.CHECKS,
    *devices.CHECKS,
    *numerics.CHECKS,
    *training.CHECKS,
    *parallel.CHECKS,
    *speed.CHECKS,
)
