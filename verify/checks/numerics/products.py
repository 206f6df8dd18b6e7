"""Products of random matrices in every dtype, on every GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Dict, List, Sequence, Tuple

from verify.backends.base import Backend, of
from verify.checks.numerics.accuracy import AccuracyReading, compare, judge_products, tf32_override
from verify.checks.numerics.precision import Results
from verify.model.check import Check, Context, Outcome

Shape = Tuple[int, int, int]  # rows, terms, columns: (m, k) @ (k, n)
_WHOLE: Shape = (512, 1024, 512)
_SHAPES: Tuple[Shape, ...] = (_WHOLE, (509, 1021, 253), (8, 4096, 24))  # whole, partial, thin tiles
_LARGE: Dict[str, Tuple[Shape, ...]] = {
    "quick": (),
    "standard": ((1024, 1024, 1024),),
    "full": ((2048, 4096, 2048),),
}
_ANY_SHAPE = ("fp64", "fp32", "fp16", "bf16")
_WIDE = 20.0  # so that int8 holds what is drawn
_EXACT = 4  # rows and columns of each reference that are summed again without rounding


def check_matmul(context: Context) -> Outcome:
    """Compute a reference once, and compare each place with it."""
    backend = of(context)
    broken, everywhere = backend.every(context)
    if broken:
        return broken
    found = Results(backend, [], {})
    usual = _usual_errors(backend, everywhere[0]) if everywhere[0].is_gpu else {}
    backend.sum_in_fp32()
    for dtype in backend.dtypes:
        able = found.able(dtype, everywhere)
        for shape in _shapes(dtype, context, able[0]) if able else ():
            _multiply(dtype, shape, able, found)
    tf32 = [place.index for place in everywhere if place.has("tf32")]
    outcome = judge_products(found.readings, found.left_out, tf32, tf32_override())
    measured = {**outcome.measured, "error_with_reduced_precision_sums": usual}
    return replace(outcome, measured=measured) if usual else outcome


def _usual_errors(backend: Backend, place: Any) -> Dict[str, float]:
    """The error of products as the framework sums them by default, maybe in fp16 or bf16."""
    found = {}
    for dtype in ("fp16", "bf16"):
        if place.lacks(dtype) is None:  # thin and long, so that a library splits it by terms
            left, right = _random(backend, (8, 65536, 24), dtype)
            got = place.multiply(place.put(left, dtype), place.put(right, dtype), dtype)
            found[dtype] = compare(place.get(got), left @ right)[0]
    return found


def _shapes(dtype: str, context: Context, first: Any) -> Tuple[Shape, ...]:
    """The shapes; TF32 and narrow dtypes get whole tiles only: else a library may choose another
    kernel, or have none.
    """
    large = _LARGE[context.level if first.is_gpu else context.pick("quick", "quick", "standard")]
    return (*_SHAPES, *large) if dtype in _ANY_SHAPE else (_WHOLE, *large)


def _multiply(dtype: str, shape: Shape, able: Sequence[Any], found: Results) -> None:
    """One product on each place; a large one only on the first place."""
    left, right = _random(found.backend, shape, dtype)
    reference = left @ right
    doomed = AccuracyReading("{}x{}x{}".format(*shape), dtype, shape[1])
    found.readings.append(_check_reference(found.backend, left, right, reference, doomed))
    for place in able if shape in _SHAPES else able[:1]:
        mine = replace(doomed, gpu=place.gpu)
        if dtype != "fp64" or place.is_gpu or not found.backend.computes_references:
            found.add(lambda: [_product(left, right, reference, place, mine)], mine)  # noqa: B023


def _random(backend: Backend, shape: Shape, dtype: str) -> Tuple[Any, Any]:
    """Two matrices whose numbers a dtype can hold."""
    rows, terms, columns = shape
    host = backend.place("cpu")
    given = backend.draw(rows * 31 + columns, (rows, terms), (terms, columns))
    if dtype == "int8":
        given = [(side * _WIDE).round() for side in given]
    left, right = (host.get(host.put(side, dtype)) for side in given)
    return left, right


def _product(
    left: Any, right: Any, reference: Any, place: Any, mine: AccuracyReading
) -> AccuracyReading:
    sides = [place.put(side, mine.dtype) for side in (left, right)]
    error, worst = compare(place.get(place.multiply(*sides, mine.dtype)), reference)
    return replace(mine, error=error, worst=worst)


def _check_reference(
    backend: Backend, left: Any, right: Any, reference: Any, doomed: AccuracyReading
) -> AccuracyReading:
    """Check some answers without rounding: products of fp32 fit into float64, and fsum is exact."""
    rows = [left[i].tolist() for i in range(min(_EXACT, left.shape[0]))]
    columns = [right[:, j].tolist() for j in range(min(_EXACT, right.shape[1]))]
    exact: List[List[float]] = [
        [math.fsum(x * y for x, y in zip(row, column)) for column in columns] for row in rows
    ]
    true = backend.host(exact)
    error, worst = compare(reference[: len(rows), : len(columns)], true)
    return AccuracyReading(doomed.what + " reference", "fp64", doomed.terms, error, worst)


CHECKS = (
    Check(
        "numerics.matmul", "Matrix products are correct", check_matmul, "standard", 180, gpu=True
    ),
)
