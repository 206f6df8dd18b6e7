"""JAX: checks that use it, judged in the same way as PyTorch's checks."""

from __future__ import annotations

from typing import Tuple

from verify.checks.on_jax import (
    collectives,
    devices,
    libraries,
    memory,
    numerics,
    parallel,
    speed,
    training,
)
from verify.model.check import Check

CHECKS: Tuple[Check, ...] = (
    *libraries.CHECKS,
    *devices.CHECKS,
    *numerics.CHECKS,
    *training.CHECKS,
    *memory.CHECKS,
    *collectives.CHECKS,
    *parallel.CHECKS,
    *speed.CHECKS,
)
