"""Training with JAX: a falling loss, steps compared with float64, and bf16 with fp32."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple

from verify.backends.base import NAMES
from verify.backends.jax import Place, find
from verify.checks.on_jax.networks import (
    Weights,
    data,
    forward,
    loss,
    start,
    stepper,
    vector,
    weights,
)
from verify.checks.training.amp import MixedRun, judge_amp
from verify.checks.training.loss import STEPS, TrainingSteps, judge_loss, judge_same
from verify.model.check import Check, Context, Outcome

_ROWS = 256
_SIZES = (16, 64, 4)
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class _Ran(NamedTuple):
    losses: List[float]
    first: Any  # every weight in one vector of float64, before the steps
    last: Any
    layers: Weights


def check_loss(context: Context) -> Outcome:
    """Train on the first GPU, or on the CPU where nothing hints at a GPU."""
    broken, place = find(context)
    if broken:
        return broken
    return judge_loss(_steps(place, "float32", STEPS[context.level]).losses, place.kind)


def _steps(place: Place, dtype: str, steps: int, value: Any = loss) -> _Ran:
    import jax

    with place.scope(), jax.default_matmul_precision("float32"):
        layers = weights(_SIZES, dtype)
        inputs, targets = data(_ROWS, _SIZES[0], _SIZES[-1], dtype)
        first, state, step = vector(layers), start(layers), jax.jit(stepper(value))
        losses = []
        for _ in range(steps):
            layers, state, found = step(layers, state, inputs, targets)
            losses.append(float(found))
    return _Ran(losses, first, vector(layers), layers)


def check_same(context: Context) -> Outcome:
    """The same steps on the first GPU in fp32 and on the CPU in float64."""
    import numpy as np

    broken, place = find(context)
    if broken:
        return broken
    steps = context.pick(10, 10, 40)
    true = _steps(Place("cpu"), "float64", steps)
    here = _steps(place, "float32", steps)
    way = float(np.linalg.norm(true.last - true.first))

    def drift(ran: _Ran) -> float:
        return float(np.linalg.norm(ran.last - true.last)) / (way or 1.0)

    beside = drift(_steps(Place("cpu"), "float32", steps)) if place.is_gpu else None
    found = TrainingSteps(tuple(here.losses), tuple(true.losses), drift(here), way, _ROWS, beside)
    return judge_same(found, place.kind)


_AMP_STEPS = {"quick": 60, "standard": 60, "full": 600}


def check_amp(context: Context) -> Outcome:
    """Train with bf16 layers and fp32 weights beside fp32 alone, then time wider layers."""
    broken, place = find(context)
    if broken:
        return broken
    left_out = {"fp16": "JAX has no loss scaler of its own"}
    dtypes = ["fp32", "bf16"]
    if place.is_gpu and (place.capability or (0, 0)) < (8, 0):
        left_out["bf16"] = "bf16 units come with compute capability 8.0"
        dtypes.remove("bf16")
    runs = [_mixed(dtype, place, context) for dtype in dtypes]
    return judge_amp(runs, place.kind, left_out)


def _mixed(dtype: str, place: Place, context: Context) -> MixedRun:
    import numpy as np

    ran = _steps(place, "float32", _AMP_STEPS[context.level], _cast_loss(dtype))
    with place.scope():
        inputs = data(_ROWS, _SIZES[0], _SIZES[-1], "float32")[0]
        name = str(forward(_cast(ran.layers, dtype), _cast(inputs, dtype)).dtype)
        seconds, peak = _time(dtype, place, context)
    return MixedRun(
        dtype,
        tuple(ran.losses),
        _SHORT.get(name, name),
        bool(np.isfinite(ran.last).all()),
        seconds=tuple(seconds),
        peak_bytes=peak,
    )


def _cast(tree: Any, dtype: str) -> Any:
    import jax

    kind = NAMES.get(dtype, "float32")
    return jax.tree_util.tree_map(lambda values: values.astype(kind), tree)


def _cast_loss(dtype: str) -> Any:
    """The layers in the dtype, the loss in fp32."""

    def value(layers: Weights, inputs: Any, targets: Any) -> Any:
        result = forward(_cast(layers, dtype), _cast(inputs, dtype))
        return ((result.astype("float32") - targets) ** 2).mean()

    return value


def _time(dtype: str, place: Place, context: Context) -> Tuple[List[float], Optional[int]]:
    """Seconds of each step of a model of wide layers, and the bytes that XLA plans for it."""
    import jax

    width, rows = (2048, 8192) if place.is_gpu else (256, 256)
    layers = weights((width,) * 6)
    state, inputs = start(layers), data(rows, width, width, "float32")
    step = jax.jit(stepper(_cast_loss(dtype)))
    seconds = place.seconds(lambda: step(layers, state, *inputs), repeats=context.pick(3, 5, 20))
    return seconds, _planned(step, layers, state, *inputs) if place.is_gpu else None


def _planned(step: Any, *arguments: Any) -> Optional[int]:
    """XLA plans a program's memory ahead; older ones do not tell."""
    try:
        plan = step.lower(*arguments).compile().memory_analysis()
        return int(plan.temp_size_in_bytes + plan.output_size_in_bytes)
    except Exception:
        return None


CHECKS = (
    Check("training.loss", "A model's loss falls", check_loss, "standard", 120, gpu=True),
    Check("training.same", "Training steps match float64", check_same, "standard", 120, gpu=True),
    Check("training.amp", "Mixed precision trains", check_amp, "standard", 120, gpu=True),
)
