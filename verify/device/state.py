"""Reads all that NVML measures of each GPU and each pair of GPUs, through ctypes.

A value that this driver (an older one) or this GPU does not support is None; any other refusal is
in `State.problems`. Nothing is raised.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from verify.device.nvml import LIBRARY, Session, is_there
from verify.device.nvml_types import (
    ADDRESSING,
    ANSWERS,
    BLANK,
    C2C_LINKS,
    C2C_SPEED,
    COMPUTE_MODES,
    CORRUPTED_INFOROM,
    DRAIN_AND_RESET,
    DRAIN_AND_RESET_STATUS,
    GPU_IS_LOST,
    INSUFFICIENT_SIZE,
    RECOVERY,
    RECOVERY_ACTION,
    RESET_REQUIRED,
    RESET_STATUS,
    SLOWDOWN_TLIMIT,
    STRIDES,
    UNCORRECTED_IN_SRAM,
    UNKNOWN,
    VIRTUALIZATION,
    Addressing,
    Confidential,
    Histogram,
    Licenses,
    Margin,
    NvmlMemory,
    NvmlMemory2,
    SramErrors,
    Utilization,
    throttle_names,
    unpack_processes,
    versioned,
)
from verify.device.telemetry import GpuProcess, GpuState, Mig, State
from verify.device.topology import field, read_fabric, read_nvlinks, read_pairs


def read(load: Callable[[str], Any] = ctypes.CDLL) -> State:
    """Load NVML and read everything. Errors are returned as data; the caller handles a hang."""
    session, failed = _open(load)
    if session is None:
        return failed
    try:
        handles = session.handles()
        gpus = tuple(_gpu(session, i, handle) for i, handle in enumerate(handles))
        return State(
            driver=session.text("nvmlSystemGetDriverVersion"),
            confidential=_confidential(session),
            gpus=gpus,
            pairs=read_pairs(session, handles, gpus),
            found=True,
            problems=tuple(session.problems),
        )
    finally:
        session.call("nvmlShutdown")


class Live:
    """NVML kept open, for the readings that change from second to second."""

    def __init__(self, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._session, self.failed = _open(load)
        self._handles = self._session.handles() if self._session else []
        self._fixed: Dict[int, Dict[str, Any]] = {}

    def gpus(self, chosen: Optional[Sequence[int]] = None) -> Tuple[GpuState, ...]:
        """The GPUs with these indices, or all: name, load, memory, power, heat and clocks."""
        numbers = range(len(self._handles)) if chosen is None else chosen
        return tuple(self._gpu(i) for i in numbers if i < len(self._handles))

    def _gpu(self, index: int) -> GpuState:
        session, handle = self._session, self._handles[index]
        if session is None or handle is None:
            return GpuState(index)
        if index not in self._fixed:
            self._fixed[index] = _identity(session, handle)
        return GpuState(index, **self._fixed[index], **_moving(session, handle))

    def close(self) -> None:
        """Shut NVML down."""
        if self._session is not None:
            self._session.call("nvmlShutdown")
            self._session, self._handles = None, []


def _open(load: Callable[[str], Any]) -> Tuple[Optional[Session], State]:
    try:
        library = load(LIBRARY)
    except OSError as error:
        return None, State(error=str(error), found=is_there(error))
    session = Session(library, ANSWERS)
    code = session.call("nvmlInit_v2")
    if code is not None:
        said = session.error or "nvmlInit_v2: error {}".format(code)
        return None, State(error=said, found=True)
    return session, State()


def _gpu(session: Session, index: int, handle: Optional[ctypes.c_void_p]) -> GpuState:
    if handle is None:
        return GpuState(index, failure=session.failures.get(index))
    session.refused.clear()
    parts: List[Mapping[str, Any]] = [
        part(session, handle) for part in (_identity, _moving, _modes, _errors, _pcie, read_fabric)
    ]
    merged = {name: value for part in parts for name, value in part.items()}
    return GpuState(
        index,
        **merged,
        refused=tuple(sorted(session.refused.items())),
        failure=_failure(session, handle),
        mig_devices=_mig_devices(session, handle) if merged["mig"] else (),
        processes=_processes(session, handle),
        nvlinks=read_nvlinks(session, handle),
    )


def _failure(session: Session, handle: ctypes.c_void_p) -> Optional[str]:
    """NVML's message for a GPU that it opened but that no longer responds."""
    code = session.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(NvmlMemory()))
    return session.error_text(code) if code in (GPU_IS_LOST, RESET_REQUIRED, UNKNOWN) else None


def _confidential(session: Session) -> Optional[bool]:
    found = session.fill("nvmlSystemGetConfComputeState", Confidential())
    return None if found is None else bool(found.feature)


def _identity(session: Session, handle: ctypes.c_void_p) -> Dict[str, Any]:
    return {
        "name": session.text("nvmlDeviceGetName", handle),
        "uuid": session.text("nvmlDeviceGetUUID", handle),
        "compute_capability": session.capability(handle),
        "bus_id": session.bus_id(handle),
        "clock_sm_max_mhz": session.number("nvmlDeviceGetMaxClockInfo", handle, 1),
        "clock_memory_max_mhz": session.number("nvmlDeviceGetMaxClockInfo", handle, 2),
    }


def _moving(session: Session, handle: ctypes.c_void_p) -> Dict[str, Any]:
    """What changes from second to second."""
    rates = session.fill("nvmlDeviceGetUtilizationRates", Utilization(), handle)
    memory = _memory(session, handle)
    return {
        "memory_total_bytes": int(memory.total) if memory else None,
        "memory_used_bytes": int(memory.used) if memory else None,
        "utilization_percent": int(rates.gpu) if rates else None,
        "memory_utilization_percent": int(rates.memory) if rates else None,
        "temperature_c": session.number("nvmlDeviceGetTemperature", handle, 0),
        "power_w": _watts(session.number("nvmlDeviceGetPowerUsage", handle)),
        "power_limit_w": _watts(session.number("nvmlDeviceGetEnforcedPowerLimit", handle)),
        "power_limit_default_w": _watts(
            session.number("nvmlDeviceGetPowerManagementDefaultLimit", handle)
        ),
        "clock_sm_mhz": session.number("nvmlDeviceGetClockInfo", handle, 1),
        "clock_memory_mhz": session.number("nvmlDeviceGetClockInfo", handle, 2),
        "throttle_reasons": _throttle(session, handle),
    }


def _modes(session: Session, handle: ctypes.c_void_p) -> Dict[str, Any]:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    pair = ctypes.byref(current), ctypes.byref(pending)
    no_ecc = session.call("nvmlDeviceGetEccMode", handle, *pair)
    mode = session.number("nvmlDeviceGetComputeMode", handle)
    addressing = session.fill("nvmlDeviceGetAddressingMode", versioned(Addressing, 1), handle)
    inforom = session.call("nvmlDeviceValidateInforom", handle)
    return {
        "virtualization": _word(
            VIRTUALIZATION, session.number("nvmlDeviceGetVirtualizationMode", handle)
        ),
        "addressing": _word(ADDRESSING, int(addressing.value) if addressing else None),
        "license": _license(session, handle),
        "fans_percent": _fans(session, handle),
        "display": _truth(session.number("nvmlDeviceGetDisplayActive", handle)),
        "recovery": _recovery(session, handle),
        "inforom_corrupt": {None: False, CORRUPTED_INFOROM: True}.get(inforom),
        "mig": session.mig(handle),
        "persistence": _truth(session.number("nvmlDeviceGetPersistenceMode", handle)),
        "compute_mode": COMPUTE_MODES.get(mode, str(mode)) if mode is not None else None,
        "ecc_enabled": None if no_ecc else bool(current.value),
        "slowdown_c": session.number("nvmlDeviceGetTemperatureThreshold", handle, 1),
        "slowdown_margin_c": _slowdown_margin(session, handle),
    }


def _fans(session: Session, handle: ctypes.c_void_p) -> Optional[Tuple[int, ...]]:
    """Each fan's speed; drivers before 410 have one for all. Passively cooled cards have none."""
    count = session.number("nvmlDeviceGetNumFans", handle)
    name = "nvmlDeviceGetFanSpeed" + ("_v2" if count else "")
    which = [(ctypes.c_uint(fan),) for fan in range(count)] if count else [()]
    speeds = [session.number(name, handle, *fan) for fan in which]
    return tuple(one for one in speeds if one is not None) or None


def _license(session: Session, handle: ctypes.c_void_p) -> Optional[str]:
    """What a virtual GPU is licensed for, in nvidia-smi's words for its state."""
    found = session.fill("nvmlDeviceGetGridLicensableFeatures_v4", Licenses(), handle)
    features = [one for one in found.features[: found.count] if one.enabled] if found else []
    if not features:
        return None
    if any(one.licensed for one in features):
        return "licensed"
    free = any(b"unrestricted" in one.info.lower() for one in features)
    return "unlicensed (unrestricted)" if free else "unlicensed"


def _recovery(session: Session, handle: ctypes.c_void_p) -> Optional[str]:
    """The recovery action that is due; drivers before 570 have two flags for it."""
    action = field(session, handle, RECOVERY_ACTION)
    if action is not None:
        return _word(RECOVERY, action)
    flags = {RESET_STATUS: 1, DRAIN_AND_RESET_STATUS: DRAIN_AND_RESET}
    read = {flag: field(session, handle, flag) for flag in flags}
    due = [RECOVERY[flags[flag]] for flag, value in read.items() if value]
    known = [value for value in read.values() if value is not None]
    return due[0] if due else RECOVERY[0] if known else None


def _errors(session: Session, handle: ctypes.c_void_p) -> Dict[str, Any]:
    def total(uncorrected: int, ever: int) -> Optional[int]:
        name = "nvmlDeviceGetTotalEccErrors"
        return session.number(name, handle, uncorrected, ever, kind=ctypes.c_ulonglong)

    rows = [ctypes.c_uint() for _ in range(4)]  # corrected, uncorrected, pending, failed
    addresses = [ctypes.byref(row) for row in rows]
    unread = session.call("nvmlDeviceGetRemappedRows", handle, *addresses) is not None
    pending = session.number("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    banks = session.fill("nvmlDeviceGetRowRemapperHistogram", Histogram(), handle)
    sram = session.fill("nvmlDeviceGetSramEccErrorStatus", versioned(SramErrors, 1), handle)
    return {
        "spare_rows": tuple(getattr(banks, n) for n, *_ in Histogram._fields_) if banks else None,
        "sram_uncorrected": sum(sram.counters[3:5]) if sram else _sram_errors(session, handle),
        "sram_threshold_exceeded": bool(sram.threshold_exceeded) if sram else None,
        "ecc_corrected": total(0, 0),
        "ecc_uncorrected": total(1, 0),
        "ecc_uncorrected_ever": total(1, 1),
        "retired_pages": _retired(session, handle),
        "retired_pending": _truth(pending),
        "remapped_rows": None if unread else rows[1].value,
        "remap_pending": None if unread else bool(rows[2].value),
        "remap_failed": None if unread else bool(rows[3].value),
    }


def _sram_errors(session: Session, handle: ctypes.c_void_p) -> Optional[int]:
    """Uncorrected errors of the SRAM by a driver without the newer function (535)."""
    name, kind = "nvmlDeviceGetMemoryErrorCounter", ctypes.c_ulonglong
    return session.number(name, handle, *UNCORRECTED_IN_SRAM, kind=kind)


def _pcie(session: Session, handle: ctypes.c_void_p) -> Dict[str, Any]:
    return {
        "pcie_generation": session.number("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_generation_max": session.number("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_generation_card": session.number("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
        "pcie_replays": session.number("nvmlDeviceGetPcieReplayCounter", handle),
        **_c2c(session, handle),
        "pcie_width": session.number("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": session.number("nvmlDeviceGetMaxPcieLinkWidth", handle),
    }


def _c2c(session: Session, handle: ctypes.c_void_p) -> Dict[str, Any]:
    count = field(session, handle, C2C_LINKS)
    speeds = [field(session, handle, C2C_SPEED, link) for link in range(count or 0)]
    known = [speed for speed in speeds if speed]
    return {"c2c_links": count, "c2c_gbs": sum(known) / 1000 if known else None}


def _memory(session: Session, handle: ctypes.c_void_p) -> Any:
    newer = session.fill("nvmlDeviceGetMemoryInfo_v2", versioned(NvmlMemory2, 2), handle)
    return newer or session.fill("nvmlDeviceGetMemoryInfo", NvmlMemory(), handle)


def _throttle(session: Session, handle: ctypes.c_void_p) -> Optional[Tuple[str, ...]]:
    names = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    name = names[0] if session.has(names[0]) else names[1]
    bits = session.number(name, handle, kind=ctypes.c_ulonglong)
    return None if bits is None else throttle_names(bits)


def _slowdown_margin(session: Session, handle: ctypes.c_void_p) -> Optional[int]:
    """Ada and later report how far they are from their limit, and where below it they slow down."""
    margin = session.fill("nvmlDeviceGetMarginTemperature", versioned(Margin, 1), handle)
    if margin is None:
        return None
    limit = field(session, handle, SLOWDOWN_TLIMIT)
    return None if limit is None else int(margin.margin) - limit


def _retired(session: Session, handle: ctypes.c_void_p) -> Optional[int]:
    """Pages retired for either cause; without a buffer, NVML returns only the number."""
    total = None
    for cause in (0, 1):  # several single-bit errors, a double-bit error
        count = ctypes.c_uint(0)
        code = session.call("nvmlDeviceGetRetiredPages", handle, cause, ctypes.byref(count), None)
        if code in (None, INSUFFICIENT_SIZE):
            total = (total or 0) + count.value
    return total


def _processes(session: Session, handle: ctypes.c_void_p) -> Optional[Tuple[GpuProcess, ...]]:
    base = "nvmlDeviceGetComputeRunningProcesses"
    name = next((base + v for v in ("_v3", "_v2", "") if session.has(base + v)), base)
    count = ctypes.c_uint(0)
    code = session.call(name, handle, ctypes.byref(count), None)
    if code is None:
        return ()
    if code != INSUFFICIENT_SIZE:
        return None
    room = count.value * 2 + 5  # more may have started meanwhile
    raw = ctypes.create_string_buffer(BLANK * (room * max(STRIDES)), room * max(STRIDES))
    count = ctypes.c_uint(room)
    if session.call(name, handle, ctypes.byref(count), raw) is not None:
        return None
    return unpack_processes(raw.raw, count.value)


def _mig_devices(session: Session, handle: ctypes.c_void_p) -> Optional[Tuple[Mig, ...]]:
    found = []
    count = session.number("nvmlDeviceGetMaxMigDeviceCount", handle)
    if count is None:
        return None
    for index in range(count):
        by_index = "nvmlDeviceGetMigDeviceHandleByIndex"
        device = session.fill(by_index, ctypes.c_void_p(), handle, ctypes.c_uint(index))
        if device is not None:
            memory = _memory(session, device)
            uuid = session.text("nvmlDeviceGetUUID", device)
            name = session.text("nvmlDeviceGetName", device)
            found.append(Mig(uuid, name, int(memory.total) if memory else None))
    return tuple(found)


def _watts(milliwatts: Optional[int]) -> Optional[float]:
    return None if milliwatts is None else milliwatts / 1000


def _word(words: Sequence[str], number: Optional[int]) -> Optional[str]:
    """The name of a number in nvml.h; the number itself where it is newer than this list."""
    return None if number is None else dict(enumerate(words)).get(number, str(number))


def _truth(number: Optional[int]) -> Optional[bool]:
    return None if number is None else bool(number)
