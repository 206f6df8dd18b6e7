"""Training with TensorFlow: with a custom loop, against float64, in mixed precision, with fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from verify.backends.tensorflow import Place, allow_tf32, find
from verify.checks.numerics.accuracy import number
from verify.checks.on_tensorflow.networks import (
    SIZE,
    batches,
    images,
    network,
    numbers,
    prepare,
    start,
    stepper,
)
from verify.checks.training.amp import MixedRun, judge_amp
from verify.checks.training.loss import AGAIN, FACTOR, STEPS, TrainingSteps, judge_loss, judge_same
from verify.model.check import Check, Context, Outcome, Status

_ROWS = 32
_TERMS = _ROWS * (SIZE // 2) ** 2  # a weight of the convolution has a product for each pixel


def check_loss(context: Context) -> Outcome:
    """Train on the first GPU, or on the CPU where nothing hints at a GPU."""
    broken, place = find(context)
    return broken or judge_loss(_train(place, STEPS[context.level]), place.kind)


def _train(place: Place, steps: int) -> List[float]:
    import tensorflow as tf

    with place.scope():
        model, optimiser = network(), tf.keras.optimizers.Adam(0.01)
        prepare(optimiser, model)
        step = stepper(model, optimiser)
        inputs, targets = batches("float32", 1, 128)[0]
        return [float(step(inputs, targets)) for _ in range(steps)]


# Beside float64


class _Ran(NamedTuple):
    losses: List[float]
    first: Any  # every weight in one vector of float64, before the steps
    last: Any


def check_same(context: Context) -> Outcome:
    """The same steps on the first GPU in fp32 and on the CPU in float64."""
    import numpy as np

    broken, place = find(context)
    if broken:
        return broken
    allow_tf32(on=False)
    steps = context.pick(10, 10, 40)
    true = _steps(Place("cpu"), "float64", steps)
    here = _steps(place, "float32", steps)
    way = float(np.linalg.norm(true.last - true.first))

    def drift(ran: _Ran) -> float:
        return float(np.linalg.norm(ran.last - true.last)) / (way or 1.0)

    beside = drift(_steps(Place("cpu"), "float32", steps)) if place.is_gpu else None
    found = TrainingSteps(tuple(here.losses), tuple(true.losses), drift(here), way, _TERMS, beside)
    return judge_same(found, place.kind)


def _steps(place: Place, dtype: str, steps: int) -> _Ran:
    import tensorflow as tf

    with place.scope():
        model = network(dtype)
        optimiser = tf.keras.optimizers.SGD(0.05, momentum=0.9)
        prepare(optimiser, model)
        step, first = stepper(model, optimiser), _vector(model)
        inputs, targets = batches(dtype, 1, _ROWS)[0]
        losses = [float(step(inputs, targets)) for _ in range(steps)]
    return _Ran(losses, first, _vector(model))


def _vector(model: Any) -> Any:
    import numpy as np

    return np.concatenate([w.reshape(-1) for w in numbers(model.get_weights())])


# Mixed precision

_AMP_STEPS = {"quick": 60, "standard": 60, "full": 600}
_FIRST_SCALE = 2.0**22  # gradients of this model overflow fp16 from about 2**19 on
_POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def check_amp(context: Context) -> Outcome:
    """Train under each of Keras's policies, then time wider layers."""
    broken, place = find(context)
    if broken:
        return broken
    runs, left_out = [], {}
    for dtype in _POLICIES:
        if dtype == "bf16" and place.is_gpu and (place.capability or (0, 0)) < (8, 0):
            left_out[dtype] = "bf16 units come with compute capability 8.0"
        else:
            runs.append(_mixed(dtype, place, context))
    return judge_amp(runs, place.kind, left_out)


def _mixed(dtype: str, place: Place, context: Context) -> MixedRun:
    import numpy as np
    import tensorflow as tf

    tf.keras.mixed_precision.set_global_policy(_POLICIES[dtype])
    losses, skipped = [], []
    with place.scope():
        model = _Fitted(dtype, (16, 64, 64, 1))
        source = np.random.default_rng(7)
        inputs = source.standard_normal((256, 16)).astype("float32")
        targets = np.tanh(inputs @ source.standard_normal((16, 1)) / 4).astype("float32")
        for step in range(_AMP_STEPS[context.level]):
            before = model.scale()
            losses.append(model.take(inputs, targets))
            if model.scale() < before:
                skipped.append(step)
        finite = all(bool(np.isfinite(w).all()) for w in numbers(model.keras.get_weights()))
        computed_in = model.computed_in(inputs)
        seconds, peak = _time(dtype, place, context)
    return MixedRun(
        dtype,
        tuple(losses),
        computed_in,
        finite,
        tuple(skipped),
        dtype == "fp16",
        tuple(seconds),
        peak,
    )


class _Fitted:
    """A compiled Keras model under the global policy, its last layer in fp32 as Keras advises."""

    def __init__(self, dtype: str, widths: Sequence[int]) -> None:
        import tensorflow as tf

        dense = tf.keras.layers.Dense
        layers = [dense(width, activation="tanh") for width in widths[1:-1]]
        self.keras = tf.keras.Sequential([*layers, dense(widths[-1], dtype="float32")])
        self.keras.build((None, widths[0]))
        start(self.keras)
        optimiser: Any = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        if dtype == "fp16":
            scaled = tf.keras.mixed_precision.LossScaleOptimizer
            optimiser = scaled(optimiser, initial_scale=_FIRST_SCALE)
        self.keras.compile(optimizer=optimiser, loss="mse")

    def take(self, inputs: Any, targets: Any) -> float:
        """Take a step; the loss before it."""
        found = self.keras.train_on_batch(inputs, targets)
        self.keras.reset_metrics()  # Keras 3 gives the mean of the losses since the last reset
        return float(found[0] if isinstance(found, (list, tuple)) else found)

    def scale(self) -> float:
        """The loss scale now; 1.0 where there is none."""
        names = ("dynamic_scale", "loss_scale", "initial_scale")  # Keras 3, Keras 2, not yet built
        found = (getattr(self.keras.optimizer, name, None) for name in names)
        return next((float(scale) for scale in found if scale is not None), 1.0)

    def computed_in(self, inputs: Any) -> str:
        """The dtype that a layer under the policy really gives."""
        import tensorflow as tf

        name = str(tf.as_dtype(self.keras.layers[0](inputs[:1]).dtype).name)
        return _SHORT.get(name, name)


def _time(dtype: str, place: Place, context: Context) -> Tuple[List[float], Optional[int]]:
    """Seconds of each step and the most memory held, for a model of wide layers."""
    import tensorflow as tf

    width, rows = (2048, 8192) if place.is_gpu else (128, 128)
    model = _Fitted(dtype, (width,) * 6)
    inputs = tf.random.normal((rows, width))
    peak = place.peak_bytes(lambda: model.take(inputs, inputs))
    work = lambda: model.keras.train_on_batch(inputs, inputs)  # noqa: E731
    return place.seconds(work, repeats=context.pick(3, 5, 20)), peak


# Keras


@dataclass(frozen=True)
class KerasFit:
    """The results of `fit`, `evaluate` and `predict` for one model."""

    losses: Tuple[float, ...]  # of each epoch
    evaluated: float
    by_hand: float  # the same loss by NumPy from the predictions; NaN where some are missing
    batches: int  # that the model was shown, by its own count
    wanted_batches: int


def check_keras(context: Context) -> Outcome:
    """Fit a model on a tf.data pipeline, as most users do."""
    broken, place = find(context)
    return broken or judge_fit(_fit(place, context.pick(6, 12, 40)), place.kind)


def _fit(place: Place, epochs: int) -> KerasFit:
    import numpy as np
    import tensorflow as tf

    found, targets = images(512)
    found, targets = found.astype("float32"), targets.astype("float32")
    data = tf.data.Dataset.from_tensor_slices((found, targets)).shuffle(512, seed=1).batch(64)
    with place.scope():
        model = network()
        model.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss="mse")
        history = model.fit(data.prefetch(tf.data.AUTOTUNE), epochs=epochs, verbose=0)
        evaluated = model.evaluate(data, verbose=0)
        predicted = model.predict(found, batch_size=64, verbose=0)
    whole = predicted.shape == targets.shape
    by_hand = float(np.mean((predicted.astype("float64") - targets) ** 2)) if whole else math.nan
    steps = int(np.asarray(model.optimizer.iterations))
    losses = tuple(float(loss) for loss in history.history["loss"])
    return KerasFit(losses, float(evaluated), by_hand, steps, epochs * 8)


def judge_fit(fit: KerasFit, device: str) -> Outcome:
    """Whether the loss falls, each batch came, and evaluate agrees with the predictions."""
    measured: Dict[str, Any] = {
        "device": device,
        "losses": [number(loss) for loss in fit.losses],
        "evaluated": number(fit.evaluated),
        "by_hand": number(fit.by_hand),
        "batches": fit.batches,
    }
    expected = {"factor": FACTOR, "batches": fit.wanted_batches}
    fault = _fit_fault(fit)
    if fault:
        return Outcome(Status.FAIL, *fault, measured, expected)
    where = "on the GPU" if device == "cuda" else "on the CPU: no GPU visible"
    message = "loss from {:.3g} to {:.3g} by fit in {} epochs, evaluate agrees, {}".format(
        fit.losses[0], fit.losses[-1], len(fit.losses), where
    )
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _fit_fault(fit: KerasFit) -> Optional[Tuple[str, str, str]]:
    if fit.batches != fit.wanted_batches:
        message = "fit ran {} steps, the data has {}".format(fit.batches, fit.wanted_batches)
        return message, "the data pipeline lost or repeated batches", "look at loading.pipeline"
    if not fit.losses or not all(map(math.isfinite, (*fit.losses, fit.evaluated))):
        message = "fit returned no loss, or NaN or infinity"
        return message, "wrong arithmetic: a model this small does not overflow", AGAIN
    if not math.isfinite(fit.by_hand):
        message = "predict returned NaN, infinity or too few rows"
        return message, "predict runs different code than fit and evaluate", AGAIN
    if abs(fit.evaluated - fit.by_hand) > 1e-4 * fit.by_hand:
        message = "evaluate says {:.4g}, the predictions give {:.4g}".format(
            fit.evaluated, fit.by_hand
        )
        cause = "evaluate and predict use different code or data"
        return message, cause, "see that Keras is the version of the image's lock"
    if fit.evaluated * FACTOR > fit.losses[0]:
        message = "the loss went from {:.3g} to {:.3g}, not down {:.0f}-fold".format(
            fit.losses[0], fit.evaluated, FACTOR
        )
        return message, "gradients or the optimiser's steps are wrong", AGAIN
    return None


CHECKS = (
    Check("training.loss", "A model's loss falls", check_loss, "standard", 120, gpu=True),
    Check("training.same", "Training steps match float64", check_same, "standard", 120, gpu=True),
    Check("training.amp", "Mixed precision trains", check_amp, "standard", 180, gpu=True),
    Check("training.keras", "Keras fits and evaluates", check_keras, "standard", 120, gpu=True),
)
