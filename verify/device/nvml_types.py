"""NVML's structures, numbers and names, as nvml.h has them."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Optional, Tuple

from verify.device.telemetry import GpuProcess

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE = 2, 3, 4, 6, 7
FUNCTION_NOT_FOUND, CORRUPTED_INFOROM, VERSION_MISMATCH, DEPRECATED = 13, 14, 25, 26
GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 15, 16, 999  # about the GPU, whatever was queried
# Return codes that describe a GPU or an old driver, and are not problems.
ANSWERS = (
    NOT_SUPPORTED,
    NOT_FOUND,
    INSUFFICIENT_SIZE,
    FUNCTION_NOT_FOUND,
    VERSION_MISMATCH,
    DEPRECATED,
)

MAX_NVLINKS = 36
NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
# NVML_FI_DEV_...: fields for nvmlDeviceGetFieldValues
# MB/s of the NVLink in `scope`; number of C2C links; MB/s of the C2C link in `scope`
NVLINK_SPEED, C2C_LINKS, C2C_SPEED = 164, 170, 172
SLOWDOWN_TLIMIT = 194
RESET_STATUS, DRAIN_AND_RESET_STATUS, RECOVERY_ACTION = 226, 227, 230
P2P_READ, P2P_WRITE, P2P_NVLINK = 0, 1, 2
FAR_ENDS = ("gpu", "npu", "switch")  # of an NVLink
P2P = (
    "ok",
    "chipset-not-supported",
    "gpu-not-supported",
    "topology-not-supported",
    "disabled-by-regkey",
    "not-supported",
    "unknown",
)
PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
VIRTUALIZATION = ("none", "passthrough", "vgpu", "host-vgpu", "host-vsga")
ADDRESSING = ("none", "hmm", "ats")
RECOVERY = (
    "none",
    "reset the GPU",
    "reboot the machine",
    "drain its peers",
    "drain and reset the GPU",
    "recover the IMEX domain",
    "reset the bus",
    "reboot the system",
)
DRAIN_AND_RESET, RECOVER_IMEX = 4, 5  # the former also for a row that waits for remapping
COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
# nvidia-smi's names: --query-gpu=clocks_event_reasons.NAME
THROTTLE = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
UNCORRECTED_IN_SRAM = (1, 0, 7)  # kind of error, since the driver was loaded, location
NVLINK_ERRORS = (0, 1, 2, 3)  # replay, recovery, CRC of flits, CRC of data
FABRIC_STATES = ("not-supported", "not-started", "in-progress", "completed")
# The meanings of the first two-bit parts of a fabric health mask, where 1 means true
FABRIC_FAULTS = (
    "bandwidth is degraded",
    "routes are being recovered",
    "a route is unhealthy",
    "access timeouts are being recovered from",
)
FABRIC_SUMMARIES = {2: "the driver calls it unhealthy", 3: "its capacity is limited"}
FABRIC_CONFIGURATION = (8, 0xF)  # (shift, mask): 0 not reported, 1 right, else wrong
WRONG_CONFIGURATION = {
    2: "another system's GUID",
    3: "another chassis' serial number",
    4: "in no partition",
    5: "too few NVLinks",
    6: "firmware of another version",
    7: "an invalid location",
    8: "an invalid state of the GPU",
}


class NvmlMemory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class NvmlMemory2(ctypes.Structure):
    """nvmlMemory_v2_t, whose `used` leaves out what the driver reserves, as nvidia-smi's does."""

    _fields_ = [("version", ctypes.c_uint)] + [
        (name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")
    ]


class Utilization(ctypes.Structure):
    """nvmlUtilization_t, in percent of the last sample period."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Pci(ctypes.Structure):
    """nvmlPciInfo_t; before its third version it had only the short bus id."""

    _fields_ = [
        ("short_bus_id", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class Excluded(ctypes.Structure):
    """nvmlExcludedDeviceInfo_t: a GPU that the driver was configured to ignore."""

    _fields_ = [("pci", Pci), ("uuid", ctypes.c_char * 80)]


class LicensedFeature(ctypes.Structure):
    """nvmlGridLicensableFeature_t, with the parts of its expiry."""

    _fields_ = [
        ("code", ctypes.c_uint),
        ("licensed", ctypes.c_uint),
        ("info", ctypes.c_char * 128),
        ("product", ctypes.c_char * 128),
        ("enabled", ctypes.c_uint),
        ("year", ctypes.c_uint32),
        ("month_to_second", ctypes.c_uint16 * 5),
        ("expiry", ctypes.c_uint8),
    ]


class Licenses(ctypes.Structure):
    """nvmlGridLicensableFeatures_t, of nvmlDeviceGetGridLicensableFeatures_v4."""

    _fields_ = [
        ("supported", ctypes.c_int),
        ("count", ctypes.c_uint),
        ("features", LicensedFeature * 3),
    ]


class Margin(ctypes.Structure):
    """nvmlMarginTemperature_v1_t: degrees below the card's own thermal limit."""

    _fields_ = [("version", ctypes.c_uint), ("margin", ctypes.c_int)]


class Field(ctypes.Structure):
    """nvmlFieldValue_t; its union is read as a signed number, as temperature limits are."""

    _fields_ = [
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("signed", ctypes.c_int),
        ("rest", ctypes.c_uint),
    ]


class Fabric(ctypes.Structure):
    """nvmlGpuFabricInfo_t, of drivers before the versioned one."""

    _fields_ = [
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    ]


class Fabric2(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
        ("health", ctypes.c_uint),
    ]


class Fabric3(ctypes.Structure):
    """nvmlGpuFabricInfo_v3_t, of drivers from 580 on."""

    _fields_ = [*Fabric2._fields_, ("summary", ctypes.c_ubyte)]


class Histogram(ctypes.Structure):
    """nvmlRowRemapperHistogramValues_t: memory banks counted by spare rows left."""

    _fields_ = [(name, ctypes.c_uint) for name in ("max", "high", "partial", "low", "none")]


class Addressing(ctypes.Structure):
    """nvmlDeviceAddressingMode_v1_t."""

    _fields_ = [("version", ctypes.c_uint), ("value", ctypes.c_uint)]


class SramErrors(ctypes.Structure):
    """nvmlEccSramErrorStatus_v1_t; the counters are read as one block."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("counters", ctypes.c_ulonglong * 11),
        ("threshold_exceeded", ctypes.c_uint),
    ]


class Confidential(ctypes.Structure):
    """nvmlConfComputeSystemState_t."""

    _fields_ = [(name, ctypes.c_uint) for name in ("environment", "feature", "devtools")]


def bus_id(pci: Any) -> Optional[str]:
    """The bus id as NVML prints it; an older driver fills only the short one."""
    text = (pci.bus_id or pci.short_bus_id).decode("ascii", "replace") if pci else ""
    return text or None


def versioned(kind: Any, version: int) -> Any:
    """A structure with its version set, as nvml.h's NVML_STRUCT_VERSION encodes it."""
    return kind(version=ctypes.sizeof(kind) | version << 24)


def throttle_names(bits: int) -> Tuple[str, ...]:
    """The reasons in a mask of nvmlClocksEventReasons, including bits without a name in nvml.h."""
    known = [name for bit, name in THROTTLE.items() if bits & bit]
    rest = bits & ~sum(THROTTLE)
    return (*known, "0x{:x}".format(rest)) if rest else tuple(known)


BLANK = b"\xa5"
STRIDES = (16, 24, 32)  # nvmlProcessInfo_v1_t, _v2_t, and the one of drivers 535.43 to 535.86


def unpack_processes(raw: bytes, count: int) -> Tuple[GpuProcess, ...]:
    """The entries of a buffer that was blank before NVML wrote them.

    The layout changed under the same function name: 535.43 made nvmlProcessInfo_t longer and 535.98
    reverted that. So the size of an entry follows from how much was written, not from the name.
    """
    written = len(raw.rstrip(BLANK))
    stride = next((s for s in STRIDES if s * count >= written), max(STRIDES))
    found = [struct.unpack_from("=IxxxxQ", raw, i * stride) for i in range(count)]
    return tuple(GpuProcess(pid, None if used == NOT_AVAILABLE else used) for pid, used in found)


def fabric_faults(mask: int, summary: int = 0) -> Tuple[str, ...]:
    """The faults in a fabric health mask, and the driver's own summary."""
    found = [words for i, words in enumerate(FABRIC_FAULTS) if mask >> 2 * i & 3 == 1]
    if summary in FABRIC_SUMMARIES:
        found.append(FABRIC_SUMMARIES[summary])
    shift, width = FABRIC_CONFIGURATION
    wrong = mask >> shift & width
    if wrong > 1:
        words = WRONG_CONFIGURATION.get(wrong, str(wrong))
        found.append("this GPU's configuration is wrong ({})".format(words))
    return tuple(found)
