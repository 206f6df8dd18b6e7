"""Convolutions for TensorFlow and JAX: what to convolve, and the truth in float64 by NumPy.

Images are (count, rows, columns, inputs), windows (rows, columns, inputs, outputs), no padding.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from verify.checks.numerics.accuracy import AccuracyReading, compare

CASES = ((3, 1), (3, 2), (1, 1))  # (size of the window, stride)
PIXELS, INPUTS, OUTPUTS = 19, 24, 40
PARTS = ("forward", "gradient by input", "gradient by weight")
# cuDNN may choose Winograd's algorithm, whose F(4x4, 3x3) loses up to a decimal digit in fp32
# (Lavin and Gray 2016, section 5.2).
_WINOGRAD = 10.0


def name(size: int, stride: int) -> str:
    """For messages."""
    return "{0}x{0}{1}".format(size, "" if stride == 1 else " stride {}".format(stride))


def random(count: int, size: int, stride: int) -> Tuple[Any, Any, Any]:
    """Images, windows and the gradient that comes back from the result."""
    import numpy as np

    source = np.random.default_rng(10 * size + stride)
    out = (PIXELS - size) // stride + 1
    shapes = (
        (count, PIXELS, PIXELS, INPUTS),
        (size, size, INPUTS, OUTPUTS),
        (count, out, out, OUTPUTS),
    )
    x, w, dy = (source.standard_normal(shape) for shape in shapes)
    return x, w, dy


def reference(x: Any, w: Any, dy: Any, stride: int) -> Tuple[Any, Any, Any]:
    """The result and both gradients, cell of the window by cell."""
    import numpy as np

    y, dx, dw = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)
    high, wide = ((size - 1) * stride + 1 for size in dy.shape[1:3])
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            cells = (slice(None), slice(i, i + high, stride), slice(j, j + wide, stride))
            y += x[cells] @ w[i, j]
            dx[cells] += dy @ w[i, j].T
            dw[i, j] = np.tensordot(x[cells], dy, ((0, 1, 2), (0, 1, 2)))
    return y, dx, dw


def readings(
    results: Sequence[Any], given: Sequence[Any], stride: int, dtype: str, gpu: Optional[int]
) -> List[AccuracyReading]:
    """The three results beside the truth of the inputs as they were given, all as float64."""
    x, w, dy = given
    size = w.shape[0]
    pixels = dy.shape[0] * dy.shape[1] * dy.shape[2]
    terms = (size * size * INPUTS, size * size * OUTPUTS, pixels)
    slack = _WINOGRAD if size == 3 and stride == 1 and gpu is not None else 1.0
    found = []
    for part, got, known, number in zip(PARTS, results, reference(x, w, dy, stride), terms):
        error, worst = compare(got, known)
        what = "{}: {}".format(name(size, stride), part)
        found.append(AccuracyReading(what, dtype, number, error, worst, gpu, slack))
    return found
