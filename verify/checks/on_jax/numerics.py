"""JAX's arithmetic: products and convolutions against float64, and runs that repeat."""

from __future__ import annotations

import os
from typing import Any, Dict

from verify.backends.jax import find
from verify.checks.numerics.repeats import Repeat, judge_repeats
from verify.checks.on_jax.networks import data, start, stepper, vector, weights
from verify.model.check import Check, Context, Outcome
from verify.running.children import Child

FREE_LIMIT_S = 60.0
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
NAMES = {"fp64": "float64", "fp16": "float16", "bf16": "bfloat16"}
_SHAPES = ((509, 1021, 253), (512, 768, 384), (2048, 4096, 1024))


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
    Check("numerics.determinism", "Training is reproducible", check_determinism, "standard", 120),
)
