"""Mixed precision: whether autocast and the gradient scaler train as well as fp32, and their gain.

fp16 has 5 bits of exponent: small gradients vanish unless the loss is scaled up. The scaler finds
the scale by trial and skips each step that overflows; here it starts far too high on purpose, so
that it must skip some. bf16 has the range of fp32 and needs no scaler.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from verify.backends.pytorch import Place, find
from verify.checks.numerics.accuracy import number
from verify.model.check import Context, Outcome, Status
from verify.model.measures import Cell, Metric, Table, median, pack, spread

STEPS = {"quick": 60, "standard": 60, "full": 600}
FALL = 10.0  # measured on a CPU: 60 steps bring the loss down 300-fold, in each dtype
LAG = 2.0  # measured: the last losses of the three dtypes are within 3 % of each other
FIRST_SCALE = 2.0**22  # measured: this model's gradients overflow fp16 down to 2**19
_TORCH = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_SHORT = {name: short for short, name in _TORCH.items()}
_WORDS = {"cuda": "on the GPU", "cpu": "on the CPU: no GPU visible"}
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
    """Train a small model in each dtype, then time a larger one, on the first GPU or the CPU."""
    broken, place = find(context)
    if broken:
        return broken
    runs, left_out = [], {}
    for dtype in ("fp32", "bf16", "fp16"):
        reason = _unfit(dtype, place)
        if reason:
            left_out[dtype] = reason
        else:
            runs.append(_run(dtype, place, context))
    return judge_amp(runs, place.kind, left_out)


def _unfit(dtype: str, place: Place) -> Optional[str]:
    """Why mixed precision with this dtype is not possible here."""
    import torch

    if dtype == "bf16" and place.is_gpu and (place.capability or (0, 0)) < (8, 0):
        said = "compute capability {}.{} has no bf16 units: it comes with 8.0"
        return said.format(*(place.capability or (0, 0)))
    if dtype == "fp16" and not place.is_gpu:
        with warnings.catch_warnings(record=True) as said_so:
            warnings.simplefilter("always")
            torch.autocast("cpu", dtype=torch.float16)
        if said_so or not hasattr(torch.amp, "GradScaler"):
            return "torch {} has no fp16 autocast on the CPU".format(torch.__version__)
    return None


def _run(dtype: str, place: Place, context: Context) -> MixedRun:
    small = _train(dtype, place, STEPS[context.level])
    seconds, peak = _time(dtype, place, context)
    return MixedRun(
        dtype,
        tuple(small.losses),
        small.computed_in,
        small.finite,
        tuple(small.skipped),
        dtype == "fp16",
        tuple(seconds),
        peak,
    )


class _Trained(NamedTuple):
    losses: List[float]
    computed_in: str
    finite: bool
    skipped: List[int]


def _train(dtype: str, place: Place, steps: int) -> _Trained:
    """Train with plain SGD: Adam divides by the gradients' size, which would hide a wrong scale."""
    import torch

    torch.manual_seed(7)
    inputs = torch.randn(256, 16)
    target = (inputs @ torch.randn(16, 1) / 4).tanh().to(place.device)
    model = _network((16, 64, 64, 1)).to(place.device)
    step = _Step(dtype, place, model, FIRST_SCALE)
    inputs = inputs.to(place.device)
    losses, skipped = [], []
    for number_of_step in range(steps):
        before = step.scaler.get_scale()
        losses.append(float(step.take(inputs, target)))
        if step.scaler.get_scale() < before:
            skipped.append(number_of_step)
    finite = all(bool(torch.isfinite(weight).all()) for weight in model.parameters())
    return _Trained(losses, step.computed_in, finite, skipped)


def _time(dtype: str, place: Place, context: Context) -> "Tuple[List[float], Optional[int]]":
    """Seconds of each step and the most memory held, for a model of wide layers."""
    width, rows = (2048, 8192) if place.is_gpu else (256, 64)
    found = _time_wide(dtype, place, width, rows, context.pick(5, 5, 20))
    place.release()
    return found


def _time_wide(
    dtype: str, place: Place, width: int, rows: int, repeats: int
) -> "Tuple[List[float], Optional[int]]":
    import torch

    inputs = torch.randn(rows, width, device=place.device)
    step = _Step(dtype, place, _network((width,) * 7).to(place.device), 2.0**10)
    step.take(inputs, inputs)  # the first step allocates the optimiser's memory
    peak = place.peak_bytes(lambda: step.take(inputs, inputs))
    return place.seconds(lambda: step.take(inputs, inputs), repeats=repeats), peak


def _network(widths: Sequence[int]) -> Any:
    import torch

    layers: List[Any] = []
    for left, right in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(left, right), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1])


class _Step:
    """A training step in one dtype, as PyTorch's own guide to mixed precision writes it."""

    def __init__(self, dtype: str, place: Place, model: Any, first_scale: float) -> None:
        import torch

        self._model, self._kind = model, place.kind
        self._dtype, self._mixed = getattr(torch, _TORCH[dtype]), dtype != "fp32"
        self._optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.scaler = _scaler(place, enabled=dtype == "fp16", first_scale=first_scale)
        self.computed_in = "nothing"

    def take(self, inputs: Any, target: Any) -> Any:
        """Take the step and return the loss before it."""
        import torch

        self._optimiser.zero_grad(set_to_none=True)
        with _autocast(self._kind, self._dtype, enabled=self._mixed):
            result = self._model(inputs)
        loss = torch.nn.functional.mse_loss(result.float(), target)
        self.scaler.scale(loss).backward()
        self.scaler.step(self._optimiser)
        self.scaler.update()
        name = str(result.dtype).replace("torch.", "")
        self.computed_in = _SHORT.get(name, name)
        return loss.detach()


def _autocast(kind: str, dtype: Any, *, enabled: bool) -> Any:
    """An autocast context; autocast refuses float32 as its dtype even if it is not enabled."""
    import contextlib

    import torch

    return torch.autocast(kind, dtype=dtype) if enabled else contextlib.nullcontext()


def _scaler(place: Place, *, enabled: bool, first_scale: float) -> Any:
    """torch.amp.GradScaler since 2.3; before, only CUDA's."""
    import torch

    general: Optional[Callable[..., Any]] = getattr(torch.amp, "GradScaler", None)
    if general is not None:
        return general(place.kind, init_scale=first_scale, enabled=enabled)
    return torch.cuda.amp.GradScaler(init_scale=first_scale, enabled=enabled and place.is_gpu)


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
    if run.losses[-1] > LAG * plain.losses[-1]:
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
    return "trains like fp32: {}, {}".format("; ".join(parts), _WORDS[device])


def _say_one(run: MixedRun, plain: MixedRun, device: str) -> str:
    said = ["{} steps skipped to find the scale".format(len(run.skipped))] if run.skipped else []
    gains = {metric.name: metric.value for metric in _gains(run, plain)}
    if "amp_speedup" in gains and device == "cuda":
        said.append("{:.2g} times as fast".format(gains["amp_speedup"]))
    if "amp_memory_saved" in gains:
        said.append("{:.0%} less memory".format(gains["amp_memory_saved"]))
    return "{} ({})".format(run.dtype, ", ".join(said)) if said else run.dtype
