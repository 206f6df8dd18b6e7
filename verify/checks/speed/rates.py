"""Measures how fast this device multiplies, copies, and transfers; `pace.py` judges the rates.

All inputs are random numbers: on zeros a card draws less power, keeps higher clocks, and seems
faster than it is with real data.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Sequence, Tuple

from verify.backends.pytorch import Place
from verify.model.measures import median

SIZES = (256, 512, 1024, 2048, 4096, 8192)
GIB = 1 << 30
WARM_UP_S = 0.25  # the time clocks take to rise, and to fall again under load
BATCH_S = 0.05  # one timed batch: launches and the clock's resolution are negligible


def batched(
    place: Place,
    work: Callable[[], object],
    *,
    repeats: int,
    least_s: float = BATCH_S,
    warm_s: float = WARM_UP_S,
) -> Tuple[List[float], float]:
    """Seconds per call, from `repeats` batches, and the first estimate of a call's time."""
    first = min(place.seconds(work, repeats=2, warm_up=2))
    launches = max(1, math.ceil(least_s / max(first, 1e-7)))
    warm_up = max(1, math.ceil(warm_s / (launches * max(first, 1e-7)))) if place.is_gpu else 0

    def batch() -> None:
        for _ in range(launches):
            work()

    found = place.seconds(batch, repeats=repeats, warm_up=warm_up)
    return [seconds / launches for seconds in found], first


# Products


def gemm(place: Place, dtype: str, *, repeats: int, longest_s: float) -> "Tuple[List[float], int]":
    """TFLOP/s of a square product, per batch, and its size: the largest within `longest_s`."""
    tried = 1024 if place.is_gpu else SIZES[0]
    seconds = min(place.seconds(product(place, dtype, tried), repeats=2, warm_up=2))
    size = pick_size(tried, seconds, longest_s, _room(place) // (3 * _BYTES[dtype]))
    return gemm_at(place, dtype, size, repeats=repeats), size


def gemm_at(place: Place, dtype: str, size: int, *, repeats: int) -> List[float]:
    """TFLOP/s at one size: a product of two n x n matrices is 2 n^3 operations."""
    each, _ = batched(place, product(place, dtype, size), repeats=repeats)
    place.release()
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


def operands(place: Place, dtype: str, size: int) -> Tuple[Any, Any]:
    """Two random square matrices; for fp8 the right one is column-major, as cuBLASLt requires."""
    import torch

    left, right = (torch.randn((size, size), device=place.device) for _ in range(2))
    kind = getattr(torch, _TORCH[dtype])
    if dtype == "fp8":
        return left.to(kind), right.to(kind).t().contiguous().t()
    return left.to(kind), right.to(kind)


def product(place: Place, dtype: str, size: int) -> Callable[[], object]:
    """One product of two random matrices, into a third that stays; fp8 gives bf16."""
    import torch

    left, right = operands(place, dtype, size)
    if dtype == "fp8":
        one = torch.ones((), device=place.device)
        scaled: Any = torch._scaled_mm  # noqa: SLF001  # there is no public name for it
        # The maker's figure is for sums kept in the tensor cores, as in training's forward pass.
        fast = "use_fast_accum" in str(torch.ops.aten._scaled_mm.default._schema)  # noqa: SLF001
        more = {"use_fast_accum": True} if fast else {}
        kind = torch.bfloat16
        return lambda: scaled(left, right, scale_a=one, scale_b=one, out_dtype=kind, **more)
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


_TORCH = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
}
_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2}


def dtypes(place: Place) -> Tuple[str, ...]:
    """The dtypes that this device has units for: fp16 from 7.0, TF32 and bf16 8.0, fp8 8.9."""
    import torch

    capability = place.capability
    if capability is None:
        return ("fp32", "bf16")
    found = ["fp64", "fp32"]
    found += ["tf32", "bf16"] if capability >= (8, 0) else []
    found += ["fp16"] if capability >= (6, 0) else []
    has_fp8 = hasattr(torch, "_scaled_mm") and hasattr(torch, "float8_e4m3fn")
    return (*found, "fp8") if capability >= (8, 9) and has_fp8 else tuple(found)


def with_tf32(*, on: bool) -> Callable[[], None]:
    """Set whether float32 products may be rounded to TF32; returns a function that restores it."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if on else "highest")
    return lambda: torch.set_float32_matmul_precision(before)


def _room(place: Place) -> int:
    """Bytes that may be allocated: a part of the free memory."""
    import torch

    if place.is_gpu:
        return int(torch.cuda.mem_get_info(place.index)[0]) // 4
    return GIB // 2


# Memory


def memory_copy(place: Place, *, repeats: int) -> "Tuple[List[float], int]":
    """GB/s of a copy within the device's memory, read and written bytes together; bytes copied."""
    size = copy_bytes(_room(place), _cache_bytes(place)) if place.is_gpu else GIB // 4
    each, _ = batched(place, copy_within(place, size), repeats=repeats)
    place.release()
    return [2 * size / seconds / 1e9 for seconds in each], size


def copy_bytes(room: int, cache: int) -> int:
    """A size far above the cache's, and at least 1 GiB, if there is room."""
    return max(1 << 20, min(room, max(GIB, 8 * cache)))


def copy_within(place: Place, size: int) -> Callable[[], object]:
    """One copy of `size` random bytes from one buffer to another."""
    import torch

    source = torch.randn(size // 4, device=place.device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _cache_bytes(place: Place) -> int:
    import torch

    return int(getattr(torch.cuda.get_device_properties(place.index), "L2_cache_size", 0) or 0)


# Copies between host and GPU

WAYS = ("h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable")


def transfer_sizes(most: int) -> Tuple[int, ...]:
    """Sizes from 4 KiB up to `most`, each four times the previous one."""
    return tuple(4096 * 4**i for i in range(20) if 4096 * 4**i <= most)


def transfers(
    place: Place, way: str, sizes: Sequence[int], *, repeats: int
) -> Dict[int, List[float]]:
    """GB/s by size, of copies from or to the host's memory, pinned or as malloc gives it."""
    found = {}
    for size in sizes:
        work = transfer(place, way, size)
        each, _ = batched(place, work, repeats=repeats, least_s=0.01, warm_s=0.05)
        found[size] = [size / seconds / 1e9 for seconds in each]
    place.release()
    return found


def transfer(place: Place, way: str, size: int) -> Callable[[], object]:
    """One copy; with pinned memory it is asynchronous. The content does not affect a link."""
    import torch

    pinned = way.endswith("pinned")
    host = torch.full((size,), 165, dtype=torch.uint8)
    host = host.pin_memory() if pinned else host
    there = torch.empty(size, dtype=torch.uint8, device=place.device)
    target, source = (there, host) if way.startswith("h2d") else (host, there)
    return lambda: target.copy_(source, non_blocking=pinned)


# Training


def train_step(place: Place, model: Any, batch: int, *, repeats: int) -> List[float]:
    """Seconds of a forward and backward pass and an optimiser's step on `batch` samples."""
    found = _train_steps(place, model, batch, repeats)
    place.release()
    return found


def _train_steps(place: Place, model: Any, batch: int, repeats: int) -> List[float]:
    import torch

    torch.manual_seed(7)
    module = model.module.to(place.device).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    data = model.make_batch(batch, place.device)

    def step() -> None:
        optimiser.zero_grad()
        model.loss(module, data).backward()
        optimiser.step()

    return place.seconds(step, repeats=repeats, warm_up=3)


def points(found: Dict[int, List[float]]) -> Tuple[Tuple[float, float], ...]:
    """A line of a plot: bytes and the median of their GB/s."""
    return tuple((float(size), median(samples)) for size, samples in sorted(found.items()))
