"""Mixed precision: whether autocast and the gradient scaler train as well as fp32, and their gain.

fp16 has 5 bits of exponent: small gradients vanish unless the loss is scaled up. The scaler finds
the scale by trial and skips each step that overflows; here it starts far too high on purpose, so
that it must skip some. bf16 has the range of fp32 and needs no scaler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from verify.backends.each_gpu import on_each
from verify.checks.numerics.accuracy import number
from verify.model.check import Context, Outcome, Status, on_device
from verify.model.measures import Cell, Metric, Table, median, pack, spread
from verify.workloads.networks import dense

STEPS = {"quick": 60, "standard": 60, "full": 600}
FALL = 10.0  # measured on a CPU: 60 steps bring the loss down 300-fold, in each dtype
LAG = 2.0  # measured: the last losses of the three dtypes are within 3 % of each other
ROUNDED = 2.0**-14  # of the first loss: below it bf16's rounding decides where a loss ends
WIDE = {"cuda": (2048, 8192), "cpu": (256, 64)}  # width of the layers, rows of data
_FIX = "see devices.kernel and numerics.matmul; build the image again"


@dataclass(frozen=True)
class MixedRun:
    """One run in mixed precision. A run in plain fp32 has the same shape."""

    dtype: str  # "fp32", "fp16", "bf16"
    losses: Tuple[float, ...]
    computed_in: str  # the actual dtype of the layers' results
    finite: bool = True  # whether every weight is finite at the end
    skipped: Tuple[int, ...] = ()  # the steps that the scaler skipped
    overflows: bool = False  # the first scale was too large on purpose: a step must be skipped
    seconds: Tuple[float, ...] = ()  # of each step of a larger model
    peak_bytes: Optional[int] = None  # of that model's step; None if it cannot be measured


def check_amp(context: Context) -> Outcome:
    """Train a small model in each dtype on each GPU or the CPU, and time a larger one."""
    return on_each(context, _train)


def _train(context: Context, place: Any) -> Outcome:
    runs, left_out = [], {}
    for dtype in ("fp32", "bf16", "fp16"):
        reason = place.cannot_mix(dtype)
        if reason:
            left_out[dtype] = reason
        else:
            runs.append(_run(dtype, place, context))
    return judge_amp(runs, place.kind, left_out)


def _run(dtype: str, place: Any, context: Context) -> MixedRun:
    """Plain SGD: Adam divides by the gradients' size, which would hide a wrong scale."""
    trainer = place.backend.trainer(place, dense((16, 64, 64, 1)), mixed=dtype)
    data, losses, skipped = trainer.data(256), [], []
    for step in range(STEPS[context.level]):
        before = trainer.scale()
        losses.append(float(trainer.step(*data)))
        if trainer.scale() < before:
            skipped.append(step)
    finite = all(bool((weight - weight == 0).all()) for weight in trainer.weights())
    seconds, peak = ([], None) if place.index else _time(dtype, place, context.pick(5, 5, 20))
    computed_in = trainer.computed_in
    overflows = dtype == "fp16"
    return MixedRun(
        dtype, tuple(losses), computed_in, finite, tuple(skipped), overflows, tuple(seconds), peak
    )


def _time(dtype: str, place: Any, repeats: int) -> Tuple[List[float], Optional[int]]:
    """Seconds of each step of a larger model, and the most memory that one holds: information, so
    one GPU's is enough.
    """
    width, rows = WIDE[place.kind]
    wide = place.backend.trainer(place, dense((width,) * 7), mixed=dtype, scale=2.0**10)
    large = wide.data(rows, learnable=False)
    wide.step(*large)  # the first step allocates the optimiser's memory
    peak = wide.peak_bytes(large)
    seconds = place.seconds(lambda: wide.step(*large), repeats=repeats)
    place.release()
    return seconds, peak


def judge_amp(
    runs: Sequence[MixedRun], device: str, left_out: Optional[Mapping[str, str]] = None
) -> Outcome:
    """Whether each dtype's loss falls as in fp32 and was computed in the requested dtype."""
    left_out = left_out or {}
    plain = next((run for run in runs if run.dtype == "fp32"), None)
    mixed = [run for run in runs if run.dtype != "fp32"]
    measured = {
        "device": device,
        "left_out": dict(left_out),
        "skipped": {run.dtype: list(run.skipped) for run in runs},
        **_pack(mixed, plain, device),
    }
    expected = {"fall": FALL, "lag": LAG}
    if plain is None or not mixed:
        cause = "; ".join("{}: {}".format(*row) for row in left_out.items()) or "nothing was run"
        message = "there is no run in mixed precision beside one in fp32"
        return Outcome(Status.FAIL, message, cause, _FIX, measured, expected)
    for run in runs:
        fault = _fault(run, plain)
        if fault:
            return Outcome(Status.FAIL, fault[0], fault[1], _FIX, measured, expected)
    message = _say(mixed, plain, device, left_out)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _fault(run: MixedRun, plain: MixedRun) -> "Optional[Tuple[str, str]]":
    """Message and cause, if a run went wrong."""
    name = run.dtype
    if run.computed_in != name:
        message = "{} was requested, but the layers computed in {}".format(name, run.computed_in)
        return message, "autocast did not choose the dtype"
    late = [step for step in run.skipped if 2 * step >= len(run.losses)]
    if late:
        message = "{}: the scaler still skipped step {} of {}".format(
            name, late[-1], len(run.losses)
        )
        return message, "gradients are not unscaled, or are taken for infinite at every scale"
    if not run.finite or not all(map(math.isfinite, run.losses)):
        message = "{}: the loss or a weight became NaN or infinite".format(name)
        if run.overflows:
            return message, "gradients were not unscaled, or an overflow was not noticed"
        return message, "wrong arithmetic: a model this small does not overflow"
    if run.overflows and not run.skipped:
        message = "{}: the scaler skipped no step, although the first ones overflow".format(name)
        return message, "the scaler does not see infinite gradients"
    return _lagging(run, plain)


def _lagging(run: MixedRun, plain: MixedRun) -> "Optional[Tuple[str, str]]":
    if not run.losses or run.losses[-1] * FALL > run.losses[0]:
        first, last = (run.losses[0], run.losses[-1]) if run.losses else (math.nan, math.nan)
        said = "{}: the loss went from {:.3g} to {:.3g}, not down {:.0f}-fold"
        cause = "gradients, their scaling or the optimiser's steps are wrong"
        return said.format(run.dtype, first, last, FALL), cause
    if run.losses[-1] > max(LAG * plain.losses[-1], ROUNDED * run.losses[0]):
        said = "{}: the loss ends at {:.3g}, and at {:.3g} in fp32"
        return said.format(run.dtype, run.losses[-1], plain.losses[-1]), "gradients were lost"
    return None


def _pack(mixed: Sequence[MixedRun], plain: Optional[MixedRun], device: str) -> Dict[str, Any]:
    """The measurements. A CPU's gain says nothing about a GPU, so it is only in the table."""
    if plain is None:
        return {}
    metrics = [metric for run in mixed for metric in _gains(run, plain) if device == "cuda"]
    columns = ("dtype", "last loss", "steps skipped", "step (s)", "peak (bytes)")
    rows = tuple(_row(run) for run in (plain, *mixed))
    return pack(metrics, [Table("Mixed precision compared with fp32", columns, rows)])


def _row(run: MixedRun) -> "Tuple[Cell, ...]":
    last = number(run.losses[-1]) if run.losses else None
    seconds = median(run.seconds) if run.seconds else None
    return run.dtype, last, len(run.skipped), seconds, run.peak_bytes


def _gains(run: MixedRun, plain: MixedRun) -> List[Metric]:
    labels, found = {"dtype": run.dtype}, []
    if run.seconds and plain.seconds:
        gain = median(plain.seconds) / median(run.seconds)
        noise = spread(plain.seconds) + spread(run.seconds)
        repeats = len(run.seconds)
        found.append(
            Metric("amp_speedup", gain, "times", repeats=repeats, spread=noise, labels=labels)
        )
    if run.peak_bytes and plain.peak_bytes:
        saved = 1 - run.peak_bytes / plain.peak_bytes
        found.append(Metric("amp_memory_saved", saved, "share", labels=labels))
    return found


def _say(
    mixed: Sequence[MixedRun], plain: MixedRun, device: str, left_out: Mapping[str, str]
) -> str:
    parts = [_say_one(run, plain, device) for run in mixed]
    parts += ["{} not tried: {}".format(*row) for row in left_out.items()]
    return "trains like fp32: {}, {}".format("; ".join(parts), on_device(device))


def _say_one(run: MixedRun, plain: MixedRun, device: str) -> str:
    said = ["{} steps skipped to find the scale".format(len(run.skipped))] if run.skipped else []
    gains = {metric.name: metric.value for metric in _gains(run, plain)}
    if "amp_speedup" in gains and device == "cuda":
        said.append("{:.2g} times as fast".format(gains["amp_speedup"]))
    if "amp_memory_saved" in gains:
        said.append("{:.0%} less memory".format(gains["amp_memory_saved"]))
    return "{} ({})".format(run.dtype, ", ".join(said)) if said else run.dtype
