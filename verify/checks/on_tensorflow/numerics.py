"""TensorFlow's arithmetic: products and convolutions against float64, and runs that repeat."""

from __future__ import annotations

import os
import shutil
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.backends.tensorflow import Place, find
from verify.checks.numerics.repeats import Repeat, ResumedRun, judge_checkpoint, judge_repeats
from verify.checks.on_tensorflow.networks import (
    batches,
    network,
    numbers,
    prepare,
    stepper,
    variables,
)
from verify.model.check import Check, Context, Outcome, Status
from verify.running.children import scratch

TENSOR_CORES_TF32 = (8, 0)
_NAMES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_NAMES["fp64"] = "float64"
_CPU_LEFT_OUT = {
    "tf32": "no GPU",
    "fp16": "TensorFlow before 2.13 keeps a CPU's sums in fp16",
}
_NO_KERNEL = ("No OpKernel", "Could not find device for node")


# Runs that repeat


def check_determinism(context: Context) -> Outcome:
    """Train twice from one seed: with the defaults, and with determinism requested."""
    import tensorflow as tf

    broken, place = find(context)
    if broken:
        return broken
    ask = getattr(tf.config.experimental, "enable_op_determinism", None)
    if ask is None:
        return Outcome(Status.SKIP, "this TensorFlow cannot be asked for determinism (2.8 can)")
    steps = context.pick(3, 20, 200)
    free = Repeat.of(_run(place, steps), _run(place, steps))
    ask()
    asked = Repeat.of(_run(place, steps), _run(place, steps))
    return judge_repeats(asked, free, place.kind, steps)


def _run(place: Place, steps: int) -> List[Any]:
    """The weights after training with noise that a seed fixes."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(3)
    with place.scope():
        model, optimiser = network(), tf.keras.optimizers.Adam(0.01)
        prepare(optimiser, model)
        step = stepper(model, optimiser)
        for inputs, targets in batches("float32", steps, 64):
            step(inputs + tf.random.normal(inputs.shape, stddev=0.1), targets)
    return numbers(model.get_weights())


class _Training:
    """A model, its optimiser and its source of noise; a checkpoint must contain all of them."""

    def __init__(self, seed: int) -> None:
        import tensorflow as tf

        self.model = network(seed=seed)
        self.optimiser = tf.keras.optimizers.Adam(0.01)
        prepare(self.optimiser, self.model)
        self.noise = tf.random.Generator.from_seed(seed)
        self._step = stepper(self.model, self.optimiser)

    def go(self, data: Sequence[Tuple[Any, Any]]) -> None:
        """Take a step for each batch."""
        for inputs, targets in data:
            self._step(inputs + self.noise.normal(inputs.shape, stddev=0.1), targets)

    def state(self) -> Dict[str, List[Any]]:
        """All of it, as arrays."""
        return {
            "model": numbers(self.model.get_weights()),
            "optimizer": numbers(variables(self.optimiser)),
            "random generator": [self.noise.state.numpy()],
        }

    def checkpoint(self) -> Any:
        """TensorFlow's own."""
        import tensorflow as tf

        return tf.train.Checkpoint(model=self.model, optimizer=self.optimiser, noise=self.noise)


def check_checkpoint(context: Context) -> Outcome:
    """Save during training, restore into new objects and continue: the bits must be the same."""
    broken, place = find(context)
    if broken:
        return broken
    import tensorflow as tf

    getattr(tf.config.experimental, "enable_op_determinism", bool)()
    folder = scratch()
    try:
        with place.scope():
            return judge_checkpoint(_resume(folder, context.pick(2, 10, 100)), place.kind)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _resume(folder: str, steps: int) -> ResumedRun:
    data = batches("float32", 2 * steps, 64)
    first = _Training(7)
    first.go(data[:steps])
    saved = first.state()
    path = first.checkpoint().write(os.path.join(folder, "state"))
    kept = _through_file(first.model, folder)
    first.go(data[steps:])

    other = _Training(8)
    other.checkpoint().read(path)
    back = other.state()
    lost = [name for name in saved if not _equal(saved[name], back[name])]
    lost += [] if kept is None or _equal(saved["model"], kept) else ["Keras file"]
    other.go(data[steps:])
    ends = Repeat.of(numbers(first.model.get_weights()), numbers(other.model.get_weights()))
    moved = not _equal(numbers(first.model.get_weights()), saved["model"])
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    how = "tf.train.Checkpoint" + ("" if kept is None else " and a Keras file")
    return ResumedRun(ends, moved, tuple(lost), size, how)


def _through_file(model: Any, folder: str) -> Optional[List[Any]]:
    """The weights after saving the model to a file and loading it; None before Keras 2.12."""
    import tensorflow as tf

    path = os.path.join(folder, "model.keras")
    try:
        model.save(path)
    except (NotImplementedError, ValueError):  # older ones know no such format
        return None
    return numbers(tf.keras.models.load_model(path).get_weights())


def _equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    import numpy as np

    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other))


CHECKS = (
    Check("numerics.determinism", "Training is reproducible", check_determinism, "standard", 120),
    Check(
        "numerics.checkpoint",
        "A checkpoint restores the whole state",
        check_checkpoint,
        "standard",
        120,
    ),
)
