"""Products of random matrices in every dtype, on every GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Dict, List, Sequence, Tuple

from verify.backends.pytorch import Place
from verify.checks.numerics.accuracy import AccuracyReading, compare, judge_products, tf32_override
from verify.checks.numerics.precision import (
    NAMES,
    Results,
    has,
    kind_of,
    places,
    set_tf32,
    sum_in_fp32,
)
from verify.model.check import Check, Context, Outcome

Shape = Tuple[int, int, int]  # rows, terms, columns: (m, k) @ (k, n)
_WHOLE: Shape = (512, 1024, 512)
_SHAPES: Tuple[Shape, ...] = (_WHOLE, (509, 1021, 253), (8, 4096, 24))  # whole, partial, thin tiles
_LARGE: Dict[str, Tuple[Shape, ...]] = {
    "quick": (),
    "standard": ((1024, 1024, 1024),),
    "full": ((2048, 4096, 2048),),
}
_EXACT = 4  # rows and columns of each reference that are summed again without rounding


def check_matmul(context: Context) -> Outcome:
    """Compute a reference once, and compare each place with it."""
    broken, everywhere = places(context)
    if broken:
        return broken
    found = Results([], {})
    usual = _usual_errors(everywhere[0]) if everywhere[0].is_gpu else {}
    sum_in_fp32()
    for dtype in NAMES:
        able = found.able(dtype, everywhere)
        for shape in _shapes(dtype, context, able[0]) if able else ():
            _multiply(dtype, shape, able, found)
    tf32 = [place.index for place in everywhere if has("tf32", place)]
    outcome = judge_products(found.readings, found.left_out, tf32, tf32_override())
    measured = {**outcome.measured, "error_with_reduced_precision_sums": usual}
    return replace(outcome, measured=measured) if usual else outcome


def _usual_errors(place: Place) -> Dict[str, float]:
    """The error of products as torch sums them by default, which may be in fp16 or bf16."""
    import torch

    rows, terms, columns = 8, 65536, 24  # thin and long, so that a library splits it by terms
    found = {}
    for dtype in ("fp16", "bf16"):
        if not has(dtype, place):
            continue
        generator = torch.Generator().manual_seed(terms)
        left = _random(rows, terms, generator, dtype)
        right = _random(terms, columns, generator, dtype)
        result = (left.to(place.device) @ right.to(place.device)).cpu().double()
        found[dtype] = compare(result, left.double() @ right.double())[0]
    return found


def _shapes(dtype: str, context: Context, first: Place) -> Tuple[Shape, ...]:
    """The shapes; TF32 and fp8 get whole tiles only: else a library may choose another kernel."""
    large = _LARGE[context.level if first.is_gpu else context.pick("quick", "quick", "standard")]
    return (_WHOLE, *large) if dtype in ("tf32", "fp8") else (*_SHAPES, *large)


def _multiply(dtype: str, shape: Shape, able: Sequence[Place], found: Results) -> None:
    """One product on each place; a large one only on the first place."""
    import torch

    rows, terms, columns = shape
    generator = torch.Generator().manual_seed(rows * 31 + columns)
    left = _random(rows, terms, generator, dtype)
    right = _random(terms, columns, generator, dtype)
    reference = left.double() @ right.double()
    doomed = AccuracyReading("{}x{}x{}".format(*shape), dtype, terms)
    found.readings.append(_check_reference(left.double(), right.double(), reference, doomed))
    for place in able if shape in _SHAPES else able[:1]:
        mine = replace(doomed, gpu=place.index if place.is_gpu else None)
        if dtype != "fp64" or place.is_gpu:  # on the CPU that is the reference itself
            found.add(lambda: [_product(left, right, reference, place, mine)], mine)  # noqa: B023


def _random(rows: int, columns: int, generator: Any, dtype: str) -> Any:
    import torch

    numbers = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return numbers.to(kind_of(dtype))


def _product(
    left: Any, right: Any, reference: Any, place: Place, mine: AccuracyReading
) -> AccuracyReading:
    set_tf32(on=mine.dtype == "tf32")
    here, there = left.to(place.device), right.to(place.device)
    result = _scaled(here, there) if mine.dtype == "fp8" else here @ there
    error, worst = compare(result.cpu().double(), reference)
    return replace(mine, error=error, worst=worst)


def _scaled(left: Any, right: Any) -> Any:
    """torch's only product of fp8 numbers; the right matrix must be column-major."""
    import torch

    one = torch.ones((), device=left.device)
    columns = right.t().contiguous().t()
    result = torch._scaled_mm(  # noqa: SLF001  # there is no public name for it
        left, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16
    )
    return result[0] if isinstance(result, tuple) else result  # before 2.5 with the largest value


def _check_reference(
    left: Any, right: Any, reference: Any, doomed: AccuracyReading
) -> AccuracyReading:
    """Check some answers without rounding: products of fp32 fit into float64, and fsum is exact."""
    import torch

    rows = [left[i].tolist() for i in range(min(_EXACT, left.shape[0]))]
    columns = [right[:, j].tolist() for j in range(min(_EXACT, right.shape[1]))]
    exact: List[List[float]] = [
        [math.fsum(x * y for x, y in zip(row, column)) for column in columns] for row in rows
    ]
    true = torch.tensor(exact, dtype=torch.float64)
    error, worst = compare(reference[: len(rows), : len(columns)], true)
    return AccuracyReading(doomed.what + " reference", "fp64", doomed.terms, error, worst)


CHECKS = (
    Check(
        "numerics.matmul", "Matrix products are correct", check_matmul, "standard", 180, gpu=True
    ),
)
