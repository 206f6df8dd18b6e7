"""JAX on several devices: training must give the result of one device.

Without GPUs the CPU is split into two devices, which is possible only before XLA starts: each check
here has its own process, so this is early enough.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional, Tuple

from verify.backends.jax import BACKEND, all_devices, cut_the_cpu
from verify.backends.jax_training import at_rest, loss_of, stepper, weights_of
from verify.checks.training import steps as same_steps
from verify.model.check import Check, Context, Outcome, Status
from verify.workloads.networks import dense

_FIX = "run with NCCL_P2P_DISABLE=1: if that fixes it, look at IOMMU and PCIe ACS settings"


def _devices(context: Context) -> "Tuple[Optional[Outcome], List[Any]]":
    """All GPUs, or two devices of the CPU; and why not, where there are not two."""
    cut_the_cpu()
    broken, place = BACKEND.find(context)
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
    ranks = len(devices)
    words = "on {} {}".format(ranks, "GPUs" if kind == "cuda" else "devices of the CPU")
    measured = {"device": kind, "replicas": ranks}
    place = BACKEND.place(kind)
    alone, data = same_steps.reference(place, same_steps.STEPS[context.level], ranks)
    outcome = same_steps.judge("pmap", alone, _together(devices, data), measured, words)
    return outcome if outcome.status is Status.PASS else replace(outcome, fix=_FIX)


def _together(devices: List[Any], data: "List[Tuple[Any, Any]]") -> List[Dict[str, Any]]:
    """Each device's losses and weights, its rows being its own."""
    import jax
    import numpy as np

    ranks, rows = len(devices), same_steps.BATCH
    spread = jax.tree_util.tree_map
    network = dense(same_steps.SIZES)
    weights = weights_of(network, "fp64")

    def stacked(tree: Any) -> Any:
        return spread(lambda w: np.stack([w] * ranks), tree)

    layers, state = stacked(weights), stacked(at_rest(weights))
    step = jax.pmap(
        stepper(loss_of(network), gather=lambda grads: jax.lax.pmean(grads, "i")),
        axis_name="i",
        devices=devices,
    )
    losses: List[List[float]] = [[] for _ in devices]
    for batch in data:
        inputs, targets = (np.asarray(side).reshape(ranks, rows, -1) for side in batch)
        layers, state, found = step(layers, state, inputs, targets)
        for rank, loss_of_rank in enumerate(np.asarray(found)):
            losses[rank].append(float(loss_of_rank))
    layers = spread(np.asarray, layers)
    leaves = jax.tree_util.tree_leaves(layers)
    own = ([leaf[rank] for leaf in leaves] for rank in range(ranks))
    return [{"losses": losses[i], "weights": same_steps.named(one)} for i, one in enumerate(own)]


CHECKS = (Check("parallel.pmap", "Several devices train as one", check_pmap, "standard", 120),)
