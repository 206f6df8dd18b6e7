"""Convolutions and their gradients in each dtype and layout, on every GPU."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import Any, List, Optional, Sequence, Tuple

from verify.backends.base import Backend, ConvolutionCase, of
from verify.checks.numerics.accuracy import (
    AccuracyReading,
    compare,
    judge_convolution,
    tf32_override,
)
from verify.checks.numerics.precision import Results
from verify.model.check import Check, Context, Outcome

_DTYPES = ("fp32", "tf32", "fp16", "bf16")
# What an algorithm may lose beyond a plain sum. Winograd's F(4x4, 3x3) has 7 times the largest
# error of a direct convolution in fp32 (Lavin and Gray 2015, "Fast Algorithms for Convolutional
# Neural Networks", on VGG's layers). Where factors or results have fewer bits, those round first.
_SLACK = {"fp32": 8.0, "tf32": 2.0, "fp16": 4.0, "bf16": 4.0}
# An Arm CPU sums fp16 in fp16, one product after another: for 288 products the norm of the error is
# 2.5e-3, both in torch 2.14 and in an explicit loop. No fast algorithm comes on top of that.
_ARM_SUMS = {"fp16": 2.0**-11}
_PARTS = ("", ", gradient by image", ", gradient by weight")
_GROUPED = ConvolutionCase("5x5 grouped, stride 2", (4, 29, 27, 32), 64, 5, 2, 2, groups=4)
_CASES = {
    "quick": (ConvolutionCase("3x3", (2, 14, 14, 16), 32, 3, padding=1),),
    "standard": (ConvolutionCase("3x3", (4, 28, 28, 32), 64, 3, padding=1), _GROUPED),
    "full": (
        ConvolutionCase("3x3", (16, 56, 56, 64), 64, 3, padding=1),
        _GROUPED,
        ConvolutionCase("1x1", (16, 28, 28, 256), 64, 1),
        ConvolutionCase("7x7, stride 2", (4, 112, 112, 3), 64, 7, stride=2, padding=3),
        ConvolutionCase("3x3 depthwise", (8, 28, 28, 64), 64, 3, padding=1, groups=64),
    ),
}


def check_convolution(context: Context) -> Outcome:
    """Compute a reference once, and compare each place and layout with it."""
    backend = of(context)
    broken, everywhere = backend.every(context)
    if broken:
        return broken
    found = Results(backend, [], {})
    for dtype in _DTYPES:
        able = found.able(dtype, everywhere)
        for case in _CASES[context.level] if able else ():
            if case.groups == 1 or backend.convolves_groups:
                _convolve_all(dtype, case, able, found)
    return judge_convolution(found.readings, found.left_out, tf32_override())


def _convolve_all(dtype: str, case: ConvolutionCase, able: Sequence[Any], found: Results) -> None:
    host = found.backend.place("cpu")
    drawn = found.backend.draw(case.window, case.image, case.weight, case.result)
    given = [host.get(host.put(numbers, dtype)) for numbers in drawn]
    known = reference(found.backend, case, given)
    for place in able:
        for layout in found.backend.layouts:
            sums = sums_of(dtype, platform.machine(), is_gpu=place.is_gpu)
            slack = _SLACK[dtype] if sums is None else 1.0
            name = ", ".join(filter(None, (case.name, layout)))
            mine = AccuracyReading(name, dtype, 1, gpu=place.gpu, slack=slack, sums=sums)
            found.add(lambda: _compare(case, given, known, place, layout, mine), mine)  # noqa: B023


def sums_of(dtype: str, machine: str, *, is_gpu: bool) -> Optional[float]:
    """The unit roundoff of the sums, if it is not the dtype's usual one."""
    return None if is_gpu or machine not in ("aarch64", "arm64") else _ARM_SUMS.get(dtype)


def _compare(
    case: ConvolutionCase,
    given: Sequence[Any],
    known: Sequence[Any],
    place: Any,
    layout: str,
    mine: AccuracyReading,
) -> List[AccuracyReading]:
    """The result, and the gradients with respect to the image and the weight."""
    readings = []
    results = place.convolve(case, given, mine.dtype, layout)
    for part, terms, result, true in zip(_PARTS, case.terms, results, known):
        error, worst = compare(result, true)
        what = "{}{}".format(mine.what, part)
        readings.append(replace(mine, what=what, terms=terms, error=error, worst=worst))
    return readings


def reference(
    backend: Backend, case: ConvolutionCase, given: Sequence[Any]
) -> Tuple[Any, Any, Any]:
    """The result and both gradients, as sums of products for each cell of the window: nothing of
    the framework's own convolution.
    """
    image, w, dy = given
    batch, high, wide, inputs = case.image
    edge, step, filters = case.padding, case.stride, case.filters // case.groups
    (padded,) = backend.draw(0, (batch, high + 2 * edge, wide + 2 * edge, inputs))
    padded *= 0
    inner = (slice(None), slice(edge, edge + high), slice(edge, edge + wide))
    padded[inner] = image
    y, dx, dw = dy * 0, padded * 0, w * 0
    rows, columns = ((size - 1) * step + 1 for size in case.result[1:3])
    inputs //= case.groups
    for i in range(case.window):
        for j in range(case.window):
            for group in range(case.groups):
                into = slice(group * inputs, (group + 1) * inputs)
                out = slice(group * filters, (group + 1) * filters)
                at = (slice(None), slice(i, i + rows, step), slice(j, j + columns, step), into)
                x, part = padded[at].reshape(-1, inputs), dy[..., out].reshape(-1, filters)
                y[..., out] += (x @ w[i, j, :, out]).reshape(*case.result[:3], filters)
                dx[at] += (part @ w[i, j, :, out].T).reshape(*case.result[:3], inputs)
                dw[i, j, :, out] += x.T @ part
    return y, dx[inner], dw


CHECKS = (
    Check(
        "numerics.convolution",
        "Convolutions and their gradients are correct",
        check_convolution,
        "standard",
        180,
        gpu=True,
    ),
)
