"""JAX on several devices: known sums across them, and training that must do what one device does.

Without GPUs the CPU is cut into two devices, which goes only before XLA starts: each check here is
a process of its own, so that this is in time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Tuple

from verify.checks import steps as same_steps
from verify.checks.on_jax.networks import data, loss, named, start, stepper, weights
from verify.checks.on_jax.numerics import wide
from verify.checks.on_jax.place import find
from verify.core import Check, Context, Outcome, Status
from verify.symptoms import explain

STEPS = {"quick": 2, "standard": 5, "full": 50}
TWO_OF_THE_CPU = "--xla_force_host_platform_device_count=2"
_FIX = "run with NCCL_P2P_DISABLE=1: if that mends it, look at IOMMU and PCIe ACS settings"
_ELEMENTS = {"quick": 1 << 10, "standard": 1 << 18, "full": 1 << 26}
_SIZES = (8, 16, 4)


def _devices(context: Context) -> "Tuple[Optional[Outcome], List[Any]]":
    """All GPUs, or two devices of the CPU; and why not, where there are not two."""
    import jax

    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = (flags + " " + TWO_OF_THE_CPU).strip()
    broken, place = find(context)
    if broken:
        return broken, []
    found = list(jax.devices("gpu" if place.is_gpu else "cpu"))
    if len(found) < 2:
        one = "one GPU" if place.is_gpu else "XLA did not cut the CPU into two devices"
        return Outcome(Status.SKIP, "{}: there is none to share the work with".format(one)), []
    return None, found


@dataclass(frozen=True)
class Moved:
    """What became of one operation across the devices."""

    what: str
    wrong: int = 0
    total: int = 0
    error: Optional[str] = None


def check_psum(context: Context) -> Outcome:
    """Add up, collect and pass around between all devices, with known answers."""
    absent, devices = _devices(context)
    if absent:
        return absent
    kind = "cuda" if devices[0].platform in ("gpu", "cuda") else "cpu"
    found = [_moved(what, devices, _ELEMENTS[context.level]) for what in _WORKS]
    return judge_moved(found, len(devices), kind)


_WORKS = ("all-reduce", "all-gather", "permute")


def _moved(what: str, devices: List[Any], elements: int) -> Moved:
    """Device i gives i + 1 everywhere; what each should get follows."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    ranks = len(devices)
    ring = [(i, (i + 1) % ranks) for i in range(ranks)]
    gather = {
        "all-reduce": lambda x: jax.lax.psum(x, "i"),
        "all-gather": lambda x: jax.lax.all_gather(x, "i"),
        "permute": lambda x: jax.lax.ppermute(x, "i", ring),
    }[what]
    given = np.arange(1, ranks + 1, dtype=np.float32)
    known = {
        "all-reduce": np.full(ranks, given.sum())[:, None],
        "all-gather": np.broadcast_to(given, (ranks, ranks))[:, :, None],
        "permute": np.roll(given, 1)[:, None],
    }[what]
    try:
        spread = jnp.broadcast_to(given[:, None], (ranks, elements))
        got = np.asarray(jax.pmap(gather, axis_name="i", devices=devices)(spread))
    except Exception as error:
        return Moved(what, error="{}: {}".format(type(error).__name__, error))
    return Moved(what, int((got != known).sum()), int(got.size))


def judge_moved(found: "List[Moved]", ranks: int, kind: str) -> Outcome:
    """Whether every device got every known answer."""
    rows = {one.what: one.wrong for one in found}
    measured = {"device": kind, "devices": ranks, "wrong": rows}
    expected = {"wrong": 0}
    for one in found:
        if one.error is not None:
            line = one.error.partition("\n")[0]
            cause, fix = explain(one.error)
            message = "{} over {} devices: {}".format(one.what, ranks, line)
            return Outcome(Status.FAIL, message, cause or line, fix or _FIX, measured, expected)
        if one.wrong or not one.total:
            message = "{} over {} devices: {} of {} answers wrong".format(
                one.what, ranks, one.wrong, one.total
            )
            cause = "data was damaged on its way between the devices"
            return Outcome(Status.FAIL, message, cause, _FIX, measured, expected)
    words = "{} GPUs".format(ranks) if kind == "cuda" else "{} devices of the CPU".format(ranks)
    message = "right over {}: {}".format(words, ", ".join(one.what for one in found))
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def check_pmap(context: Context) -> Outcome:
    """Train on all devices, the gradients averaged, and on one device alone, in float64."""
    absent, devices = _devices(context)
    if absent:
        return absent
    wide()
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
    """What one device makes of everyone's rows."""
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


CHECKS = (
    Check("parallel.psum", "Sums across devices are right", check_psum, "standard", 120),
    Check("parallel.pmap", "Several devices train as one", check_pmap, "standard", 120),
)
