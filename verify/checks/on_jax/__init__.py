"""JAX: checks that use it, judged in the same way as PyTorch's checks."""

from __future__ import annotations

from typing import Tuple

from verify.checks.collectives import jax as collectives
from verify.checks.on_jax import (
    devices,
    libraries,
    memory,
)
from verify.checks.training import pmap as parallel
from verify.model.check import Check

CHECKS: Tuple[Check, ...] = (
    *libraries.CHECKS,
    *devices.CHECKS,
    *memory.CHECKS,
    *collectives.CHECKS,
    *parallel.CHECKS,
)
