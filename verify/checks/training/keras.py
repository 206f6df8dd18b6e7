"""Keras's own fit, evaluate and predict on a tf.data pipeline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from verify.backends.each_gpu import on_each
from verify.backends.tensorflow import Place
from verify.backends.tensorflow_training import model_of
from verify.checks.numerics.accuracy import number
from verify.checks.training.loss import AGAIN, FACTOR
from verify.model.check import Check, Context, Outcome, Status, on_device
from verify.workloads.networks import Network

SIZE, CLASSES = 12, 4  # images of 12 x 12, one channel
_NETWORK = Network(
    (SIZE, SIZE, 1),
    (("conv", 8, 3, 2), ("tanh",), ("flatten",), ("dense", 32), ("tanh",), ("dense", CLASSES)),
    CLASSES,
)


def images(count: int) -> Tuple[Any, Any]:
    """Images, and targets that a small network can learn: the means of their quarters."""
    import numpy as np

    found = np.random.default_rng(11).standard_normal((count, SIZE, SIZE, 1))
    half = SIZE // 2
    parts = [found[:, i : i + half, j : j + half, 0] for i in (0, half) for j in (0, half)]
    targets = np.stack([part.mean((1, 2)) for part in parts], 1)
    return found.astype("float32"), targets.astype("float32")


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
    return on_each(context, _fit)


def _fit(context: Context, place: Place) -> Outcome:
    import numpy as np
    import tensorflow as tf

    epochs = context.pick(6, 12, 40)
    found, targets = images(512)
    data = tf.data.Dataset.from_tensor_slices((found, targets)).shuffle(512, seed=1).batch(64)
    with place.scope():
        model = model_of(_NETWORK)
        model.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss="mse")
        history = model.fit(data.prefetch(tf.data.AUTOTUNE), epochs=epochs, verbose=0)
        evaluated = model.evaluate(data, verbose=0)
        predicted = model.predict(found, batch_size=64, verbose=0)
    whole = predicted.shape == targets.shape
    by_hand = float(np.mean((predicted.astype("float64") - targets) ** 2)) if whole else math.nan
    steps = int(np.asarray(model.optimizer.iterations))
    losses = tuple(float(loss) for loss in history.history["loss"])
    fit = KerasFit(losses, float(evaluated), by_hand, steps, epochs * 8)
    return judge_fit(fit, place.kind)


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
    message = "loss from {:.3g} to {:.3g} by fit in {} epochs, evaluate agrees, {}".format(
        fit.losses[0], fit.losses[-1], len(fit.losses), on_device(device)
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
    Check("training.keras", "Keras fits and evaluates", check_keras, "standard", 120, gpu=True),
)
