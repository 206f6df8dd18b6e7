"""The checks of each framework, cheapest first. Each family's file lists its checks as `CHECKS`."""

from __future__ import annotations

from typing import Dict, Iterable, Tuple

from verify.checks import on_jax
from verify.checks.collectives import sums as collectives
from verify.checks.devices import compute, peers
from verify.checks.devices import inventory as devices
from verify.checks.health import condition as health
from verify.checks.health import links
from verify.checks.libraries import files, packages, versions
from verify.checks.libraries import requested as libraries
from verify.checks.loading import workers as loading
from verify.checks.memory import free as memory
from verify.checks.numerics import attention, compiled, convolution, products, reruns
from verify.checks.on_tensorflow import CHECKS as ON_TENSORFLOW
from verify.checks.speed import measured as speed
from verify.checks.speed import training as timed
from verify.checks.training import loss as training
from verify.checks.training import parallel
from verify.model.check import LEVELS, Check

_EVERYWHERE = (*devices.WITHOUT_FRAMEWORK, *health.CHECKS, *links.CHECKS)
_SHARED = (
    *packages.CHECKS,
    *products.CHECKS,
    *convolution.CHECKS,
    *reruns.CHECKS,
    *compiled.CHECKS,
    *training.CHECKS,
    memory.LEAK,
    *speed.CHECKS,
    *timed.CHECKS,
)
_PYTORCH = (
    *libraries.CHECKS,
    *files.CHECKS,
    *versions.CHECKS,
    *packages.CHECKS,
    *devices.CHECKS,
    *compute.CHECKS,
    *peers.CHECKS,
    *products.CHECKS,
    *convolution.CHECKS,
    *reruns.CHECKS,
    *attention.CHECKS,
    *compiled.CHECKS,
    *training.CHECKS,
    *loading.CHECKS,
    *memory.CHECKS,
    *collectives.CHECKS,
    *parallel.CHECKS,
    *speed.CHECKS,
    speed.COPIES,
    *timed.CHECKS,
)


def _in_order(checks: Iterable[Check]) -> Tuple[Check, ...]:
    """Sort by level, and keep the listed order within a level."""
    return tuple(sorted(checks, key=lambda check: LEVELS.index(check.level)))


CHECKS: Dict[str, Tuple[Check, ...]] = {
    "pytorch": _in_order((*_EVERYWHERE, *_PYTORCH)),
    "tensorflow": _in_order((*_EVERYWHERE, *ON_TENSORFLOW, *_SHARED)),
    "jax": _in_order((*_EVERYWHERE, *on_jax.CHECKS, *_SHARED)),
}
