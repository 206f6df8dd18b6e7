"""TensorFlow: checks that use it, judged in the same way as PyTorch's checks."""

from __future__ import annotations

from typing import Tuple

from verify.checks.collectives import tensorflow as collectives
from verify.checks.loading import pipeline as loading
from verify.checks.on_tensorflow import (
    devices,
    libraries,
    memory,
)
from verify.checks.training import keras as training
from verify.checks.training import mirrored as parallel
from verify.model.check import Check

CHECKS: Tuple[Check, ...] = (
    *libraries.CHECKS,
    *devices.CHECKS,
    *training.CHECKS,
    *loading.CHECKS,
    *memory.CHECKS,
    *collectives.CHECKS,
    *parallel.CHECKS,
)
