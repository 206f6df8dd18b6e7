"""JAX on several devices: training must give the result of one device.

Without GPUs the CPU is split into two devices, which is possible only before XLA starts: each check
here has its own process, so this is early enough.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Dict, List, Optional, Tuple

from verify.backends.jax import find
from verify.checks.on_jax.networks import data, loss, named, start, stepper, weights
from verify.checks.training import steps as same_steps
from verify.model.check import Check, Context, Outcome, Status

STEPS = {"quick": 2, "standard": 5, "full": 50}
TWO_OF_THE_CPU = "--xla_force_host_platform_device_count=2"
_FIX = "run with NCCL_P2P_DISABLE=1: if that fixes it, look at IOMMU and PCIe ACS settings"
_SIZES = (8, 16, 4)


def cut_the_cpu() -> None:
    """Configure XLA, which has not started yet, for two CPU devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = (flags + " " + TWO_OF_THE_CPU).strip()


def all_devices(kind: str) -> List[Any]:
    """All GPUs, or all devices of the CPU."""
    import jax

    return list(jax.devices("gpu" if kind == "cuda" else "cpu"))


def _devices(context: Context) -> "Tuple[Optional[Outcome], List[Any]]":
    """All GPUs, or two devices of the CPU; and why not, where there are not two."""
    cut_the_cpu()
    broken, place = find(context)
    if broken:
        return broken, []
    found = all_devices(place.kind)
    if len(found) < 2:
        one = "one GPU" if place.is_gpu else "XLA did not cut the CPU into two devices"
        return Outcome(Status.SKIP, "{}: parallel training needs two devices".format(one)), []
    return None, found


def check_pmap(context: Context) -> Outcome:
    """Train on all devices, the gradients averaged, and on one device alone, in float64."""
    absent, devices = _devices(context)
    if absent:
        return absent
    kind = "cuda" if devices[0].platform in ("gpu", "cuda") else "cpu"
    count, ranks = STEPS[context.level], len(devices)
    words = "on {} {}".format(ranks, "GPUs" if kind == "cuda" else "devices of the CPU")
    measured = {"device": kind, "replicas": ranks}
    runs = _together(devices, count)
    outcome = same_steps.judge("pmap", _alone(devices[0], count, ranks), runs, measured, words)
    return outcome if outcome.status is Status.PASS else replace(outcome, fix=_FIX)


def _batch(index: int, ranks: int) -> Any:
    return data(same_steps.BATCH * ranks, _SIZES[0], _SIZES[-1], "float64", seed=index)


def _alone(device: Any, count: int, ranks: int) -> Dict[str, Any]:
    """One device's result for the rows of all devices."""
    import jax

    with jax.default_device(device):
        layers = weights(_SIZES, "float64")
        before, state, step = named(layers), start(layers), jax.jit(stepper())
        losses = []
        for index in range(count):
            layers, state, found = step(layers, state, *_batch(index, ranks))
            losses.append(float(found))
    return {"before": before, "losses": losses, "weights": named(layers)}


def _together(devices: List[Any], count: int) -> List[Dict[str, Any]]:
    """Each device's losses and weights, its rows being its own."""
    import jax
    import numpy as np

    ranks, rows = len(devices), same_steps.BATCH
    spread = jax.tree_util.tree_map
    layers = spread(lambda w: np.stack([w] * ranks), weights(_SIZES, "float64"))
    state = spread(np.zeros_like, layers)
    step = jax.pmap(
        stepper(loss, gather=lambda grads: jax.lax.pmean(grads, "i")),
        axis_name="i",
        devices=devices,
    )
    losses: List[List[float]] = [[] for _ in devices]
    for index in range(count):
        inputs, targets = (
            np.asarray(side).reshape(ranks, rows, -1) for side in _batch(index, ranks)
        )
        layers, state, found = step(layers, state, inputs, targets)
        for rank, loss_of_rank in enumerate(np.asarray(found)):
            losses[rank].append(float(loss_of_rank))
    layers = spread(np.asarray, layers)
    own = [spread(lambda w, i=rank: w[i], layers) for rank in range(ranks)]
    return [{"losses": losses[i], "weights": named(own[i])} for i in range(ranks)]


CHECKS = (Check("parallel.pmap", "Several devices train as one", check_pmap, "standard", 120),)
