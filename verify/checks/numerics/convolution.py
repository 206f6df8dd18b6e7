"""Convolutions and their gradients in each dtype and both layouts, on every GPU."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from typing import Any, List, Optional, Sequence, Tuple

from verify.backends.pytorch import Place
from verify.checks.numerics.accuracy import (
    AccuracyReading,
    compare,
    judge_convolution,
    tf32_override,
)
from verify.checks.numerics.precision import Results, kind_of, places, set_tf32
from verify.model.check import Check, Context, Outcome

_DTYPES = ("fp32", "tf32", "fp16", "bf16")
_LAYOUTS = ("contiguous", "channels_last")
# What an algorithm may lose beyond a plain sum. Winograd's F(4x4, 3x3) has 7 times the largest
# error of a direct convolution in fp32 (Lavin and Gray 2015, "Fast Algorithms for Convolutional
# Neural Networks", on VGG's layers). Where factors or results have fewer bits, those round first.
_SLACK = {"fp32": 8.0, "tf32": 2.0, "fp16": 4.0, "bf16": 4.0}
# An Arm CPU sums fp16 in fp16, one product after another: for 288 products the norm of the error is
# 2.5e-3, both in torch 2.14 and in an explicit loop. No fast algorithm comes on top of that.
_ARM_SUMS = {"fp16": 2.0**-11}


@dataclass(frozen=True)
class ConvolutionCase:
    """One convolution. Images are batch x channels x height x width."""

    name: str
    image: Tuple[int, int, int, int]
    filters: int
    window: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def weight(self) -> Tuple[int, int, int, int]:
        """The shape of the weight."""
        return self.filters, self.image[1] // self.groups, self.window, self.window

    @property
    def result(self) -> Tuple[int, int, int, int]:
        """The shape of the result."""
        reach = 2 * self.padding - self.window
        height, width = ((side + reach) // self.stride + 1 for side in self.image[2:])
        return self.image[0], self.filters, height, width

    @property
    def terms(self) -> Tuple[int, int, int]:
        """Products per element of the result, the image's gradient and the weight's gradient."""
        cells = self.window * self.window
        forward = self.image[1] // self.groups * cells
        batch, _, height, width = self.result
        return forward, self.filters // self.groups * cells, batch * height * width


_CASES = {
    "quick": (ConvolutionCase("3x3", (2, 16, 14, 14), 32, 3, padding=1),),
    "standard": (
        ConvolutionCase("3x3", (4, 32, 28, 28), 64, 3, padding=1),
        ConvolutionCase(
            "5x5 grouped, stride 2", (4, 32, 29, 27), 64, 5, stride=2, padding=2, groups=4
        ),
    ),
    "full": (
        ConvolutionCase("3x3", (16, 64, 56, 56), 64, 3, padding=1),
        ConvolutionCase(
            "5x5 grouped, stride 2", (4, 32, 29, 27), 64, 5, stride=2, padding=2, groups=4
        ),
        ConvolutionCase("1x1", (16, 256, 28, 28), 64, 1),
        ConvolutionCase("7x7, stride 2", (4, 3, 112, 112), 64, 7, stride=2, padding=3),
        ConvolutionCase("3x3 depthwise", (8, 64, 28, 28), 64, 3, padding=1, groups=64),
    ),
}


def check_convolution(context: Context) -> Outcome:
    """Compute a reference once, and compare each place and layout with it."""
    broken, everywhere = places(context)
    if broken:
        return broken
    found = Results([], {})
    for dtype in _DTYPES:
        able = found.able(dtype, everywhere)
        for case in _CASES[context.level] if able else ():
            _convolve_all(dtype, case, able, found)
    return judge_convolution(found.readings, found.left_out, tf32_override())


def _convolve_all(dtype: str, case: ConvolutionCase, able: Sequence[Place], found: Results) -> None:
    import torch

    generator = torch.Generator().manual_seed(case.window)
    shapes = case.image, case.weight, case.result
    given = [torch.randn(*shape, generator=generator).to(kind_of(dtype)) for shape in shapes]
    reference = _convolve(case, [numbers.double() for numbers in given])
    for place in able:
        for layout in _LAYOUTS:
            gpu = place.index if place.is_gpu else None
            sums = sums_of(dtype, platform.machine(), is_gpu=place.is_gpu)
            slack = _SLACK[dtype] if sums is None else 1.0
            name = "{}, {}".format(case.name, layout)
            mine = AccuracyReading(name, dtype, 1, gpu=gpu, slack=slack, sums=sums)
            found.add(lambda: _compare(case, given, reference, place, layout, mine), mine)  # noqa: B023


def sums_of(dtype: str, machine: str, *, is_gpu: bool) -> Optional[float]:
    """The unit roundoff of the sums, if it is not the dtype's usual one."""
    return None if is_gpu or machine not in ("aarch64", "arm64") else _ARM_SUMS.get(dtype)


def _compare(
    case: ConvolutionCase,
    given: Sequence[Any],
    reference: Sequence[Any],
    place: Place,
    layout: str,
    mine: AccuracyReading,
) -> List[AccuracyReading]:
    """The result, and the gradients with respect to the image and the weight."""
    import torch

    set_tf32(on=mine.dtype == "tf32")
    form = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    here = [numbers.to(place.device).contiguous(memory_format=form) for numbers in given]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=mine.dtype == "tf32"):
        results = _convolve(case, here)
    readings = []
    for part, terms, result, true in zip(_PARTS, case.terms, results, reference):
        error, worst = compare(result.cpu().double(), true)
        what = "{}{}".format(mine.what, part)
        readings.append(replace(mine, what=what, terms=terms, error=error, worst=worst))
    return readings


_PARTS = ("", ", gradient by image", ", gradient by weight")


def _convolve(case: ConvolutionCase, given: Sequence[Any]) -> Tuple[Any, Any, Any]:
    """Forward and back; the third element of `given` is the gradient of the result."""
    import torch

    image, weight = (numbers.detach().requires_grad_() for numbers in given[:2])
    result = torch.nn.functional.conv2d(
        image, weight, stride=case.stride, padding=case.padding, groups=case.groups
    )
    by_image, by_weight = torch.autograd.grad(result, (image, weight), given[2])
    return result.detach(), by_image, by_weight


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
