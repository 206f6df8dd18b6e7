"""Attention in each way that a framework has: forward and gradients against the float64 formula."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from verify.backends.base import Backend, of
from verify.checks.numerics.accuracy import AccuracyReading, compare, judge_accuracy, tf32_override
from verify.checks.numerics.precision import Results
from verify.model.check import Check, Context, Outcome, Status

Shape = Tuple[int, int, int, int]  # batch, heads, length, width of a head
# 510 is no multiple of a tile. Nor is an odd length, but there torch 2.1 writes past its buffers
# in bf16 on a CPU (pytorch issue 132871).
_SHAPES: Mapping[str, Tuple[Shape, ...]] = {
    "quick": ((2, 4, 128, 64),),
    "standard": ((2, 4, 128, 64), (1, 4, 510, 64)),
    "full": ((2, 4, 128, 64), (1, 4, 510, 64), (2, 8, 1024, 128)),
}
_DTYPES = ("fp32", "fp16", "bf16")
# Each pass has three roundings to the dtype one after another: weights, their products, gradients.
SLACK = 4.0
# With a causal mask the first rows are means of few values, and up to ten times as large as most.
PEAK = 8.0
PARTS = ("", ", gradient by query", ", gradient by key", ", gradient by value")


@dataclass(frozen=True)
class ForcedBackend:
    """The only backend that was allowed, and the one that ran."""

    asked: str
    ran: str
    dtype: str


def check_attention(context: Context) -> Outcome:
    """Ask for each way in turn, on every GPU or on the CPU."""
    backend = of(context)
    missing = backend.numbers.no_attention()
    if missing:
        return Outcome(Status.SKIP, missing, "this release is older than that function")
    broken, everywhere = backend.every(context)
    if broken:
        return broken
    backend.allow_tf32(on=False)
    found, forced = Results(backend, [], {}), []  # type: Tuple[Results, List[ForcedBackend]]
    for dtype in _DTYPES:
        able = found.able(dtype, everywhere)
        for shape in _SHAPES[context.level] if able else ():
            for causal in (False, True):
                _try_each(dtype, shape, able, found, forced, causal=causal)
    return judge_attention(
        found.readings, forced, found.left_out, tf32_override(), asked=backend.attentions
    )


def _try_each(
    dtype: str,
    shape: Shape,
    able: Sequence[Any],
    found: Results,
    forced: List[ForcedBackend],
    *,
    causal: bool,
) -> None:
    """Every way on the same inputs, everywhere."""
    host = found.backend.place("cpu")
    drawn = found.backend.draw(shape[2], *[shape] * 4)
    given = [host.get(host.put(numbers, dtype)) for numbers in drawn]
    known = formula(found.backend, given, causal=causal)
    for place in able:
        for way in ("", *found.backend.attentions):
            name = way or "as {} chooses".format(found.backend.counts_as)
            what = "{}, {}, length {}".format(name, "causal" if causal else "full", shape[2])
            mine = AccuracyReading(what, dtype, shape[2], gpu=place.gpu, slack=SLACK, peak=PEAK)

            def work() -> List[AccuracyReading]:
                ran = place.attend(given, dtype, way, causal=causal)  # noqa: B023
                if ran is None:
                    return []
                if way:  # noqa: B023
                    forced.append(ForcedBackend(way, ran[0], dtype))  # noqa: B023
                return [read(mine, *row) for row in zip(PARTS, ran[1], known)]  # noqa: B023

            found.add(work, mine)


def read(mine: AccuracyReading, part: str, got: Any, true: Any) -> AccuracyReading:
    """A result, or a gradient, compared with the formula's."""
    error, worst = compare(got, true)
    return replace(mine, what=mine.what + part, error=error, worst=worst)


def formula(backend: Backend, given: Sequence[Any], *, causal: bool) -> Sequence[Any]:
    """softmax(query key' / sqrt(width)) value, and its gradients by all three; with a causal mask
    no row looks ahead.
    """
    query, key, value, back = given
    rows, scale = range(query.shape[-2]), query.shape[-1] ** -0.5
    seen = backend.host([[float(j <= i or not causal) for j in rows] for i in rows])
    shares = math.e ** (query @ key.swapaxes(-1, -2) * scale) * seen
    shares = shares / shares.sum(-1)[..., None]
    by_share = back @ value.swapaxes(-1, -2)
    by_score = shares * (by_share - (shares * by_share).sum(-1)[..., None]) * scale
    by_value = shares.swapaxes(-1, -2) @ back
    return shares @ value, by_score @ key, by_score.swapaxes(-1, -2) @ query, by_value


def judge_attention(
    readings: Sequence[AccuracyReading],
    forced: Sequence[ForcedBackend],
    left_out: Optional[Mapping[str, str]] = None,
    override: Optional[str] = None,
    asked: Sequence[str] = (),
) -> Outcome:
    """Whether rounding explains every reading, and no backend replaced another."""
    if not readings and not left_out:
        left_out = {"every dtype": "no backend has a kernel for it"}
    outcome = judge_accuracy("attention results", readings, left_out, override)
    ran = list(dict.fromkeys(row.ran for row in forced))
    lacking = [name for name in asked if name not in {row.asked for row in forced}]
    measured = {**outcome.measured, "backends": ran}
    outcome = replace(outcome, measured=measured)
    if outcome.status is not Status.PASS:
        return outcome
    swapped = next((row for row in forced if row.asked != row.ran), None)
    if swapped is not None:
        said = "{}: only the {} backend was allowed, but {} ran"
        message = said.format(swapped.dtype, swapped.asked, swapped.ran)
        cause = "the framework ignores the choice of a backend"
        fix = "build the image again from its lock; look for packages that patch the framework"
        return replace(outcome, status=Status.FAIL, message=message, cause=cause, fix=fix)
    none = "; no kernel here: {}".format(", ".join(lacking)) if lacking else ""
    message = "{} {}{}".format(", ".join(ran), outcome.message, none).strip()
    return replace(outcome, message=message)


CHECKS = (
    Check(
        "numerics.attention",
        "Attention is correct with every backend",
        check_attention,
        "standard",
        300,
    ),
)
