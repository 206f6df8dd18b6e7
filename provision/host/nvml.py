"""NVML, through nvidia-ml-py: the only module that imports `pynvml`, and inside a function.

Every failure becomes a sentence: a missing library, a kernel module that is not loaded, two halves
of a driver that differ, one GPU that fell off the bus while its neighbours work.
"""
# ruff: noqa: N802  the function names are NVML's
# ruff: noqa: BLE001  besides NVMLError a broken library raises whatever ctypes makes of it

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from provision.host.machine import Answer
from provision.host.source_facts import Fact, SourceFacts, one_line, version_or_none
from provision.model.plan import Absent, ComputeCapability, Gpu

if TYPE_CHECKING:
    from typing import TypeAlias

SOURCE = "nvml"
GIVES: tuple[Fact, ...] = ("driver", "user_mode_driver", "driver_cuda", "gpus")
# Without the persistence daemon, initialising NVML wakes every GPU: seconds each.
TIMEOUT_S = 30.0

_GPU_LIMIT = 1024
_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _GPU_IS_LOST = 3, 13, 15

# NVML's return codes, in words that say what to do. Others keep NVML's own text.
CODES = {
    4: "no permission to open /dev/nvidia*",
    8: "its external power cables are not attached",
    9: "the NVIDIA kernel module is not loaded",
    12: "libnvidia-ml.so.1 is not in the linker path",
    13: "this driver's NVML does not have that function",
    15: "GPU is lost (fell off the bus): see Xid 79 in dmesg; reset the GPU or reboot",
    17: "the operating system blocks the GPU's device files (cgroup, or WSL driver)",
    18: "the kernel module and libnvidia-ml.so.1 differ in version: reboot, or reload the modules",
    999: "NVML says Unknown Error: see dmesg, and whether /dev/nvidia* are all there",
}

T = TypeVar("T")


class MemoryInfo(Protocol):
    """nvmlMemory_t, the part of it that we use."""

    @property
    def total(self) -> int: ...


class NvmlModule(Protocol):
    """The part of the `pynvml` module that we use."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str | bytes: ...
    def nvmlSystemGetNVMLVersion(self) -> str | bytes: ...
    def nvmlSystemGetCudaDriverVersion_v2(self) -> int: ...
    def nvmlSystemGetCudaDriverVersion(self) -> int: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...
    def nvmlDeviceGetName(self, handle: object) -> str | bytes: ...
    def nvmlDeviceGetUUID(self, handle: object) -> str | bytes: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: object) -> tuple[int, int]: ...
    def nvmlDeviceGetMemoryInfo(self, handle: object) -> MemoryInfo: ...
    def nvmlDeviceGetMigMode(self, device: object) -> list[int]: ...


NvmlLoader: TypeAlias = "Callable[[], NvmlModule]"


def load_nvml() -> NvmlModule:
    """The real module. Importing it does not yet load the driver's library: nvmlInit does."""
    import pynvml

    return cast("NvmlModule", pynvml)


def parse_nvml_version(version: str) -> str:
    """The user-mode driver in NVML's version: "12.550.54.15" -> "550.54.15".

    The first part counts NVML's own generations (today the CUDA major); drivers start at 100s.
    """
    parts = version.split(".")
    if int(parts[0]) < 100:
        parts = parts[1:]
    if not parts or int(parts[0]) < 100:
        raise ValueError(f"no driver version in NVML's version {version!r}")
    return ".".join(parts)


def parse_cuda_version(number: int) -> str | None:
    """12040 -> "12.4"; 0 or less is no answer."""
    return f"{number // 1000}.{number % 1000 // 10}" if number >= 1000 else None


def reason(exc: Exception) -> str:
    """One line for a failed NVML call."""
    code = _code(exc)
    if code in CODES:
        return CODES[code]
    return one_line(str(exc)) or type(exc).__name__


def read_nvml(load: NvmlLoader, *, timeout_s: float = TIMEOUT_S) -> SourceFacts:
    """All of NVML's answers, read in a thread that is abandoned if the driver hangs."""
    answers: list[SourceFacts] = []
    thread = threading.Thread(target=lambda: answers.append(_read(load)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    if answers:
        return answers[0]
    return SourceFacts(
        source=SOURCE,
        gives=GIVES,
        failed=f"NVML did not answer within {timeout_s:g} s: the driver hangs, see dmesg",
    )


def ask_nvml(load: NvmlLoader, *, timeout_s: float) -> Answer:
    """NVML's answers as plain values, which can be recorded like a file: "driver", "library",
    "cuda", "gpus" (each with "name", "capability" such as "8.6", "mig") and "failed", which is why
    it did not answer.
    """
    reading = read_nvml(load, timeout_s=timeout_s)
    gpus: list[Answer] | None = None
    if reading.gpus is not None:
        gpus = [
            {
                "name": gpu.name,
                "capability": (
                    "{}.{}".format(*gpu.compute_capability) if gpu.compute_capability else None
                ),
                "mig": gpu.mig,
            }
            for gpu in reading.gpus
        ]
    return {
        "driver": reading.driver,
        "library": reading.user_mode_driver,
        "cuda": reading.driver_cuda,
        "gpus": gpus,
        "failed": reading.failed,
    }


def _read(load: NvmlLoader) -> SourceFacts:
    try:
        nvml = load()
    except ImportError:
        return _failed("the Python package nvidia-ml-py is not installed")
    except Exception as exc:  # a foreign module; whatever it is, it is no NVML
        return _failed(reason(exc))
    try:
        nvml.nvmlInit()
    except Exception as exc:  # NVMLError, or what ctypes makes of a broken library
        return _failed(reason(exc))
    absent: list[Absent] = []
    try:
        reading = _read_all(nvml, absent)
    except Exception as exc:  # must not end the other sources
        reading = _failed(reason(exc))
    try:
        nvml.nvmlShutdown()
    except Exception as exc:
        absent.append(Absent(fact="nvml shutdown", source=SOURCE, reason=reason(exc)))
    return SourceFacts(
        source=SOURCE,
        gives=GIVES,
        driver=reading.driver,
        user_mode_driver=reading.user_mode_driver,
        driver_cuda=reading.driver_cuda,
        gpus=reading.gpus,
        failed=reading.failed,
        absent=tuple(absent),
    )


def _read_all(nvml: NvmlModule, absent: list[Absent]) -> SourceFacts:
    driver = user_mode = cuda = None
    with _noting(absent, "driver"):
        driver = _version(nvml.nvmlSystemGetDriverVersion())
    with _noting(absent, "user_mode_driver"):
        user_mode = parse_nvml_version(_version(nvml.nvmlSystemGetNVMLVersion()))
    with _noting(absent, "driver_cuda"):
        number = _cuda_number(nvml)
        cuda = parse_cuda_version(number)
        if cuda is None:
            raise ValueError(f"not a CUDA version: {number}")
    return SourceFacts(
        source=SOURCE,
        gives=GIVES,
        driver=driver,
        user_mode_driver=user_mode,
        driver_cuda=cuda,
        gpus=_read_gpus(nvml, absent),
    )


def _cuda_number(nvml: NvmlModule) -> int:
    """_v2 asks the installed libcuda; drivers before 410 or so only have the first form."""
    try:
        return nvml.nvmlSystemGetCudaDriverVersion_v2()
    except Exception as exc:
        if _code(exc) == _FUNCTION_NOT_FOUND:
            return nvml.nvmlSystemGetCudaDriverVersion()
        if _code(exc) == 12:
            raise LookupError("libcuda.so.1 is not in the linker path") from exc
        raise


def _read_gpus(nvml: NvmlModule, absent: list[Absent]) -> tuple[Gpu, ...] | None:
    """Every GPU that answers. If all are lost: None, which is not "no GPUs"."""
    count = 0
    gpus: list[Gpu] = []
    try:
        count = min(nvml.nvmlDeviceGetCount(), _GPU_LIMIT)
    except Exception as exc:
        absent.append(Absent(fact="gpus", source=SOURCE, reason=reason(exc)))
        return None
    for index in range(count):
        notes: list[Absent] = []
        try:
            gpus.append(_read_gpu(nvml, index, notes))
        except Exception as exc:  # one GPU's trouble leaves the others readable
            notes = [Absent(fact=f"gpus[{index}]", source=SOURCE, reason=reason(exc))]
        absent.extend(notes)
    return tuple(gpus) if gpus or count == 0 else None


def _read_gpu(nvml: NvmlModule, index: int, notes: list[Absent]) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(fact: str, function: Callable[[object], T]) -> T | None:
        try:
            return function(handle)
        except Exception as exc:
            if _code(exc) == _GPU_IS_LOST:
                raise
            notes.append(Absent(fact=f"gpus[{index}].{fact}", source=SOURCE, reason=reason(exc)))
            return None

    def mig(device: object) -> bool:
        try:
            return nvml.nvmlDeviceGetMigMode(device)[0] == 1
        except Exception as exc:
            if _code(exc) == _NOT_SUPPORTED:  # a GPU without MIG: certain, not unknown
                return False
            raise

    def capability(device: object) -> ComputeCapability:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)
        return int(major), int(minor)

    return Gpu(
        name=ask("name", lambda h: _text(nvml.nvmlDeviceGetName(h))) or None,
        compute_capability=ask("compute_capability", capability),
        memory_mib=ask("memory_mib", lambda h: int(nvml.nvmlDeviceGetMemoryInfo(h).total) >> 20),
        uuid=ask("uuid", lambda h: _text(nvml.nvmlDeviceGetUUID(h))) or None,
        mig=ask("mig", mig),
    )


@contextlib.contextmanager
def _noting(absent: list[Absent], fact: str) -> Iterator[None]:
    """Records the failure of one fact as its `Absent` row."""
    try:
        yield
    except Exception as exc:
        absent.append(Absent(fact=fact, source=SOURCE, reason=reason(exc)))


def _failed(why: str) -> SourceFacts:
    return SourceFacts(source=SOURCE, gives=GIVES, failed=why)


def _code(exc: Exception) -> int | None:
    value = getattr(exc, "value", None)
    return value if isinstance(value, int) else None


def _version(value: str | bytes) -> str:
    """A version, or ValueError with what came instead."""
    text = _text(value)
    if version_or_none(text) is None:
        raise ValueError(f"not a version: {text[:60]!r}")
    return text


def _text(value: str | bytes) -> str:
    return one_line(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
