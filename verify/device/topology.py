"""How GPUs are connected, from NVML: NVLinks, the fabric, the path between each pair."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Optional, Sequence, Tuple

from verify.device.nvml import Session
from verify.device.nvml_types import (
    ANSWERS,
    FABRIC_STATES,
    FAR_ENDS,
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
    VERSION_MISMATCH,
    Fabric,
    Fabric2,
    Fabric3,
    Field,
    Pci,
    bus_id,
    fabric_faults,
    versioned,
)
from verify.device.telemetry import GpuState, NvLink, Pair


def read_nvlinks(session: Session, handle: ctypes.c_void_p) -> Tuple[NvLink, ...]:
    """The NVLinks of a GPU, up or down, with what each has counted."""
    quiet = Session(session.library, (*ANSWERS, INVALID_ARGUMENT))  # for a link that does not exist
    found = []
    for link in range(MAX_NVLINKS):
        state = quiet.number("nvmlDeviceGetNvLinkState", handle, link)
        if state is not None:
            errors = _link_errors(quiet, handle, link)
            speed = field(quiet, handle, NVLINK_SPEED, link) if state == 1 else None
            far = _far_end(quiet if state == 1 else Session(session.library), handle, link)
            found.append(NvLink(link, state == 1, errors, speed / 1000 if speed else None, *far))
    session.problems += [p for p in quiet.problems if p not in session.problems]
    return tuple(found)


def _far_end(
    session: Session, handle: ctypes.c_void_p, link: int
) -> Tuple[Optional[str], Optional[str]]:
    """What a link ends at, and its bus id. A link that is down may refuse with any error."""
    kind = session.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    pci = session.fill("nvmlDeviceGetNvLinkRemotePciInfo_v2", Pci(), handle, link)
    word = None if kind is None else dict(enumerate(FAR_ENDS)).get(kind, "unknown")
    place = bus_id(pci) or ""
    return word, place if place.strip("0:.") else None  # zeros for a switch of the host


def _link_errors(session: Session, handle: ctypes.c_void_p, link: int) -> Optional[int]:
    name, kind = "nvmlDeviceGetNvLinkErrorCounter", ctypes.c_ulonglong
    counts = [session.number(name, handle, link, which, kind=kind) for which in NVLINK_ERRORS]
    told = [count for count in counts if count is not None]
    return sum(told) if told else None


def read_fabric(session: Session, handle: ctypes.c_void_p) -> Dict[str, Any]:
    """Fields of GpuState that describe a GPU's state in an NVSwitch fabric."""
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


def read_pairs(
    session: Session, handles: Sequence[Optional[ctypes.c_void_p]], gpus: Sequence[GpuState]
) -> Tuple[Pair, ...]:
    """The connection of each pair of GPUs that respond."""
    found = []
    for i, first in enumerate(handles):
        for j, second in list(enumerate(handles))[i + 1 :]:
            if first is None or second is None:
                found.append(Pair(i, j))
                continue
            path = _path(session, (first, second), gpus[i], gpus[j])
            caps = [_p2p(session, first, second, cap) for cap in (P2P_READ, P2P_WRITE)]
            found.append(Pair(i, j, path, *caps))
    return tuple(found)


def _path(
    session: Session, pair: Tuple[ctypes.c_void_p, ctypes.c_void_p], one: GpuState, two: GpuState
) -> Optional[str]:
    direct = one.links_to(two)
    if direct:
        return "NV{}".format(direct)
    if _p2p(session, *pair, P2P_NVLINK) == "ok":  # through a switch
        ends = [[link.far for link in gpu.nvlinks if link.active] for gpu in (one, two)]
        return "NV{}".format(min(far.count("switch") for far in ends) or "")
    level = session.number("nvmlDeviceGetTopologyCommonAncestor", *pair)
    return None if level is None else PATHS.get(level, str(level))


def _p2p(
    session: Session, first: ctypes.c_void_p, second: ctypes.c_void_p, capability: int
) -> Optional[str]:
    status = session.number("nvmlDeviceGetP2PStatus", first, second, capability)
    return None if status is None else dict(enumerate(P2P)).get(status, P2P[-1])


def field(session: Session, handle: ctypes.c_void_p, number: int, scope: int = 0) -> Optional[int]:
    """The value of an NVML field, by its number."""
    field = Field(id=number, scope=scope)
    asked = session.call("nvmlDeviceGetFieldValues", handle, 1, ctypes.byref(field))
    return None if asked is not None or field.code else int(field.signed)
