"""Collectives of each framework: their results and their speed. PyTorch's join processes, those of
TensorFlow and JAX the devices of one process.
"""

from __future__ import annotations

from typing import Any, Dict

from verify.backends.base import of
from verify.checks.collectives import bandwidth, exchange, jax, operations, ranks, tensorflow
from verify.model.check import Check, Context, Outcome

_MODULES: Dict[str, Any] = {"tensorflow": tensorflow, "jax": jax}
_BY = {"tensorflow": "TensorFlow", "jax": "XLA"}  # what joins the CPU's devices


def _team(context: Context) -> Any:
    backend = of(context)

    def look(context: Context) -> Dict[str, Any]:
        broken, place = backend.find(context)
        return ranks.looked(broken, backend.count() if place.is_gpu else 0)

    return ranks.find_team(context, look, _BY[context.framework])


def check_operations(context: Context) -> Outcome:
    """Every collective on every GPU, or on two devices or processes of the CPU."""
    if context.framework == "pytorch":
        return operations.check_operations(context)
    found, module = _team(context), _MODULES[context.framework]
    return exchange.check_operations(context, found, lambda: module.collectives(found[1]))


def check_bandwidth(context: Context) -> Outcome:
    """Time all-reduce and all-gather on every GPU, or on two devices or processes of the CPU."""
    if context.framework == "pytorch":
        return bandwidth.check_bandwidth(context)
    found, module = _team(context), _MODULES[context.framework]
    return exchange.check_bandwidth(context, found, lambda: module.timer(found[1]))


CHECKS = (
    Check(
        "collectives.operations",
        "Collectives give correct results",
        check_operations,
        "standard",
        240,
    ),
    Check(
        "collectives.bandwidth",
        "Bandwidth between GPUs",
        check_bandwidth,
        "standard",
        300,
        gauge=True,
    ),
)
