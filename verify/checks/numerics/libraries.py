"""Transforms, linear systems and sparse products on every GPU: cuFFT, cuSOLVER and cuSPARSE."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from operator import attrgetter
from typing import Any, Callable, Dict, List, Sequence, Tuple

from verify.backends.base import Backend, of
from verify.checks.numerics.accuracy import AccuracyReading, compare, judge_accuracy, tf32_override
from verify.checks.numerics.precision import Results
from verify.model.check import Check, Context, Outcome

_DTYPES = ("fp64", "fp32")
_POINTS, _SIDE, _COLUMNS = 256, 128, 16
_SLACK = 4.0  # of a solution: the system's condition is near 1, and it is solved in two passes
# A framework's module, and its functions under the names of this check.
_SAME = {"rfft": "fft.rfft", "irfft": "fft.irfft", "real": "real", "imag": "imag"}
NAMES: Dict[str, Tuple[str, Dict[str, str]]] = {
    "pytorch": ("torch", {**_SAME, "solve": "linalg.solve"}),
    "jax": ("jax.numpy", {**_SAME, "solve": "linalg.solve"}),
    "tensorflow": (
        "tensorflow",
        {
            "rfft": "signal.rfft",
            "irfft": "signal.irfft",
            "real": "math.real",
            "imag": "math.imag",
            "solve": "linalg.solve",
        },
    ),
}
Call = Callable[..., Any]  # a function of the framework by its name here, with its arguments
Work = Callable[[Call, Any, AccuracyReading, Sequence[Any]], List[AccuracyReading]]


def check_libraries(context: Context) -> Outcome:
    """Compare each library's results in each place with products of float64."""
    backend = of(context)
    broken, everywhere = backend.every(context)
    if broken:
        return broken
    backend.allow_tf32(on=False)
    found = Results(backend, [], {})
    module, names = NAMES[context.framework]

    def call(name: str, *given: Any) -> Any:
        return attrgetter(names[name])(importlib.import_module(module))(*given)

    for what, (draw, work, slack) in _WORKS.items():
        given = draw(backend)
        for dtype in _DTYPES if what != "sparse product" or context.framework == "pytorch" else ():
            for place in everywhere:
                mine = AccuracyReading(what, dtype, given[0].shape[-1], gpu=place.gpu, slack=slack)
                found.add(lambda: _computed(work, call, place, mine, given), mine)  # noqa: B023
    return judge_accuracy("library results", found.readings, found.left_out, tf32_override())


def _computed(
    work: Work, call: Call, place: Any, mine: AccuracyReading, given: Sequence[Any]
) -> List[AccuracyReading]:
    with place.scope():
        return work(call, place, mine, given)


def _read(place: Any, mine: AccuracyReading, got: Any, known: Any, more: str = "") -> Any:
    error, worst = compare(place.get(got), known)
    return replace(mine, what=mine.what + more, error=error, worst=worst)


def _waves(backend: Backend) -> Sequence[Any]:
    """Small whole numbers, which every dtype holds, and the matrices of their transform."""
    (drawn,) = backend.draw(3, (_COLUMNS, _POINTS))
    turns = [[j * k % _POINTS / _POINTS for k in range(_POINTS // 2 + 1)] for j in range(_POINTS)]
    return (
        (drawn * 4).round(),
        *(
            backend.host([[part(2 * math.pi * turn) for turn in row] for row in turns])
            for part in (math.cos, lambda angle: -math.sin(angle))
        ),
    )


def _transform(
    call: Call, place: Any, mine: AccuracyReading, given: Sequence[Any]
) -> List[AccuracyReading]:
    """There and back."""
    waves, real, imaginary = given
    found = call("rfft", place.put(waves, mine.dtype))
    return [
        _read(place, mine, call("real", found), waves @ real, ", real part"),
        _read(place, mine, call("imag", found), waves @ imaginary, ", imaginary part"),
        _read(place, mine, call("irfft", found), waves, ", inverse"),
    ]


def _system(backend: Backend) -> Sequence[Any]:
    """A system of whole numbers whose solution is whole."""
    matrix, solution = backend.draw(5, (_SIDE, _SIDE), (_SIDE, _COLUMNS))
    side = range(_SIDE)
    heavy = backend.host([[float(_SIDE * (i == j)) for j in side] for i in side])
    matrix, solution = matrix.round() + heavy, (solution * 4).round()
    return matrix, matrix @ solution, solution


def _solve(
    call: Call, place: Any, mine: AccuracyReading, given: Sequence[Any]
) -> List[AccuracyReading]:
    matrix, right, solution = given
    sides = (place.put(side, mine.dtype) for side in (matrix, right))
    return [_read(place, mine, call("solve", *sides), solution)]


def _thin(backend: Backend) -> Sequence[Any]:
    """A matrix of whole numbers that are mostly zero, and another one."""
    matrix, right = backend.draw(7, (_SIDE, _SIDE), (_SIDE, _COLUMNS))
    return (matrix * (abs(matrix) > 2)).round(), (right * 4).round()


def _multiply_sparse(
    _: Call, place: Any, mine: AccuracyReading, given: Sequence[Any]
) -> List[AccuracyReading]:
    left, right = (place.put(side, mine.dtype) for side in given)
    return [_read(place, mine, left.to_sparse() @ right, given[0] @ given[1])]


_WORKS: Dict[str, Tuple[Callable[[Backend], Sequence[Any]], Work, float]] = {
    "FFT": (_waves, _transform, 1.0),
    "linear system": (_system, _solve, _SLACK),
    "sparse product": (_thin, _multiply_sparse, 1.0),
}

CHECKS = (
    Check(
        "numerics.libraries",
        "FFT, solvers and sparse products are correct",
        check_libraries,
        "standard",
        120,
    ),
)
