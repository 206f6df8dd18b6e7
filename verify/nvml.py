"""Reads NVML by ctypes, since an image has no pynvml. Errors come back as data.

NVML sees every GPU whatever CUDA_VISIBLE_DEVICES says, and answers where CUDA cannot start: what it
says proves that the driver's management library works, and no more.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Tuple

_TEXT = 96  # the longest of NVML's text buffers


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML names it. What it would not tell is None."""

    name: Optional[str] = None
    uuid: Optional[str] = None
    compute_capability: Optional[str] = None
    mig: Optional[bool] = None


@dataclass(frozen=True)
class Nvml:
    """All that was read. `found` is whether there is such a library at all."""

    found: bool
    driver: Optional[str] = None
    cuda: Optional[str] = None  # the newest CUDA that the driver supports
    gpus: Tuple[Gpu, ...] = ()
    error: Optional[str] = None


def read(load: Callable[[str], Any] = ctypes.CDLL) -> Nvml:
    """Load NVML and ask it everything."""
    try:
        library = load("libnvidia-ml.so.1")
    except OSError as error:
        return Nvml(found="cannot open shared object file" not in str(error), error=str(error))
    session = _Session(library)
    if session.call("nvmlInit_v2") is not None:
        return Nvml(found=True, error=session.error)
    try:
        driver, cuda = session.text("nvmlSystemGetDriverVersion"), session.cuda()
        gpus = session.gpus()
        return Nvml(found=True, driver=driver, cuda=cuda, gpus=gpus, error=session.error)
    finally:
        session.call("nvmlShutdown")


class _Session:
    """NVML's functions, each answering None instead of failing; the first error is kept."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.error: Optional[str] = None

    def call(self, name: str, *arguments: Any) -> Optional[int]:
        """Call a function: None when it went well, else NVML's error number."""
        try:
            code = int(getattr(self._library, name)(*arguments))
        except AttributeError:
            return 13  # NVML_ERROR_FUNCTION_NOT_FOUND: an older driver
        if code == 0:
            return None
        if self.error is None and code != 3:  # NVML_ERROR_NOT_SUPPORTED is an answer
            self.error = "{}: {} ({})".format(name, self._error_text(code), code)
        return code

    def text(self, name: str, *arguments: Any) -> Optional[str]:
        buffer = ctypes.create_string_buffer(_TEXT)
        if self.call(name, *arguments, buffer, ctypes.c_uint(_TEXT)) is not None:
            return None
        return buffer.value.decode("utf-8", "replace")

    def number(self, name: str) -> Optional[int]:
        value = ctypes.c_int()
        return None if self.call(name, ctypes.byref(value)) is not None else value.value

    def cuda(self) -> Optional[str]:
        number = self.number("nvmlSystemGetCudaDriverVersion_v2")
        return None if number is None else "{}.{}".format(number // 1000, number % 1000 // 10)

    def gpus(self) -> Tuple[Gpu, ...]:
        found: List[Gpu] = []
        for index in range(self.number("nvmlDeviceGetCount_v2") or 0):
            handle = ctypes.c_void_p()
            lost = self.call(
                "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)
            )
            found.append(Gpu() if lost is not None else self._gpu(handle))
        return tuple(found)

    def _gpu(self, handle: ctypes.c_void_p) -> Gpu:
        major, minor = ctypes.c_int(), ctypes.c_int()
        capability, mig = "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMigMode"
        unread = self.call(capability, handle, ctypes.byref(major), ctypes.byref(minor))
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        no_mig = self.call(mig, handle, ctypes.byref(current), ctypes.byref(pending))
        return Gpu(
            name=self.text("nvmlDeviceGetName", handle),
            uuid=self.text("nvmlDeviceGetUUID", handle),
            compute_capability=None if unread else "{}.{}".format(major.value, minor.value),
            mig=None if no_mig else bool(current.value),
        )

    def _error_text(self, code: int) -> str:
        try:
            function = self._library.nvmlErrorString
            function.restype = ctypes.c_char_p
            return bytes(function(code)).decode("utf-8", "replace")
        except (AttributeError, TypeError):
            return "NVML error"
