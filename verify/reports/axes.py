"""Scales and ticks of the plots: map measured numbers to positions on the page."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import List, Sequence, Tuple

from verify.reports.formatting import number, size

_MOST, _LEAST = sys.float_info.max, 1e-300  # a smaller range is not drawn: its steps underflow


@dataclass(frozen=True)
class Scale:
    """Maps `low..high` to `start..end` on the page, logarithmically with `log`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The value's position on the page."""
        low, high, here = (self._flat(v) for v in (self.low, self.high, value))
        # Halves, so that a range from the lowest double to the largest does not overflow.
        share = (here / 2 - low / 2) / (high / 2 - low / 2)
        return self.start + share * (self.end - self.start)

    def _flat(self, value: float) -> float:
        return math.log10(value) if self.log else value


def span(values: Sequence[float], *, log: bool = False, zero: bool = False) -> Tuple[float, float]:
    """The range to draw; `zero` includes zero, so that lengths can be compared."""
    low, high = min(values), max(values)
    if log:
        return (low, high) if low < high else (low / 2 or low, min(high * 2, _MOST))
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high / 2 - low / 2 > _LEAST:
        return low, high
    pad = max(abs(low) / 2, 1.0)
    return (0.0 if zero else max(low - pad, -_MOST)), min(high + pad, _MOST)


def ticks(
    low: float, high: float, count: int = 5, *, whole: bool = False
) -> List[Tuple[float, str]]:
    """Round numbers on a linear axis, with their labels; `whole` is for counts."""
    rough = (high / 2 - low / 2) / count * 2
    power = math.floor(math.log10(rough))
    step = next(m for m in (1, 2, 2.5, 5, 10) if m * 10.0**power >= rough * 0.75) * 10.0**power
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(i * step, number(float(i * step))) for i in range(first, last + 1)]


def log_ticks(low: float, high: float, *, binary: bool) -> List[Tuple[float, str]]:
    """Powers of ten, or of two for sizes in bytes: 1 KiB, 32 KiB, 1 MiB."""
    base, least, most = (2.0, -1074, 1023) if binary else (10.0, -323, 308)  # of a double
    first = max(math.ceil(math.log(low, base) - 1e-9), least)
    last = min(math.floor(math.log(high, base) + 1e-9), most)
    step = max(1, math.ceil((last - first + 1) / 6))
    if binary and step > 1:
        step = next((s for s in (2, 4, 5, 10) if s >= step), step)
        first = math.ceil(first / step) * step
    chosen = [float(base**i) for i in range(first, last + 1, step)]
    return [(value, size(value) if binary else _power(value)) for value in chosen]


def _power(value: float) -> str:
    return number(value) if 1e-3 <= value < 1e5 else "1e{}".format(round(math.log10(value)))
