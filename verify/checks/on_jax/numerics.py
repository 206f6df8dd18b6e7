"""JAX's arithmetic: products and convolutions against float64, and runs that repeat."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Tuple

from verify.backends.jax import Place, every, find
from verify.checks.numerics import windows
from verify.checks.numerics.accuracy import (
    AccuracyReading,
    compare,
    judge_convolution,
    judge_products,
    tf32_override,
)
from verify.checks.numerics.repeats import Repeat, judge_repeats
from verify.checks.on_jax.networks import data, start, stepper, vector, weights
from verify.model.check import Check, Context, Outcome
from verify.running.children import Child

FREE_LIMIT_S = 60.0
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
NAMES = {"fp64": "float64", "fp16": "float16", "bf16": "bfloat16"}
_SHAPES = ((509, 1021, 253), (512, 768, 384), (2048, 4096, 1024))


def check_matmul(context: Context) -> Outcome:
    """Multiply random matrices in each dtype on each GPU, and compare with float64 in NumPy."""
    broken, places = every(context)
    if broken:
        return broken
    wide()
    shapes = _SHAPES[: context.pick(1, 2, 3)]
    sides = [(shape, _matrices(shape)) for shape in shapes]
    readings = [
        _multiply(place, dtype, shape, pair)
        for place in places
        for dtype in dtypes(place)
        for shape, pair in sides
    ]
    left_out = {} if places[0].is_gpu else {"tf32": "no GPU"}
    return judge_products(readings, left_out, override=tf32_override())


def wide() -> None:
    """Enable float64 in JAX, which is off by default."""
    import jax

    jax.config.update("jax_enable_x64", True)  # noqa: FBT003


def dtypes(place: Place) -> Tuple[str, ...]:
    """ "tf32" is JAX's own default for float32 where a GPU has it; "fp32" asks for the highest."""
    if not place.is_gpu:
        return ("fp32", "bf16", "fp64")
    new = (place.capability or (0, 0)) >= (8, 0)
    return ("fp32", *(("tf32",) if new else ()), "fp16", "bf16", "fp64")


def _matrices(shape: Tuple[int, int, int]) -> Tuple[Any, Any]:
    import numpy as np

    rows, inner, columns = shape
    source = np.random.default_rng(rows)
    return source.standard_normal((rows, inner)), source.standard_normal((inner, columns))


def _multiply(place: Place, dtype: str, shape: Tuple[int, int, int], pair: Any) -> AccuracyReading:
    import jax
    import jax.numpy as jnp

    what = "x".join(str(size) for size in shape)
    precision = jax.lax.Precision.DEFAULT if dtype == "tf32" else jax.lax.Precision.HIGHEST
    try:
        with place.scope():
            given = [jnp.asarray(side).astype(NAMES.get(dtype, "float32")) for side in pair]
            got = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))(*given)
        left, right = (array(side) for side in given)
        error, worst = compare(array(got), left @ right)
    except Exception as problem:
        raised = "{}: {}".format(type(problem).__name__, problem)
        return AccuracyReading(what, dtype, shape[1], gpu=place.gpu, raised=raised)
    return AccuracyReading(what, dtype, shape[1], error, worst, place.gpu)


def array(values: Any) -> Any:
    """As NumPy's float64, which knows bfloat16 by no name of its own."""
    import numpy as np

    return np.asarray(values).astype(np.float64)


def check_convolution(context: Context) -> Outcome:
    """Convolve forward and back, and compare with float64 in NumPy."""
    broken, place = find(context)
    if broken:
        return broken
    wide()
    count = context.pick(1, 4, 16)
    dtypes_here = ("fp32", "fp16", "bf16") if place.is_gpu else ("fp32", "bf16")
    readings: List[AccuracyReading] = []
    for dtype in dtypes_here:
        for size, stride in windows.CASES:
            readings += _try_convolve(place, dtype, size, stride, count)
    return judge_convolution(readings, override=tf32_override())


def _try_convolve(
    place: Place, dtype: str, size: int, stride: int, count: int
) -> List[AccuracyReading]:
    try:
        return _convolve(place, dtype, size, stride, count)
    except Exception as error:
        raised = "{}: {}".format(type(error).__name__, error)
        return [AccuracyReading(windows.name(size, stride), dtype, 1, gpu=place.gpu, raised=raised)]


def _convolve(
    place: Place, dtype: str, size: int, stride: int, count: int
) -> List[AccuracyReading]:
    import jax
    import jax.numpy as jnp

    def forward(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision=jax.lax.Precision.HIGHEST,
        )

    def forward_and_back(x: Any, w: Any, dy: Any) -> Any:
        y, back = jax.vjp(forward, x, w)
        return (y, *back(dy))

    kind = NAMES.get(dtype, "float32")
    with place.scope():
        x, w, dy = (jnp.asarray(side).astype(kind) for side in windows.random(count, size, stride))
        results = [array(result) for result in jax.jit(forward_and_back)(x, w, dy)]
    return windows.readings(results, [array(s) for s in (x, w, dy)], stride, dtype, place.gpu)


# Runs that repeat


def check_determinism(context: Context) -> Outcome:
    """Train twice from one seed: with determinism requested, and in a child with the defaults.

    XLA reads its flags once, when it starts; the child is forked before that.
    """
    steps = context.pick(3, 20, 200)
    free = Child(lambda: _twice(context, steps)).wait(FREE_LIMIT_S)
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = (flags + " " + DETERMINISTIC).strip()
    asked = _twice(context, steps)
    if asked["broken"]:
        return Outcome.from_dict(asked["broken"])
    beside = _repeat(free.value) if free.returned and not free.value["broken"] else None
    return judge_repeats(_repeat(asked), beside, asked["kind"], steps)


def _twice(context: Context, steps: int) -> Dict[str, Any]:
    import jax

    broken, place = find(context)
    if broken:
        return {"broken": broken.as_dict()}
    with place.scope():
        step = jax.jit(stepper())
        found = Repeat.of([_train(step, steps)], [_train(step, steps)])
    return {"broken": None, "kind": place.kind, **found.measured()}


def _repeat(said: Dict[str, Any]) -> Repeat:
    return Repeat(said["differing"], said["total"], float(said["largest"]), said["finite"])


def _train(step: Any, steps: int) -> Any:
    """The weights after training with noise that a seed fixes."""
    import jax

    layers = weights((16, 64, 4))
    state = start(layers)
    inputs, targets = data(256, 16, 4, "float32")
    for key in jax.random.split(jax.random.PRNGKey(3), steps):
        noise = 0.1 * jax.random.normal(key, inputs.shape)
        layers, state, _ = step(layers, state, inputs + noise, targets)
    return vector(layers)


CHECKS = (
    Check(
        "numerics.matmul", "Matrix products are correct", check_matmul, "standard", 120, gpu=True
    ),
    Check(
        "numerics.convolution",
        "Convolutions and their gradients are correct",
        check_convolution,
        "standard",
        120,
        gpu=True,
    ),
    Check("numerics.determinism", "Training is reproducible", check_determinism, "standard", 120),
)
