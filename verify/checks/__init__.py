"""The checks of each framework, cheapest first. Each family's file lists its checks as `CHECKS`."""

from __future__ import annotations

from typing import Dict, Iterable, Tuple

from verify.checks import (
    collectives,
    compute,
    devices,
    files,
    health,
    libraries,
    links,
    loading,
    memory,
    numerics,
    on_jax,
    packages,
    parallel,
    peers,
    speed,
    training,
    versions,
)
from verify.checks.on_tensorflow import CHECKS as ON_TENSORFLOW
from verify.model.check import LEVELS, Check

_EVERYWHERE = (*devices.WITHOUT_FRAMEWORK, *health.CHECKS, *links.CHECKS)
_PYTORCH = (
    *libraries.CHECKS,
    *files.CHECKS,
    *versions.CHECKS,
    *packages.CHECKS,
    *devices.CHECKS,
    *compute.CHECKS,
    *peers.CHECKS,
    *numerics.CHECKS,
    *training.CHECKS,
    *loading.CHECKS,
    *memory.CHECKS,
    *collectives.CHECKS,
    *parallel.CHECKS,
    *speed.CHECKS,
)


def _in_order(checks: Iterable[Check]) -> Tuple[Check, ...]:
    """Sort by level, and keep the listed order within a level."""
    return tuple(sorted(checks, key=lambda check: LEVELS.index(check.level)))


CHECKS: Dict[str, Tuple[Check, ...]] = {
    "pytorch": _in_order((*_EVERYWHERE, *_PYTORCH)),
    "tensorflow": _in_order((*_EVERYWHERE, *ON_TENSORFLOW, *packages.CHECKS)),
    "jax": _in_order((*_EVERYWHERE, *on_jax.CHECKS, *packages.CHECKS)),
}
