"""Reads NVML through ctypes, since an image has no pynvml. Errors are returned as data.

NVML sees every GPU whatever CUDA_VISIBLE_DEVICES says, and works where CUDA cannot start: its
answers prove only that the driver's management library works.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, List, Optional, Tuple

from verify.device.nvml_types import Excluded, Pci, bus_id

LIBRARY = "libnvidia-ml.so.1"
NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND = 3, 4, 13  # of nvmlReturn_t
_TEXT = 96  # the longest of NVML's text buffers


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU as NVML describes it. What NVML does not report is None."""

    name: Optional[str] = None
    uuid: Optional[str] = None
    compute_capability: Optional[str] = None
    mig: Optional[bool] = None
    bus_id: Optional[str] = None
    failure: Optional[str] = None  # why it could not be opened


@dataclass(frozen=True)
class Nvml:
    """All that was read. `found` is whether the library exists at all."""

    found: bool
    driver: Optional[str] = None
    cuda: Optional[str] = None  # the newest CUDA that the driver supports
    gpus: Tuple[NvmlGpu, ...] = ()
    error: Optional[str] = None
    closed: int = 0  # GPUs of the machine that this process may not open
    excluded: Tuple[str, ...] = ()  # bus ids of GPUs that the driver is configured to ignore


def read(load: Callable[[str], Any] = ctypes.CDLL) -> Nvml:
    """Load NVML and query everything."""
    try:
        library = load(LIBRARY)
    except OSError as error:
        return Nvml(found=is_there(error), error=str(error))
    session = Session(library)
    if session.call("nvmlInit_v2") is not None:
        return Nvml(found=True, error=session.error)
    try:
        driver, cuda = session.text("nvmlSystemGetDriverVersion"), session.cuda()
        gpus = session.gpus()
        return Nvml(
            found=True,
            driver=driver,
            cuda=cuda,
            gpus=gpus,
            error=session.error,
            closed=session.closed,
            excluded=session.excluded(),
        )
    finally:
        session.call("nvmlShutdown")


def is_there(error: OSError) -> bool:
    """Whether a library that could not be loaded exists: then it may be damaged."""
    return "cannot open shared object file" not in str(error)


class Session:
    """NVML's functions, each returning None instead of failing; the first error is kept.

    `answers` are the error numbers that describe the GPU and are not problems.
    """

    def __init__(self, library: Any, answers: Collection[int] = (NOT_SUPPORTED,)) -> None:
        self.library = library
        self._answers = answers
        self.problems: List[str] = []
        self.failures: Dict[int, str] = {}  # GPUs that cannot be opened, with NVML's reason
        self.closed = 0  # GPUs that this process may not open: under Slurm, those of other jobs
        self.refused: Dict[str, int] = {}  # each function's last error, whatever it means

    @property
    def error(self) -> Optional[str]:
        """The first thing that went wrong."""
        return self.problems[0] if self.problems else None

    def has(self, name: str) -> bool:
        """Whether this driver's library has the function."""
        return hasattr(self.library, name)

    def call(self, name: str, *arguments: Any) -> Optional[int]:
        """Call a function. Returns None on success, else NVML's error number."""
        try:
            code = int(getattr(self.library, name)(*arguments))
        except AttributeError:
            return FUNCTION_NOT_FOUND  # an older driver
        if code == 0:
            return None
        self.refused[name] = code
        if code not in self._answers:
            said = "{}: {} ({})".format(name, self.error_text(code), code)
            if said not in self.problems:  # once, however many links and GPUs say so
                self.problems.append(said)
        return code

    def text(self, name: str, *arguments: Any) -> Optional[str]:
        """The text that a function writes to a buffer."""
        buffer = ctypes.create_string_buffer(_TEXT)
        if self.call(name, *arguments, buffer, ctypes.c_uint(_TEXT)) is not None:
            return None
        return buffer.value.decode("utf-8", "replace")

    def number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> Optional[int]:
        """The number that a function stores through its last argument."""
        value = kind()
        unread = self.call(name, *arguments, ctypes.byref(value))
        return None if unread is not None else int(value.value)

    def fill(self, name: str, structure: Any, *arguments: Any) -> Any:
        """The structure as the function filled it, or None."""
        return None if self.call(name, *arguments, ctypes.byref(structure)) else structure

    def cuda(self) -> Optional[str]:
        """The newest CUDA that the driver supports."""
        number = self.number("nvmlSystemGetCudaDriverVersion_v2", kind=ctypes.c_int)
        return None if number is None else "{}.{}".format(number // 1000, number % 1000 // 10)

    def handles(self) -> List[Optional[ctypes.c_void_p]]:
        """A handle for each GPU; None for one that NVML cannot open: `failures` says why.

        nvmlDeviceGetCount_v2 also counts GPUs that this process may not open. CUDA does not show
        them, and neither does this method.
        """
        quiet = Session(self.library, (*self._answers, NO_PERMISSION))
        found: List[Optional[ctypes.c_void_p]] = []
        self.closed = 0
        for index in range(self.number("nvmlDeviceGetCount_v2") or 0):
            name, handle = "nvmlDeviceGetHandleByIndex_v2", ctypes.c_void_p()
            code = quiet.call(name, ctypes.c_uint(index), ctypes.byref(handle))
            if code == NO_PERMISSION:
                self.closed += 1
                continue
            if code is not None:
                self.failures[len(found)] = self.error_text(code)
            found.append(None if code is not None else handle)
        return found

    def capability(self, handle: ctypes.c_void_p) -> Optional[str]:
        """The compute capability: "9.0"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        name = "nvmlDeviceGetCudaComputeCapability"
        unread = self.call(name, handle, ctypes.byref(major), ctypes.byref(minor))
        return None if unread else "{}.{}".format(major.value, minor.value)

    def mig(self, handle: ctypes.c_void_p) -> Optional[bool]:
        """Whether MIG mode is on."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        name = "nvmlDeviceGetMigMode"
        unread = self.call(name, handle, ctypes.byref(current), ctypes.byref(pending))
        return None if unread else bool(current.value)

    def bus_id(self, handle: ctypes.c_void_p) -> Optional[str]:
        """Where the GPU is on the PCI bus: "00000000:17:00.0"."""
        names = ("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2")
        name = names[0] if self.has(names[0]) else names[1]
        return bus_id(self.fill(name, Pci(), handle))

    def excluded(self) -> Tuple[str, ...]:
        """The GPUs that an option of the kernel module excludes from use."""
        quiet = Session(self.library, (*self._answers, FUNCTION_NOT_FOUND))
        name = "nvmlGetExcludedDeviceInfoByIndex"
        numbers = range(quiet.number("nvmlGetExcludedDeviceCount") or 0)
        found = [quiet.fill(name, Excluded(), ctypes.c_uint(index)) for index in numbers]
        return tuple(one for one in (bus_id(info.pci) for info in found if info) if one)

    def gpus(self) -> Tuple[NvmlGpu, ...]:
        """Each GPU as NVML describes it."""
        return tuple(
            NvmlGpu(failure=self.failures.get(i)) if handle is None else self._gpu(handle)
            for i, handle in enumerate(self.handles())
        )

    def _gpu(self, handle: ctypes.c_void_p) -> NvmlGpu:
        return NvmlGpu(
            name=self.text("nvmlDeviceGetName", handle),
            uuid=self.text("nvmlDeviceGetUUID", handle),
            compute_capability=self.capability(handle),
            mig=self.mig(handle),
            bus_id=self.bus_id(handle),
        )

    def error_text(self, code: int) -> str:
        """NVML's own words for an error number."""
        try:
            function = self.library.nvmlErrorString
            function.restype = ctypes.c_char_p
            return bytes(function(code)).decode("utf-8", "replace")
        except (AttributeError, TypeError):
            return "NVML error"
