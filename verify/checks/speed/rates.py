"""Measures how fast this device multiplies, copies, and transfers; `pace.py` judges the rates.

All inputs are random numbers: on zeros a card draws less power, keeps higher clocks, and seems
faster than it is with real data.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from verify.backends.base import BYTES
from verify.model.measures import median

SIZES = (256, 512, 1024, 2048, 4096, 8192)
GIB = 1 << 30
WARM_UP_S = 0.25  # the time clocks take to rise, and to fall again under load
BATCH_S = 0.05  # one timed batch: launches and the clock's resolution are negligible


def batched(
    place: Any,
    work: Callable[[], object],
    *,
    repeats: int,
    least_s: float = BATCH_S,
    warm_s: float = WARM_UP_S,
) -> List[float]:
    """Seconds per call, from `repeats` batches."""
    first = max(min(place.seconds(work, repeats=2, warm_up=2)), 1e-7)
    calls = max(1, math.ceil(least_s / first))
    warm_up = max(1, math.ceil(warm_s / (calls * first))) if place.is_gpu else 0
    found: List[float] = place.seconds(work, repeats=repeats, warm_up=warm_up, calls=calls)
    return found


# Products


def gemm(place: Any, dtype: str, *, repeats: int, longest_s: float) -> "Tuple[List[float], int]":
    """TFLOP/s of a square product, per batch, and its size: the largest within `longest_s`."""
    place.backend.allow_tf32(on=dtype == "tf32")
    tried = 1024 if place.is_gpu else SIZES[0]
    seconds = min(place.seconds(place.product(dtype, tried), repeats=2, warm_up=2))
    held = max(BYTES[dtype], 2)  # fp8 gives bf16
    size = pick_size(tried, seconds, longest_s, room(place) // (3 * held))
    return gemm_at(place, dtype, size, repeats=repeats), size


def gemm_at(place: Any, dtype: str, size: int, *, repeats: int) -> List[float]:
    """TFLOP/s at one size: a product of two n x n matrices is 2 n^3 operations."""
    place.backend.allow_tf32(on=dtype == "tf32")
    each = batched(place, place.product(dtype, size), repeats=repeats)
    place.release()
    place.backend.allow_tf32(on=False)
    return [2.0 * size**3 / spent / 1e12 for spent in each]


def pick_size(tried: int, seconds: float, longest_s: float, cells: int) -> int:
    """The largest size that should take at most `longest_s` and whose cells fit in memory.

    A small product wastes part of the device, so the time of a larger one is overestimated.
    """
    fitting = [
        size
        for size in SIZES
        if seconds * (size / tried) ** 3 <= longest_s and size * size <= cells
    ]
    return max(fitting, default=SIZES[0])


def dtypes(place: Any) -> Tuple[str, ...]:
    """The dtypes that this device has units for: fp16 from 6.0, TF32 and bf16 8.0, fp8 8.9."""
    capability: Optional[Tuple[int, int]] = place.capability
    if capability is None:
        return ("fp32", "bf16")
    found = ["fp64", "fp32"]
    found += ["tf32", "bf16"] if capability >= (8, 0) else []
    found += ["fp16"] if capability >= (6, 0) else []
    fp8 = "fp8" in place.backend.dtypes and place.lacks("fp8") is None
    return (*found, "fp8") if fp8 else tuple(found)


def room(place: Any) -> int:
    """Bytes that may be allocated: a part of the free memory, or enough for large products."""
    if not place.is_gpu:
        return GIB // 2
    free: Optional[int] = place.free_bytes()
    return 2 * GIB if free is None else free // 4


# Memory


def memory_copy(place: Any, *, repeats: int) -> "Tuple[List[float], int]":
    """GB/s of a copy within the device's memory, read and written bytes together; bytes copied."""
    size = copy_bytes(room(place), place.cache_bytes()) if place.is_gpu else GIB // 4
    each = batched(place, place.copier(size), repeats=repeats)
    place.release()
    return [2 * size / seconds / 1e9 for seconds in each], size


def copy_bytes(free: int, cache: int) -> int:
    """A size far above the cache's, and at least 1 GiB, if there is room."""
    return max(1 << 20, min(free, max(GIB, 8 * cache)))


# Copies between host and GPU, where a program can pin memory

WAYS = ("h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable")


def transfer_sizes(most: int) -> Tuple[int, ...]:
    """Sizes from 4 KiB up to `most`, each four times the previous one."""
    return tuple(4096 * 4**i for i in range(20) if 4096 * 4**i <= most)


def transfers(
    place: Any, way: str, sizes: Sequence[int], *, repeats: int
) -> Dict[int, List[float]]:
    """GB/s by size, of copies from or to the host's memory, pinned or as malloc gives it."""
    found = {}
    for size in sizes:
        work = place.transfer(way, size)
        each = batched(place, work, repeats=repeats, least_s=0.01, warm_s=0.05)
        found[size] = [size / seconds / 1e9 for seconds in each]
    place.release()
    return found


def points(found: Dict[int, List[float]]) -> Tuple[Tuple[float, float], ...]:
    """A line of a plot: bytes and the median of their GB/s."""
    return tuple((float(size), median(samples)) for size, samples in sorted(found.items()))
