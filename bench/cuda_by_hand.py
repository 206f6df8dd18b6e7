"""CUDA's runtime and cuBLAS called by hand, through ctypes: products and copies, and their times.

It shares no code with the suite's measurements, and times twice: by CUDA's events, and by the
machine's clock around the same work. Every call's return code is looked at. The constants are those
of cublas_api.h, library_types.h and driver_types.h.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3  # cudaMemcpyKind
NON_BLOCKING = 1  # cudaStreamNonBlocking: it does not wait for the default stream
NO_TRANSPOSE = 0  # CUBLAS_OP_N
DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT


@dataclass(frozen=True)
class Format:
    """A number format as cublasGemmEx wants it; alpha and beta have the type that it adds up in."""

    data: int  # cudaDataType
    compute: int  # cublasComputeType_t
    scalar: type[ctypes.c_float | ctypes.c_double]
    size: int


FORMATS = {
    "fp64": Format(1, 70, ctypes.c_double, 8),  # CUDA_R_64F, CUBLAS_COMPUTE_64F
    "fp32": Format(0, 68, ctypes.c_float, 4),  # CUDA_R_32F, CUBLAS_COMPUTE_32F
    "tf32": Format(0, 77, ctypes.c_float, 4),  # CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32
    "fp16": Format(2, 68, ctypes.c_float, 2),  # CUDA_R_16F
    "bf16": Format(14, 68, ctypes.c_float, 2),  # CUDA_R_16BF
}


class CudaError(Exception):
    """A call that did not return 0."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call, batch by batch, by both clocks."""

    events: tuple[float, ...]
    wall: tuple[float, ...]


class Cuda:
    """One device with a stream and a cuBLAS handle of our own."""

    def __init__(
        self,
        cudart: str,
        cublas: str,
        device: int = 0,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._rt: Any = ctypes.CDLL(cudart)
        self._blas: Any = ctypes.CDLL(cublas)
        self._rt.cudaGetErrorString.restype = ctypes.c_char_p
        self._call("cudaSetDevice", device)
        self._stream, self._handle = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cudaStreamCreateWithFlags", ctypes.byref(self._stream), NON_BLOCKING)
        self._cublas("cublasCreate_v2", ctypes.byref(self._handle))
        self._cublas("cublasSetStream_v2", self._handle, self._stream)

    def close(self) -> None:
        """Give handle and stream back."""
        self._cublas("cublasDestroy_v2", self._handle)
        self._call("cudaStreamDestroy", self._stream)

    def versions(self) -> dict[str, str]:
        """Of the runtime, of the driver's CUDA and of cuBLAS."""
        found = {}
        names = {"cuda_runtime": "cudaRuntimeGetVersion", "cuda_driver": "cudaDriverGetVersion"}
        for name, function in names.items():
            value = ctypes.c_int()
            self._call(function, ctypes.byref(value))
            found[name] = f"{value.value // 1000}.{value.value % 1000 // 10}"
        parts = []
        for kind in range(3):
            value = ctypes.c_int()
            self._cublas("cublasGetProperty", kind, ctypes.byref(value))
            parts.append(str(value.value))
        return {**found, "cublas": ".".join(parts)}

    def gemm(self, dtype: str, size: int, left: int, right: int, *, repeats: int) -> Times:
        """A square product of the matrices at these device addresses."""
        form = FORMATS[dtype]
        alpha, beta = form.scalar(1), form.scalar(0)
        with self._device_memory(size * size * form.size) as out:

            def work() -> None:
                self._cublas(
                    "cublasGemmEx",
                    self._handle,
                    NO_TRANSPOSE,
                    NO_TRANSPOSE,
                    *(size, size, size),
                    ctypes.byref(alpha),
                    *(ctypes.c_void_p(left), form.data, size),
                    *(ctypes.c_void_p(right), form.data, size),
                    ctypes.byref(beta),
                    *(out, form.data, size),
                    *(form.compute, DEFAULT_ALGORITHM),
                )

            return self._timed(work, repeats)

    def copy_within(self, size: int, *, repeats: int) -> Times:
        """A copy of so many bytes from one place in the device's memory to another."""
        with self._device_memory(size) as source, self._device_memory(size) as target:
            self._call("cudaMemset", source, 0xA5, ctypes.c_size_t(size))
            self._call("cudaDeviceSynchronize")  # our stream does not wait for the default one
            return self._timed(self._copying(target, source, size, DEVICE_TO_DEVICE), repeats)

    def transfer(self, way: str, size: int, *, repeats: int) -> Times:
        """A copy between pinned memory of the host and the device: "h2d" or "d2h"."""
        with self._pinned_memory(size) as host, self._device_memory(size) as there:
            ctypes.memset(host, 0xA5, size)
            copying = (
                self._copying(there, host, size, HOST_TO_DEVICE)
                if way.startswith("h2d")
                else self._copying(host, there, size, DEVICE_TO_HOST)
            )
            return self._timed(copying, repeats)

    def _copying(
        self, target: ctypes.c_void_p, source: ctypes.c_void_p, size: int, kind: int
    ) -> Callable[[], None]:
        count = ctypes.c_size_t(size)
        return lambda: self._call("cudaMemcpyAsync", target, source, count, kind, self._stream)

    def _timed(
        self, work: Callable[[], None], repeats: int, *, batch_s: float = 0.05, warm_s: float = 0.25
    ) -> Times:
        """Batches long enough that launches and clocks are nothing beside them."""
        for _ in range(3):
            work()
        first = max(self._batch(work, 1)[0], 1e-7)
        launches = max(1, math.ceil(batch_s / first))
        self._batch(work, max(1, math.ceil(warm_s / first)))
        found = [self._batch(work, launches) for _ in range(repeats)]
        return Times(tuple(event for event, _ in found), tuple(wall for _, wall in found))

    def _batch(self, work: Callable[[], None], launches: int) -> tuple[float, float]:
        """Seconds of one call out of so many, by events and by the machine's clock."""
        with self._event() as start, self._event() as stop:
            self._call("cudaStreamSynchronize", self._stream)
            began = self._clock()
            self._call("cudaEventRecord", start, self._stream)
            for _ in range(launches):
                work()
            self._call("cudaEventRecord", stop, self._stream)
            self._call("cudaEventSynchronize", stop)
            wall = self._clock() - began
            spent = ctypes.c_float()
            self._call("cudaEventElapsedTime", ctypes.byref(spent), start, stop)
        return spent.value / 1000 / launches, wall / launches

    @contextmanager
    def _event(self) -> Iterator[ctypes.c_void_p]:
        event = ctypes.c_void_p()
        self._call("cudaEventCreate", ctypes.byref(event))
        try:
            yield event
        finally:
            self._call("cudaEventDestroy", event)

    @contextmanager
    def _device_memory(self, size: int) -> Iterator[ctypes.c_void_p]:
        memory = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(memory), ctypes.c_size_t(size))
        try:
            yield memory
        finally:
            self._call("cudaFree", memory)

    @contextmanager
    def _pinned_memory(self, size: int) -> Iterator[ctypes.c_void_p]:
        memory = ctypes.c_void_p()
        self._call("cudaMallocHost", ctypes.byref(memory), ctypes.c_size_t(size))
        try:
            yield memory
        finally:
            self._call("cudaFreeHost", memory)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._rt, name)(*arguments)
        if code:
            words = (self._rt.cudaGetErrorString(code) or b"").decode("utf-8", "replace")
            raise CudaError(f"{name}: error {code}: {words}")

    def _cublas(self, name: str, *arguments: object) -> None:
        code = getattr(self._blas, name)(*arguments)
        if code:
            raise CudaError(f"{name}: cuBLAS status {code}")
