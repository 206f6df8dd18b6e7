"""Reads each GPU's free memory from CUDA itself, through ctypes and without a framework.

A framework that takes memory when it starts (TensorFlow, JAX) cannot report afterwards what was
free before. This starts CUDA on every GPU, so call it in a process that ends afterwards.
"""

from __future__ import annotations

import ctypes
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List


@dataclass(frozen=True)
class GpuMemory:
    """One GPU's memory. The index is CUDA's, so CUDA_VISIBLE_DEVICES is taken into account."""

    index: int
    name: str
    uuid: str  # as NVML writes it
    free: int
    total: int

    def as_dict(self) -> Dict[str, Any]:
        """As JSON, to pass to another process."""
        return asdict(self)


class CudaMemoryError(Exception):  # an answer: CUDA does not report it
    """CUDA did not report its memory; the message says which call failed and how."""


def read(load: Callable[[str], Any] = ctypes.CDLL) -> List[GpuMemory]:
    """Each GPU that CUDA shows. Raises CudaMemoryError."""
    try:
        library = load("libcuda.so.1")
    except OSError as error:
        raise CudaMemoryError(str(error)) from error
    _call(library, "cuInit", 0)
    count = ctypes.c_int()
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    return [_room(library, index) for index in range(count.value)]


def _room(library: Any, index: int) -> GpuMemory:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call(library, "cuDeviceGet", ctypes.byref(device), index)
    name, uuid = ctypes.create_string_buffer(96), (ctypes.c_ubyte * 16)()
    _call(library, "cuDeviceGetName", name, 96, device)
    _call(library, "cuDeviceGetUuid", ctypes.byref(uuid), device)
    _call(library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call(library, "cuCtxSetCurrent", context)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call(library, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    _call(library, "cuDevicePrimaryCtxRelease_v2", device)
    said = name.value.decode("utf-8", "replace")
    return GpuMemory(index, said, uuid_text(bytes(uuid)), free.value, total.value)


def uuid_text(raw: bytes) -> str:
    """Sixteen bytes in NVML's format: GPU-8-4-4-4-12."""
    digits = raw.hex()
    cuts = (0, 8, 12, 16, 20, 32)
    return "GPU-" + "-".join(digits[a:b] for a, b in zip(cuts, cuts[1:]))


def _call(library: Any, name: str, *words: Any) -> None:
    try:
        code = int(getattr(library, name)(*words))
    except AttributeError as error:
        raise CudaMemoryError("libcuda has no {}".format(name)) from error
    if code:
        raise CudaMemoryError("{}: Error {}".format(name, code))
