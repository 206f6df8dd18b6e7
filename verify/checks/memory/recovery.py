"""A request for more memory than there is must be refused, and work must continue afterwards.

Training often requests too much, with a batch that is too large. Code that handles this (with a
smaller batch, or a search for the largest) needs a clear error, and a device that still computes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple

from verify.backends.base import of
from verify.checks.devices.compute import product
from verify.device import cuda_memory
from verify.model.check import Context, Outcome, Status, on_device
from verify.running.children import Child
from verify.running.symptoms import explain, kind

NO_ADDRESS = 1 << 55  # bytes: more than x86-64 and aarch64 have addresses for, however it is asked
TIMES = 2  # the request to a GPU, as a multiple of all its memory
LOOK_LIMIT_S = 60.0  # for CUDA to start on every GPU
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
    backend = of(context)
    totals = {} if backend.says_what_is_free else read_gpus(context, "total")
    broken, place = backend.find(context)
    if broken:
        return broken
    total = place.limit_bytes() if backend.says_what_is_free else totals.get(place.index)
    size = (TIMES * (total or 0) if place.is_gpu else 0) or NO_ADDRESS
    with place.scope():
        asked = attempt(
            size, lambda: place.take(size), lambda: product("fp32")(place), place.held_bytes
        )
    return judge_recovery(asked, place.kind)


def read_gpus(context: Context, what: str) -> Dict[int, int]:
    """Each GPU's "free" or "total" bytes, by CUDA itself in a child; none where it fails."""
    looked = Child(lambda: [one.as_dict() for one in cuda_memory.read(context.machine.load)])
    ending = looked.wait(LOOK_LIMIT_S)
    return {row["index"]: row[what] for row in ending.value} if ending.returned else {}


def attempt(
    size: int,
    ask: Callable[[], object],
    multiply: Callable[[], Tuple[int, int]],
    held: Callable[[], Optional[int]],
) -> MemoryRequest:
    """Request memory with `ask`, between two products, whose wrong results `multiply` counts."""
    multiply()  # so that libraries have allocated their first-use memory
    before = held()
    refused = _refusal(ask)
    try:
        wrong, total = multiply()
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
    said = "a request for {} is refused, and work continues correctly, {}"
    message = said.format(much, on_device(device))
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
