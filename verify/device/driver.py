"""Queries the CUDA driver directly through ctypes, so no framework interprets its answer.

A process that has called cuInit must not fork, so only a check's own child calls this.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Callable, Optional

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: an answer, not a fault


@dataclass(frozen=True)
class CudaDriver:
    """What libcuda returned. `count` is None where libcuda could not be queried."""

    found: bool
    version: Optional[str] = None
    count: Optional[int] = None
    error: Optional[str] = None


def read(load: Callable[[str], Any] = ctypes.CDLL) -> CudaDriver:
    """Load libcuda, initialise it and count its devices."""
    try:
        library = load("libcuda.so.1")
    except OSError as error:
        return CudaDriver(
            found="cannot open shared object file" not in str(error), error=str(error)
        )
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    said = "{}.{}".format(version.value // 1000, version.value % 1000 // 10)
    code = int(library.cuInit(0))
    if code == NO_DEVICE:
        return CudaDriver(found=True, version=said, count=0)
    count = ctypes.c_int()
    code = code or int(library.cuDeviceGetCount(ctypes.byref(count)))
    if code:
        return CudaDriver(found=True, version=said, error=_name(library, code))
    return CudaDriver(found=True, version=said, count=count.value)


def reaches(source: int, target: int, load: Callable[[str], Any] = ctypes.CDLL) -> Optional[bool]:
    """Whether one GPU accesses another's memory directly; None where libcuda does not say."""
    try:
        library = load("libcuda.so.1")
        ends, answer = (ctypes.c_int(), ctypes.c_int()), ctypes.c_int()
        code = int(library.cuInit(0))
        for index, end in zip((source, target), ends):
            code = code or int(library.cuDeviceGet(ctypes.byref(end), index))
        code = code or int(library.cuDeviceCanAccessPeer(ctypes.byref(answer), *ends))
    except (OSError, AttributeError):
        return None
    return None if code else bool(answer.value)


def _name(library: Any, code: int) -> str:
    text = ctypes.c_char_p()
    try:
        library.cuGetErrorString(code, ctypes.byref(text))
    except AttributeError:
        return "Error {}".format(code)
    return "Error {}: {}".format(code, (text.value or b"unknown").decode("utf-8", "replace"))
