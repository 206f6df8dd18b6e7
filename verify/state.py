"""Reads all that NVML measures of each GPU and each pair of GPUs, by ctypes.

What this driver does not have (an older one)
or this GPU cannot do is None; any other refusal stands in `State.problems`. Nothing is raised.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from verify.nvml import LIBRARY, Session, is_there
from verify.nvml_types import (
    ADDRESSING,
    ANSWERS,
    BLANK,
    C2C_LINKS,
    C2C_SPEED,
    COMPUTE_MODES,
    CORRUPTED_INFOROM,
    DRAIN_AND_RESET_STATUS,
    FABRIC_STATES,
    GPU_IS_LOST,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    MAX_NVLINKS,
    NOT_SUPPORTED,
    NVLINK_ERRORS,
    NVLINK_SPEED,
    P2P,
    P2P_NVLINK,
    P2P_READ,
    P2P_WRITE,
    PATHS,
    RECOVERY,
    RECOVERY_ACTION,
    REMOTE_IS_SWITCH,
    RESET_REQUIRED,
    RESET_STATUS,
    SLOWDOWN_TLIMIT,
    STRIDES,
    UNKNOWN,
    VERSION_MISMATCH,
    VIRTUALIZATION,
    Addressing,
    Confidential,
    Fabric,
    Fabric2,
    Fabric3,
    Field,
    Histogram,
    Margin,
    Memory,
    Memory2,
    Pci,
    SramErrors,
    Utilization,
    fabric_faults,
    throttle_names,
    unpack_processes,
    versioned,
)
from verify.telemetry import GpuState, Mig, NvLink, Pair, Process, State


def read(load: Callable[[str], Any] = ctypes.CDLL) -> State:
    """Load NVML and ask it everything. Errors come back as data; a hang is the caller's matter."""
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
            pairs=_pairs(session, handles, gpus),
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
        """The GPUs of these numbers, or all: name, load, memory, power, heat and clocks."""
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
        """Let go of the driver."""
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
    parts: List[Mapping[str, Any]] = [
        part(session, handle) for part in (_identity, _moving, _modes, _errors, _pcie, _fabric)
    ]
    merged = {name: value for part in parts for name, value in part.items()}
    return GpuState(
        index,
        **merged,
        failure=_failure(session, handle),
        mig_devices=_mig_devices(session, handle) if merged["mig"] else (),
        processes=_processes(session, handle),
        nvlinks=_nvlinks(session, handle),
    )


def _failure(session: Session, handle: ctypes.c_void_p) -> Optional[str]:
    """NVML's words for a GPU that it opened and that answers nothing more."""
    code = session.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(Memory()))
    return session.error_text(code) if code in (GPU_IS_LOST, RESET_REQUIRED, UNKNOWN) else None


def _confidential(session: Session) -> Optional[bool]:
    found = session.fill("nvmlSystemGetConfComputeState", Confidential())
    return None if found is None else bool(found.feature)


def _identity(session: Session, handle: ctypes.c_void_p) -> Dict[str, Any]:
    return {
        "name": session.text("nvmlDeviceGetName", handle),
        "uuid": session.text("nvmlDeviceGetUUID", handle),
        "compute_capability": session.capability(handle),
        "bus_id": _bus_id(_pci(session, handle)),
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


def _recovery(session: Session, handle: ctypes.c_void_p) -> Optional[str]:
    """What is to be done; drivers before 570 have two flags for it."""
    action = _field(session, handle, RECOVERY_ACTION)
    if action is not None:
        return _word(RECOVERY, action)
    flags = {RESET_STATUS: 1, DRAIN_AND_RESET_STATUS: 4}
    read = {flag: _field(session, handle, flag) for flag in flags}
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
        "exhausted_banks": int(banks.none) if banks else None,
        "sram_uncorrected": sum(sram.counters[3:5]) if sram else None,
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
    count = _field(session, handle, C2C_LINKS)
    speeds = [_field(session, handle, C2C_SPEED, link) for link in range(count or 0)]
    known = [speed for speed in speeds if speed]
    return {"c2c_links": count, "c2c_gbs": sum(known) / 1000 if known else None}


def _memory(session: Session, handle: ctypes.c_void_p) -> Any:
    newer = session.fill("nvmlDeviceGetMemoryInfo_v2", versioned(Memory2, 2), handle)
    return newer or session.fill("nvmlDeviceGetMemoryInfo", Memory(), handle)


def _throttle(session: Session, handle: ctypes.c_void_p) -> Optional[Tuple[str, ...]]:
    names = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    name = names[0] if session.has(names[0]) else names[1]
    bits = session.number(name, handle, kind=ctypes.c_ulonglong)
    return None if bits is None else throttle_names(bits)


def _slowdown_margin(session: Session, handle: ctypes.c_void_p) -> Optional[int]:
    """Ada and later tell how far they are from their limit, and where below it they slow down."""
    margin = session.fill("nvmlDeviceGetMarginTemperature", versioned(Margin, 1), handle)
    if margin is None:
        return None
    limit = _field(session, handle, SLOWDOWN_TLIMIT)
    return None if limit is None else int(margin.margin) - limit


def _field(session: Session, handle: ctypes.c_void_p, number: int, scope: int = 0) -> Optional[int]:
    """One of the values that NVML keeps by number."""
    field = Field(id=number, scope=scope)
    asked = session.call("nvmlDeviceGetFieldValues", handle, 1, ctypes.byref(field))
    return None if asked is not None or field.code else int(field.signed)


def _retired(session: Session, handle: ctypes.c_void_p) -> Optional[int]:
    """Pages retired for either cause; asked without a buffer, NVML tells the number alone."""
    total = None
    for cause in (0, 1):  # several single-bit errors, a double-bit error
        count = ctypes.c_uint(0)
        code = session.call("nvmlDeviceGetRetiredPages", handle, cause, ctypes.byref(count), None)
        if code in (None, INSUFFICIENT_SIZE):
            total = (total or 0) + count.value
    return total


def _processes(session: Session, handle: ctypes.c_void_p) -> Optional[Tuple[Process, ...]]:
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


def _nvlinks(session: Session, handle: ctypes.c_void_p) -> Tuple[NvLink, ...]:
    quiet = Session(session.library, (*ANSWERS, INVALID_ARGUMENT))  # a link that is not there
    found = []
    for link in range(MAX_NVLINKS):
        state = quiet.number("nvmlDeviceGetNvLinkState", handle, link)
        if state is not None:
            errors = _link_errors(quiet, handle, link)
            speed = _field(quiet, handle, NVLINK_SPEED, link) if state == 1 else None
            found.append(NvLink(link, state == 1, errors, speed / 1000 if speed else None))
    session.problems += [p for p in quiet.problems if p not in session.problems]
    return tuple(found)


def _link_errors(session: Session, handle: ctypes.c_void_p, link: int) -> Optional[int]:
    name, kind = "nvmlDeviceGetNvLinkErrorCounter", ctypes.c_ulonglong
    counts = [session.number(name, handle, link, which, kind=kind) for which in NVLINK_ERRORS]
    told = [count for count in counts if count is not None]
    return sum(told) if told else None


def _fabric(session: Session, handle: ctypes.c_void_p) -> Dict[str, Any]:
    name, old = "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"
    newer = session.has(name)
    info: Any = versioned(Fabric3, 3) if newer else Fabric()
    code = session.call(name if newer else old, handle, ctypes.byref(info))
    if code == VERSION_MISMATCH:  # a driver older than the newest structure
        info = versioned(Fabric2, 2)
        code = session.call(name, handle, ctypes.byref(info))
    if code is not None:
        return {"fabric_state": FABRIC_STATES[0] if code == NOT_SUPPORTED else None}
    state = dict(enumerate(FABRIC_STATES)).get(info.state, str(info.state))
    failed = state == "completed" and info.status  # before that the status means nothing
    return {
        "fabric_state": state,
        "fabric_status": session.error_text(info.status) if failed else None,
        "fabric_health": fabric_faults(info.health, getattr(info, "summary", 0)) if newer else (),
    }


def _pairs(
    session: Session, handles: Sequence[Optional[ctypes.c_void_p]], gpus: Sequence[GpuState]
) -> Tuple[Pair, ...]:
    far = [_far_ends(session, h, gpu) if h else [] for h, gpu in zip(handles, gpus)]
    found = []
    for i, first in enumerate(handles):
        for j, second in list(enumerate(handles))[i + 1 :]:
            if first is None or second is None:
                found.append(Pair(i, j))
                continue
            path = _path(session, (first, second), gpus[j].bus_id, far[i], far[j])
            caps = [_p2p(session, first, second, cap) for cap in (P2P_READ, P2P_WRITE)]
            found.append(Pair(i, j, path, *caps))
    return tuple(found)


_Far = Tuple[Optional[str], bool]  # the bus id at a link's other end, and whether it is a switch


def _far_ends(session: Session, handle: ctypes.c_void_p, gpu: GpuState) -> List[_Far]:
    found = []
    for link in gpu.nvlinks:
        if link.active:
            pci = session.fill("nvmlDeviceGetNvLinkRemotePciInfo_v2", Pci(), handle, link.link)
            kind = session.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link.link)
            found.append((_bus_id(pci), kind == REMOTE_IS_SWITCH))
    return found


def _path(
    session: Session,
    pair: Tuple[ctypes.c_void_p, ctypes.c_void_p],
    bus_id: Optional[str],
    first: Sequence[_Far],
    second: Sequence[_Far],
) -> Optional[str]:
    direct = sum(bus_id is not None and far == bus_id for far, _ in first)
    if direct:
        return "NV{}".format(direct)
    if _p2p(session, *pair, P2P_NVLINK) == "ok":  # through a switch
        links = min(sum(switch for _, switch in ends) for ends in (first, second))
        return "NV{}".format(links or "")
    level = session.number("nvmlDeviceGetTopologyCommonAncestor", *pair)
    return None if level is None else PATHS.get(level, str(level))


def _p2p(
    session: Session, first: ctypes.c_void_p, second: ctypes.c_void_p, capability: int
) -> Optional[str]:
    status = session.number("nvmlDeviceGetP2PStatus", first, second, capability)
    return None if status is None else dict(enumerate(P2P)).get(status, P2P[-1])


def _pci(session: Session, handle: ctypes.c_void_p) -> Any:
    names = ("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2")
    name = names[0] if session.has(names[0]) else names[1]
    return session.fill(name, Pci(), handle)


def _bus_id(pci: Any) -> Optional[str]:
    """As NVML prints it; an older driver fills the short one alone."""
    text = (pci.bus_id or pci.short_bus_id).decode("ascii", "replace") if pci else ""
    return text or None


def _watts(milliwatts: Optional[int]) -> Optional[float]:
    return None if milliwatts is None else milliwatts / 1000


def _word(words: Sequence[str], number: Optional[int]) -> Optional[str]:
    """The word for a number of nvml.h; the number itself where it is newer than this list."""
    return None if number is None else dict(enumerate(words)).get(number, str(number))


def _truth(number: Optional[int]) -> Optional[bool]:
    return None if number is None else bool(number)
