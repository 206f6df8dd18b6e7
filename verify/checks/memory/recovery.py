"""A request for more memory than there is must be refused, and work must continue afterwards.

Training often requests too much, with a batch that is too large. Code that handles this (with a
smaller batch, or a search for the largest) needs a clear error, and a device that still computes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple

from verify.backends.pytorch import Place, find
from verify.model.check import Context, Outcome, Status
from verify.running.symptoms import explain, kind

NO_ADDRESS = 1 << 55  # bytes: more than x86-64 and aarch64 have addresses for, however it is asked
TIMES = 2  # the request to a GPU, as a multiple of all its memory
SIZE = 256  # rows of the product with a known answer
# The share of a refused request that may stay held: none should, but a library's workspace that is
# created at the first product afterwards counts too (cuBLAS takes 32 MiB on an H100).
KEPT = 0.01
GB = 1e9
# As torch says it on a CPU, TensorFlow on both, and NumPy; "memory" in symptoms.py has the others.
_SHORT = re.compile(r"can't allocate memory|OOM when allocating|Cannot allocate memory|MemoryError")
_AGAIN = "try another version of the framework; look at devices.kernel"


@dataclass(frozen=True)
class MemoryRequest:
    """The result of the request, and of a product with a known answer after it."""

    size: int  # bytes that were asked for
    refused: Optional[str] = None  # the error; None: it was granted
    wrong: int = 0  # answers of the product
    total: int = 0
    raised: Optional[str] = None  # why there is no product
    kept: Optional[int] = None  # additional bytes held afterwards; None if unknown


def check_recovery(context: Context) -> Outcome:
    """Request twice the first GPU's memory, or more than the CPU has addresses for."""
    broken, place = find(context)
    return broken or judge_recovery(_ask(place), place.kind)


def _ask(place: Place) -> MemoryRequest:
    import torch

    size = NO_ADDRESS
    if place.is_gpu:
        size = TIMES * int(torch.cuda.mem_get_info(place.index)[1])

    def held() -> Optional[int]:
        return int(torch.cuda.memory_allocated(place.index)) if place.is_gpu else None

    def ask() -> object:
        return torch.empty(size, dtype=torch.uint8, device=place.device)

    def multiply(left: Any, right: Any) -> Any:
        sides = [torch.from_numpy(side).float().to(place.device) for side in (left, right)]
        return torch.matmul(*sides).cpu().numpy()

    return attempt(size, ask, multiply, held)


def attempt(
    size: int,
    ask: Callable[[], object],
    multiply: Callable[[Any, Any], Any],
    held: Callable[[], Optional[int]],
) -> MemoryRequest:
    """Request memory with `ask`, then multiply two NumPy arrays with the framework's `multiply`."""
    _product(multiply)  # so that libraries have allocated their first-use memory
    before = held()
    refused = _refusal(ask)
    try:
        wrong, total = _product(multiply)
    except Exception as error:
        return MemoryRequest(size, refused, raised=_said(error))
    after = held()
    kept = None if before is None or after is None else after - before
    return MemoryRequest(size, refused, wrong, total, kept=kept)


def _refusal(ask: Callable[[], object]) -> Optional[str]:
    """The refusal; in its own function, so that granted memory is freed when it returns."""
    try:
        ask()
    except Exception as error:
        return _said(error)
    return None


def _said(error: Exception) -> str:
    return "{}: {}".format(type(error).__name__, error)


def _product(multiply: Callable[[Any, Any], Any]) -> Tuple[int, int]:
    """Small integers: partial sums are exact in every type and order, also in TF32."""
    import numpy as np

    rows, columns = np.arange(SIZE)[:, None], np.arange(SIZE)[None, :]
    left, right = (rows * 7 + columns * 3) % 5 - 2, (rows * 5 + columns * 11) % 5 - 2
    got = np.asarray(multiply(left, right))
    return int((got != left @ right).sum()), int(got.size)


def is_refusal(text: str) -> bool:
    """Whether an error says that memory ran out."""
    return kind(text) == "memory" or _SHORT.search(text) is not None


def judge_recovery(asked: MemoryRequest, device: str) -> Outcome:
    """Whether it was refused as it should be, and the device computes correctly afterwards."""
    measured: Dict[str, Any] = {
        "device": device,
        "asked_bytes": asked.size,
        "refused": asked.refused and asked.refused[:500],
        "wrong": asked.wrong,
        "kept_bytes": asked.kept,
    }
    expected = {"wrong": 0, "kept_share": KEPT}
    much = "{:.0f} GB".format(asked.size / GB)
    if asked.refused is not None and not is_refusal(asked.refused):
        line = asked.refused.partition("\n")[0][:200]
        message = "a request for {} ends in: {}".format(much, line)
        cause = "the error is not an out-of-memory error, so programs cannot handle it"
        return Outcome(Status.FAIL, message, cause, _AGAIN, measured, expected)
    fault = _fault(asked, much)
    if fault:
        return Outcome(Status.FAIL, *fault, measured, expected)
    if asked.refused is None:
        message = "a request for {} succeeded, so running out of memory cannot be tested".format(
            much
        )
        cause = "memory is oversubscribed: unified memory, or a driver that uses host memory (WSL)"
        fix = "unset TF_FORCE_UNIFIED_MEMORY; under WSL set CUDA's sysmem fallback to off"
        return Outcome(Status.SKIP, message, cause, fix, measured, expected)
    where = "on the GPU" if device == "cuda" else "on the CPU: no GPU visible"
    message = "a request for {} is refused, and work continues correctly, {}".format(much, where)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _fault(asked: MemoryRequest, much: str) -> Optional[Tuple[str, str, str]]:
    after = "after a request for {}".format(much)
    if asked.raised is not None:
        line = asked.raised.partition("\n")[0][:200]
        cause, fix = explain(asked.raised)
        return "{} a matrix product fails: {}".format(after, line), cause or line, fix or _AGAIN
    if asked.wrong or not asked.total:
        message = "{} {} of {} results of a matrix product are wrong".format(
            after, asked.wrong, asked.total
        )
        return message, "the refused request corrupted the device's state", _AGAIN
    if asked.refused is not None and (asked.kept or 0) > KEPT * asked.size:
        message = "{} {:.1f} GB are not freed".format(after, (asked.kept or 0) / GB)
        cause = "the framework does not free the memory of a refused request"
        return message, cause, "try another version of the framework"
    return None
