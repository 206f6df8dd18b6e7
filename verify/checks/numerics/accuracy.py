"""How far a result may be from the truth: the error that rounding explains.

A check computes in some dtype, computes the same in float64 from the *rounded* inputs, and passes
the distance as an `AccuracyReading`. The rest must come from rounding of the sums and of the
result, and for that there are bounds. Nothing here imports a framework.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from verify.backends.each_gpu import GPU_FIX
from verify.model.check import CONFIGURATION, IMAGE, NODE, ON_CPU, UNKNOWN, Outcome, Status, gpus
from verify.model.measures import Cell, Table, pack
from verify.running.symptoms import explain

_CPU_FIX = "build the image again; try another machine: the CPU or its memory may be faulty"
_TF32_CAUSE = "the error is as large as TF32's, which was turned off"
_TF32_FIX = "build the image again from its lock"
_FORCED_CAUSE = "NVIDIA_TF32_OVERRIDE is {}, which forces TF32"
_FORCED_FIX = "unset NVIDIA_TF32_OVERRIDE"
_TF32_GAIN = 10.0  # measured: TF32's error is about 1000 times that of fp32
_TF32_BAND = (5e-5, 9e-4)  # measured: 2.9e-4 with rounded factors, 7.7e-4 with truncated ones
_BF16_BAND = (1.5e-3, 5e-3)  # measured: 2.3e-3. TF32 in a fast convolution reaches 3.3e-3 (H200)


@dataclass(frozen=True)
class Rounding:
    """Unit roundoffs, 2**-p for p bits of significand: of the factors, of the sum, of the result.

    The factors count only where the hardware itself rounds them, as with TF32: the reference is
    computed from the inputs as the device gets them.
    """

    factors: float
    sums: float
    result: float


# Tensor cores truncate their sums instead of rounding them, so one bit less is assumed there
# (Fasi, Higham, Mikaitis, Pranesh 2021). For fp8 Hopper's tensor cores keep about 14 bits of a sum
# (DeepSeek-V3 report 2024, section 3.5.2), and the result comes in bf16.
# A library's kernel for one format may be wrong on a sound GPU.
_NARROW = ("int8", "fp8 rowwise", "fp8 grouped", "mxfp8", "nvfp4")
_NARROW_FIX = "run the same image on another GPU of this model, and another build on this GPU"
_FP8 = Rounding(0.0, 2.0**-13, 2.0**-8)
ROUNDINGS: Dict[str, Rounding] = {
    "fp64": Rounding(0.0, 2.0**-53, 2.0**-53),
    "fp32": Rounding(0.0, 2.0**-24, 2.0**-24),
    "tf32": Rounding(2.0**-11, 2.0**-23, 2.0**-24),
    "fp16": Rounding(0.0, 2.0**-23, 2.0**-11),
    "bf16": Rounding(0.0, 2.0**-23, 2.0**-8),
    "fp8": _FP8,
    "int8": Rounding(0.0, 0.0, 2.0**-53),  # its sums are whole numbers
    **dict.fromkeys(_NARROW[1:], _FP8),
}


@dataclass(frozen=True)
class AccuracyReading:
    """One result compared with its float64 reference by `compare`; or the error instead."""

    what: str  # "509x1021x253", "3x3 grouped: gradient by weight"
    dtype: str  # a key of ROUNDINGS
    terms: int  # how many products are summed per element
    error: float = math.nan
    worst: float = math.nan
    gpu: Optional[int] = None  # None: the CPU
    slack: float = 1.0  # what the algorithm may lose beyond a plain sum
    peak: float = 2.0  # the worst element's limit, as a multiple of `allowed`
    raised: Optional[str] = None
    sums: Optional[float] = None  # their unit roundoff, if not the dtype's usual one

    @property
    def allowed(self) -> float:
        """The most that `error` may be."""
        return tolerance(self.dtype, self.terms, self.slack, self.sums)

    @property
    def off(self) -> float:
        """The error as a multiple of the allowed one, by the norm or by the worst element."""
        if not (math.isfinite(self.error) and math.isfinite(self.worst)):
            return math.inf
        return max(self.error, self.worst / self.peak) / self.allowed

    @property
    def name(self) -> str:
        """For messages."""
        where = "" if self.gpu is None else "GPU {}, ".format(self.gpu)
        return "{}{} {}".format(where, self.dtype, self.what)


def tolerance(dtype: str, terms: int, slack: float = 1.0, sums: Optional[float] = None) -> float:
    """The largest ratio of the norms of error and reference that rounding explains.

    The rounding error of a sum of `terms` random products grows with their square root (Higham and
    Mary 2019, "A New Approach to Probabilistic Rounding Error Analysis"). Two rounded factors count
    as sqrt(2) of one. The total is doubled, for libraries that sum in an unlucky order. Measured
    for 1024 terms, divided by this: fp32 0.06, fp16 and bf16 0.21, TF32 0.21 to 0.55 (rounded, or
    truncated). Faults that must be found: TF32 in place of fp32 75, sums in fp16 4.8, in bf16 1.2.
    """
    unit = ROUNDINGS[dtype]
    summed = math.sqrt(terms) * (unit.sums if sums is None else sums)
    plain = math.sqrt(2) * unit.factors + summed + unit.result
    return 2 * slack * plain


def compare(got: Any, reference: Any) -> Tuple[float, float]:
    """The norm of the error relative to the reference, and the worst element's relative error.

    The worst element's is relative to its size plus the root mean square. Both arguments are
    float64 arrays of the same shape: torch's on the CPU, or NumPy's. The second number finds one
    wrong element among a million, which the first misses.
    """
    if tuple(got.shape) != tuple(reference.shape):
        raise ValueError("{} is not {}".format(tuple(got.shape), tuple(reference.shape)))
    scale = math.sqrt(float((reference * reference).mean())) or 1.0
    gap = abs(got - reference)
    error = math.sqrt(float((gap * gap).mean())) / scale
    return error, float((gap / (abs(reference) + scale)).max())


def tf32_override() -> Optional[str]:
    """The variable by which a user forces or forbids TF32 in NVIDIA's libraries."""
    return os.environ.get("NVIDIA_TF32_OVERRIDE")


def number(value: float) -> Union[float, str]:
    """The value for JSON, as text if it is NaN or infinite."""
    return value if math.isfinite(value) else repr(value)


def judge_products(
    readings: Sequence[AccuracyReading],
    left_out: Optional[Mapping[str, str]] = None,
    tf32_gpus: Sequence[int] = (),
    override: Optional[str] = None,
) -> Outcome:
    """Judge matrix products. `left_out` has the dtypes that were not tried, each with the reason.

    `tf32_gpus` are those that have TF32: there a "tf32" reading must show that TF32 was used,
    unless `override`, the value of NVIDIA_TF32_OVERRIDE, turns it off.
    """
    outcome = judge_accuracy("products", readings, left_out, override)
    cards = [gpu for gpu in tf32_gpus if any(r.gpu == gpu and r.dtype == "tf32" for r in readings)]
    if outcome.status is not Status.PASS or not cards:
        return outcome
    unused = _without_tf32(readings, cards)
    if not unused:
        return _noted(outcome, "TF32 in effect where asked for")
    if override == "0":
        return _noted(outcome, "no TF32: NVIDIA_TF32_OVERRIDE is 0")
    message = "{}: as exact as fp32, so TF32 was requested but not used".format(unused[0].name)
    cause = "the library chose a kernel without TF32: products take up to 8 times as long"
    fix = "check that libcublas is the one of the plan (libraries.files); build the image again"
    return replace(_with(outcome, Status.FAIL, message, cause, fix), at_fault=IMAGE)


def judge_convolution(
    readings: Sequence[AccuracyReading],
    left_out: Optional[Mapping[str, str]] = None,
    override: Optional[str] = None,
) -> Outcome:
    """Judge convolutions, forward and both gradients. `override`: as for `judge_accuracy`."""
    return judge_accuracy("convolutions", readings, left_out, override)


def judge_accuracy(
    noun: str,
    readings: Sequence[AccuracyReading],
    left_out: Optional[Mapping[str, str]] = None,
    override: Optional[str] = None,
) -> Outcome:
    """Whether rounding explains every reading. `override`, the value of NVIDIA_TF32_OVERRIDE, is
    the cause where it forces TF32 and the error is no larger than TF32's.
    """
    measured = _measured(noun, readings, left_out or {})
    expected = {"off": 1.0}
    if not readings:
        reasons = "; ".join("{}: {}".format(*row) for row in (left_out or {}).items())
        cause, fix = reasons or "no reading was made", "build the image again from its lock"
        return Outcome(Status.FAIL, "no {} computed".format(noun), cause, fix, measured, expected)
    raised = next((r for r in readings if r.raised is not None), None)
    if raised is not None:
        message, cause, fix = _say_raised(raised)
        return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    worst = max(readings, key=lambda reading: reading.off)
    if not worst.off <= 1:
        cause, fix, whose = _explain(worst, override)
        return Outcome(Status.FAIL, _say_wrong(worst), cause, fix, measured, expected, whose)
    return Outcome(Status.PASS, _say_right(noun, readings), measured=measured, expected=expected)


def _measured(
    noun: str, readings: Sequence[AccuracyReading], left_out: Mapping[str, str]
) -> Dict[str, Any]:
    on_gpu = any(reading.gpu is not None for reading in readings)
    columns = ("dtype", "what", "error", "allowed", "worst element", "GPU")
    rows = tuple(_row(reading) for reading in _worst_of_each(readings))
    title = "{} against float64, by the norm".format(noun.capitalize())
    tables = [Table(title, columns, rows)] if rows else []
    device = {"device": "cuda" if on_gpu else "cpu"} if readings else {}
    return {**device, "left_out": dict(left_out), **pack(tables=tables)}


def _row(reading: AccuracyReading) -> Tuple[Cell, ...]:
    found = number(reading.error), reading.allowed, number(reading.worst)
    return (reading.dtype, reading.what, *found, reading.gpu)


def _worst_of_each(readings: Sequence[AccuracyReading]) -> List[AccuracyReading]:
    """The worst reading of each dtype and kind; text after a comma in `what` is the case."""
    found: Dict[Tuple[str, str], AccuracyReading] = {}
    for reading in readings:
        key = reading.dtype, reading.what.partition(",")[0]
        if key not in found or reading.off > found[key].off:
            found[key] = reading
    return list(found.values())


def _without_tf32(
    readings: Sequence[AccuracyReading], cards: Sequence[int]
) -> List[AccuracyReading]:
    """The TF32 readings of the first card where no reading shows that TF32 was used.

    One that does is enough: for a shape that fits no tile a library may choose another kernel.
    """
    plain = {(r.gpu, r.what): r.error for r in readings if r.dtype == "fp32"}
    for card in cards:
        asked = [r for r in readings if r.dtype == "tf32" and r.gpu == card]
        if not any(r.error > _TF32_GAIN * plain.get((card, r.what), math.inf) for r in asked):
            return asked
    return []


def _say_raised(reading: AccuracyReading) -> Tuple[str, str, str]:
    text = reading.raised or ""
    cause, fix = explain(text)
    line = text.partition("\n")[0]
    fix = fix or (_CPU_FIX if reading.gpu is None else GPU_FIX)
    return "{}: {}".format(reading.name, line), cause or line, fix


def _say_wrong(reading: AccuracyReading) -> str:
    if math.isinf(reading.off):
        return "{}: the result holds NaN or infinity".format(reading.name)
    if reading.error <= reading.allowed:
        return "{}: single elements are wrong, by {:.2g} of their size".format(
            reading.name, reading.worst
        )
    said = "{}: error {:.2g}, where rounding explains {:.2g}"
    return said.format(reading.name, reading.error, reading.allowed)


def _explain(reading: AccuracyReading, override: Optional[str]) -> Tuple[str, str, str]:
    """A cause that fits the size of the error, its fix, and what is at fault."""
    fix, whose = (_CPU_FIX, UNKNOWN) if reading.gpu is None else (GPU_FIX, NODE)
    if math.isinf(reading.off):
        return "wrong arithmetic: no number here comes near the dtype's limit", fix, whose
    if reading.error <= reading.allowed:
        return "a tile of the result was not written, or memory is damaged", fix, whose
    if _is_forced(reading, override):
        return _FORCED_CAUSE.format(override), _FORCED_FIX, CONFIGURATION
    if reading.dtype == "fp32" and _within(reading.error, _TF32_BAND):
        if reading.gpu is None:
            return "fewer bits than fp32 has were used", fix, IMAGE
        return _TF32_CAUSE, _TF32_FIX, IMAGE
    if reading.dtype in ("fp32", "tf32") and _within(reading.error, _BF16_BAND):
        has_tf32 = reading.gpu is not None and reading.dtype == "fp32" and reading.slack > 1
        said = "the factors were rounded to {}bf16".format("TF32 or " if has_tf32 else "")
        return said, fix, IMAGE
    if reading.dtype in _NARROW and reading.gpu is not None:
        return "a kernel for {} is wrong".format(reading.dtype), _NARROW_FIX, UNKNOWN
    rough = math.sqrt(reading.terms) * ROUNDINGS[reading.dtype].result
    if reading.dtype in ("fp16", "bf16") and reading.error < rough:
        return "sums were kept in {} instead of fp32".format(reading.dtype), fix, IMAGE
    return "a kernel ran and its result is wrong", fix, whose


def _is_forced(reading: AccuracyReading, override: Optional[str]) -> bool:
    """Whether NVIDIA_TF32_OVERRIDE explains the error. Measured on an H200: 1 forces TF32 in cuBLAS
    and cuDNN whatever the framework asks for.
    """
    if reading.dtype != "fp32" or reading.gpu is None or override in (None, "", "0"):
        return False
    return reading.error <= tolerance("tf32", reading.terms, reading.slack)


def _within(value: float, band: Tuple[float, float]) -> bool:
    return band[0] <= value <= band[1]


def _say_right(noun: str, readings: Sequence[AccuracyReading]) -> str:
    dtypes = ", ".join(dict.fromkeys(reading.dtype for reading in readings))
    cards = {reading.gpu for reading in readings if reading.gpu is not None}
    where = "on " + gpus(len(cards)) if cards else ON_CPU
    return "correct in {}: {} differ from float64 only by rounding, {}".format(dtypes, noun, where)


def _noted(outcome: Outcome, note: str) -> Outcome:
    return _with(outcome, outcome.status, "{}; {}".format(outcome.message, note), None, None)


def _with(
    outcome: Outcome, status: Status, message: str, cause: Optional[str], fix: Optional[str]
) -> Outcome:
    return Outcome(status, message, cause, fix, outcome.measured, outcome.expected)
