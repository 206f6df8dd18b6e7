"""Training: forward, backward and an optimiser's steps must improve a small model."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from verify.backends.each_gpu import on_each
from verify.checks.numerics.accuracy import number, tolerance
from verify.checks.training.amp import MixedRun, check_amp, judge_amp
from verify.model.check import Check, Context, Outcome, Status, on_device
from verify.workloads.networks import dense, smooth

__all__ = [
    "CHECKS",
    "MixedRun",
    "TrainingSteps",
    "check_amp",
    "judge_amp",
    "judge_loss",
    "judge_same",
]

STEPS = {"quick": 50, "standard": 200, "full": 2000}
SAME_STEPS = {"quick": 10, "standard": 10, "full": 40}
AGAIN = "see devices.kernel and devices.convolution; build the image again"
FACTOR = 10.0  # measured on a CPU: 200 steps give a factor of about 330
_SLACK = 4.0  # cuDNN's Winograd convolutions lose a few bits
_ROWS = 32
_TERMS = _ROWS * 16 * 16  # a weight of the first layer has a product for each pixel
_NOT_TF32 = 1e-2  # a larger gap than factors of 11 bits make


def check_loss(context: Context) -> Outcome:
    """Train on each GPU, or on the CPU if nothing hints at a GPU."""
    return on_each(context, _train)


def _train(context: Context, place: Any) -> Outcome:
    trainer = place.backend.trainer(place, dense((8, 32, 1)), optimiser="adam")
    return judge_loss(trainer.steps(STEPS[context.level], trainer.data(256)), place.kind)


def judge_loss(losses: Sequence[float], device: str) -> Outcome:
    """Whether all losses are finite, and the last is smaller by the factor."""
    measured: Dict[str, Any] = {"device": device, "steps": len(losses)}
    expected = {"factor": FACTOR}
    if not losses:
        return Outcome(Status.FAIL, "no step was made", "no losses", AGAIN, measured, expected)
    first, last = losses[0], losses[-1]
    measured.update(first=number(first), last=number(last))
    strange = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if strange is not None:
        message = "loss is {} at step {}".format(losses[strange], strange)
        cause = "wrong arithmetic: a model this small does not overflow"
        fix = "see devices.kernel; take the GPU out of use if it fails too"
        return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    if last * FACTOR > first:
        message = "the loss went from {:.3g} to {:.3g}, not down {:.0f}-fold".format(
            first, last, FACTOR
        )
        cause = "gradients or the optimiser's steps are wrong"
        return Outcome(Status.FAIL, message, cause, AGAIN, measured, expected)
    said = "loss from {:.3g} to {:.3g} in {} steps, {}"
    message = said.format(first, last, len(losses), on_device(device))
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


@dataclass(frozen=True)
class TrainingSteps:
    """fp32 steps on the device compared with the same steps in float64 on the CPU."""

    losses: Tuple[float, ...]
    reference: Tuple[float, ...]  # the losses in float64
    drift: float  # how far the weights end from those in float64, by the way that those went
    way: float  # that way: the norm of all the change in the weights
    terms: int  # the most products that one gradient is the sum of
    cpu_drift: Optional[float] = None  # of the same steps in fp32 on the CPU, to put it beside

    @property
    def allowed(self) -> float:
        """What rounding explains, of the drift and of each loss.

        Drift is relative to the way, and each step adds to both alike, so it equals the relative
        error of one gradient. That needs a smooth model and few steps.
        """
        return tolerance("fp32", self.terms, _SLACK)

    @property
    def loss_gap(self) -> float:
        """The largest difference of a loss from the reference, relative to the reference."""
        gaps = [abs(a - b) / abs(b) if b else math.inf for a, b in zip(self.losses, self.reference)]
        gaps = [gap if math.isfinite(gap) else math.inf for gap in gaps]
        return max(gaps) if len(self.losses) == len(self.reference) and gaps else math.inf


def check_same(context: Context) -> Outcome:
    """The same steps on each GPU and on the CPU in fp32, and on the CPU in float64."""
    return on_each(context, _compare)


def _compare(context: Context, place: Any) -> Outcome:
    host, count = place.backend.place("cpu"), SAME_STEPS[context.level]
    true = _steps(host, "fp64", count)
    here = _steps(place, "fp32", count)
    beside = _steps(host, "fp32", count) if place.is_gpu else None
    way = _apart(true.first, true.last)

    def drift(ran: _Ran) -> float:
        return _apart(ran.last, true.last) / (way or 1.0)

    losses, known = tuple(here.losses), tuple(true.losses)
    found = TrainingSteps(losses, known, drift(here), way, _TERMS, beside and drift(beside))
    return judge_same(found, place.kind)


class _Ran(NamedTuple):
    losses: List[float]
    first: List[Any]  # the weights before the steps, of the host
    last: List[Any]


@functools.lru_cache(maxsize=None)  # the CPU's are the same for every GPU
def _steps(place: Any, dtype: str, count: int) -> _Ran:
    """Without TF32: with it fp32 and float64 would differ by far more than fp32 rounds."""
    trainer = place.backend.trainer(place, smooth(), dtype=dtype, rate=0.05, exact=True)
    first = trainer.weights()
    return _Ran(trainer.steps(count, trainer.data(_ROWS)), first, trainer.weights())


def _apart(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The norm of the difference of all weights."""
    return math.sqrt(sum(float(((a - b) * (a - b)).sum()) for a, b in zip(one, other)))


def judge_same(steps: TrainingSteps, device: str) -> Outcome:
    """Whether losses and weights are as in float64, except for what rounding explains."""
    measured = {
        "device": device,
        "steps": len(steps.losses),
        "drift": number(steps.drift),
        "cpu_drift": None if steps.cpu_drift is None else number(steps.cpu_drift),
        "loss_gap": number(steps.loss_gap),
        "losses": [number(loss) for loss in steps.losses],
        "float64_losses": [number(loss) for loss in steps.reference],
    }
    expected = {"drift": steps.allowed, "loss_gap": steps.allowed}
    fault = _fault(steps, device)
    if fault:
        return Outcome(Status.FAIL, *fault, measured, expected)
    said = "{} fp32 steps match float64, relative error of the weights {:.1g}{}, {}"
    beside = "" if steps.cpu_drift is None else " (CPU: {:.1g})".format(steps.cpu_drift)
    message = said.format(len(steps.losses), steps.drift, beside, on_device(device))
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _fault(steps: TrainingSteps, device: str) -> "Optional[Tuple[str, str, str]]":
    """Message, cause and fix, if the two runs are further apart than rounding explains."""
    if not steps.losses or not steps.way:
        return "the steps did not change any weight", "the optimiser's steps have no effect", AGAIN
    if steps.drift <= steps.allowed and steps.loss_gap <= steps.allowed:
        return None
    if not (math.isfinite(steps.drift) and math.isfinite(steps.loss_gap)):
        cause = "wrong arithmetic: a model this small does not overflow"
        return "NaN or infinity in {} fp32 steps".format(len(steps.losses)), cause, AGAIN
    what, gap = "weights end", steps.drift
    if steps.drift <= steps.allowed:
        what, gap = "losses are", steps.loss_gap
    said = "after {} fp32 steps the {} {:.2g} from float64's, where rounding explains {:.2g}"
    message = said.format(len(steps.losses), what, gap, steps.allowed)
    if device == "cuda" and gap < _NOT_TF32:
        cause = "TF32 was used although it was turned off, or a gradient is slightly wrong"
        return message, cause, "unset NVIDIA_TF32_OVERRIDE; see numerics.matmul"
    cause = "gradients or the optimiser's steps are wrong"
    return message, cause, "see numerics.convolution and numerics.matmul"


CHECKS = (
    Check("training.loss", "A model's loss falls", check_loss, "standard", 120, gpu=True),
    Check("training.same", "Training steps match float64", check_same, "standard", 120, gpu=True),
    Check("training.amp", "Mixed precision trains", check_amp, "standard", 180, gpu=True),
)
