"""Recorded machines as the suite meets them: facts become the answers of an NVML library.

A record holds what `nvidia-smi` printed on a machine, normalised: {"id", "driver", "cuda",
"gpus": [{"index", "name", "pcie", "power", ...}], "topology"}. `Facts` answers as that
machine's driver did, through the same ctypes calls. What a record does not have is "not supported",
and what it has as an error ("Unknown Error") is that error. A value that no driver gives (a text
where a number belongs) is an unknown error, so that every record of GPUs is judged.

Two things are filled in where a record leaves them out, so that a machine is whole: UUIDs and bus
addresses (by the index), and the NVLinks that a list of single links does not name (they are up).
"""

# ruff: noqa: ANN401, SLF001  arguments of ctypes calls, whose memory is behind byref()

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verify.device import nvml_types
from verify.device.kernel_log import Log
from verify.device.machine import Machine
from verify.device.pci import PciGpu
from verify.device.telemetry import State

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, INSUFFICIENT_SIZE = 0, 2, 3, 4, 7
GPU_IS_LOST, RESET_REQUIRED, CORRUPTED_INFOROM, DEPRECATED, UNKNOWN = 15, 16, 14, 26, 999
TEXTS = {
    SUCCESS: "Success",
    INVALID_ARGUMENT: "Invalid Argument",
    NOT_SUPPORTED: "Not Supported",
    NO_PERMISSION: "Insufficient Permissions",
    INSUFFICIENT_SIZE: "Insufficient Size",
    CORRUPTED_INFOROM: "infoROM is corrupted",
    GPU_IS_LOST: "GPU is lost",
    RESET_REQUIRED: "GPU requires reset",
    DEPRECATED: "Deprecated",
    UNKNOWN: "Unknown Error",
}
MIB = 1 << 20
_ERRORS = {
    "unknown error": UNKNOWN,
    "err!": UNKNOWN,
    "insufficient permissions": NO_PERMISSION,
    "requested functionality has been deprecated": DEPRECATED,
}
_STATES = {"lost": GPU_IS_LOST, "reset": RESET_REQUIRED}  # of a GPU as a whole; else unknown
_YES = {"enabled": 1, "yes": 1, "on": 1, "true": 1, "disabled": 0, "no": 0, "off": 0, "false": 0}
_COMPUTE_MODES = {"default": 0, "exclusive_thread": 1, "prohibited": 2, "exclusive_process": 3}
_VIRTUALIZATION = {"none": 0, "pass-through": 1, "vgpu": 2, "host vgpu": 3, "host vsga": 4}
_ADDRESSING = {"none": 0, "hmm": 1, "ats": 2}
_FABRIC_STATES = {"not supported": 0, "not started": 1, "in progress": 2, "completed": 3}
_FABRIC_HEALTH = (
    "bandwidth",
    "route_recovery_in_progress",
    "route_unhealthy",
    "access_timeout_recovery",
)
_FABRIC_CONFIGURATION = {"no partition": 4, "insufficient nvlinks": 5}
_FABRIC_SUMMARIES = {"healthy": 1, "unhealthy": 2, "limited capacity": 3}
_RECOVERY = {  # as nvidia-smi spells them
    "none": 0,
    "reset": 1,
    "gpu reset": 1,
    "reboot": 2,
    "node reboot": 2,
    "drain p2p": 3,
    "drain and reset": 4,
}
_THROTTLE = {  # the names of two generations of nvidia-smi
    "idle": "gpu_idle",
    "applications_clocks": "applications_clocks_setting",
    "display_clocks_setting": "display_clock_setting",
}
_LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
_LINKS = {"6": 4, "7.0": 6, "7.5": 2, "8.0": 12, "8.6": 4, "9": 18, "10": 18}  # of a whole GPU


# What a value of another shape raises: it is unknown.
_SHAPE = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)


class NotRecordedError(Exception):
    """A record that no driver's answers can be made of; the message says why."""


@dataclass(frozen=True)
class _Gpu:
    """One GPU's facts; every question is (code, number)."""

    facts: Mapping[str, Any]
    index: int

    def at(self, path: str) -> Any:
        found: Any = self.facts
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    @property
    def failure(self) -> int:
        state = str(self.at("state") or "").lower()
        known = (code for text, code in _STATES.items() if text in state)
        return next(known, UNKNOWN) if state else SUCCESS

    def number(self, *paths: str, factor: float = 1.0) -> tuple[int, int]:
        """The first of the facts that is a number."""
        code = NOT_SUPPORTED
        for path in paths:
            value = self.at(path)
            if isinstance(value, bool):
                return SUCCESS, int(value)
            if isinstance(value, (int, float)):
                return SUCCESS, round(value * factor)
            code = _ERRORS.get(str(value).lower(), code)
        return code, 0

    def word(self, path: str, words: Mapping[str, int]) -> tuple[int, int]:
        value = self.at(path)
        if isinstance(value, bool):
            value = "yes" if value else "no"
        text = str(value).lower()
        if text in words:
            return SUCCESS, words[text]
        return _ERRORS.get(text, NOT_SUPPORTED), 0


def _links(gpu: _Gpu) -> dict[int, tuple[bool, float | None, int]]:
    """Each NVLink: whether it is up, its GB/s, and its recoveries."""
    told, capability = gpu.at("nvlink"), str(gpu.at("compute_capability") or "")
    count = _LINKS.get(capability) or _LINKS.get(capability.partition(".")[0], 0)
    if isinstance(told, str):
        known = told.lower() not in _ERRORS
        return dict.fromkeys(range(count if known else 0), (False, None, 0))
    listed = told if isinstance(told, list) else []
    links = [one for one in listed if isinstance(one, Mapping) and isinstance(one.get("link"), int)]
    found: dict[int, tuple[bool, float | None, int]] = {}
    if len(links) == 1:
        found = dict.fromkeys(range(count), (True, None, 0))
    for link in links:
        speed = re.match(r"[\d.]+(?= GB/s)", str(link.get("state")))  # else "down", "inactive"
        events = link.get("recovery_events")
        counted = events if isinstance(events, int) else 0
        found[link["link"]] = (bool(speed), float(speed[0]) if speed else None, counted)
    return found


class Facts:
    """A library that answers as the recorded machine's libnvidia-ml.so.1 did."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        listed = record.get("gpus")
        if not isinstance(listed, list) or not all(isinstance(gpu, dict) for gpu in listed):
            raise NotRecordedError("it lists no GPUs")
        self._record = record
        numbers = [gpu.get("index") for gpu in listed]
        in_order = all(isinstance(number, int) for number in numbers)
        gpus = sorted(listed, key=lambda gpu: gpu["index"]) if in_order else listed
        self._gpus = [_Gpu(gpu, i) for i, gpu in enumerate(gpus)]
        self._nvlinks = [_links(gpu) for gpu in self._gpus]
        if any("nvlink" in gpu for gpu in gpus):  # a twin of which a list of links says nothing
            self._nvlinks = [links or self._twin(i) for i, links in enumerate(self._nvlinks)]
        self._said: list[ctypes.c_char_p] = []

    def _twin(self, index: int) -> dict[int, tuple[bool, float | None, int]]:
        capability = str(self._gpus[index].at("compute_capability") or "")
        count = _LINKS.get(capability) or _LINKS.get(capability.partition(".")[0], 0)
        return dict.fromkeys(range(count), (True, None, 0))

    def __getattr__(self, name: str) -> Any:
        if name == "nvmlErrorString":
            return _error_text
        if not name.startswith("nvml"):
            raise AttributeError(name)
        plain = name.removeprefix("nvml").rstrip("_v0123456789") if "_v" in name else name[4:]
        handler = _ANSWERS.get(plain)
        partial = any("mig_parts" not in gpu and _cut(gpu) for gpu in self._record["gpus"])
        if handler is None or (plain == "DeviceGetMaxMigDeviceCount" and partial):
            raise AttributeError(name)

        def answer(*arguments: Any) -> int:
            try:
                return handler(self, *arguments)
            except _SHAPE:
                return UNKNOWN

        return answer

    # What the handlers below use

    def gpu(self, handle: Any) -> _Gpu:
        return self._gpus[int(getattr(handle, "value", handle)) - 1]

    def links(self, handle: Any) -> dict[int, tuple[bool, float | None, int]]:
        return self._nvlinks[self.gpu(handle).index]

    def init(self) -> int:
        return SUCCESS

    def system_text(self, key: str, buffer: Any) -> int:
        text = self._record.get(key)
        return _put_text(buffer, text) if text else NOT_SUPPORTED

    def cuda(self, out: Any) -> int:
        found = re.match(r"(\d+)(?:\.(\d+))?", str(self._record.get("cuda")))
        if not found:
            return NOT_SUPPORTED
        return _put(out, (SUCCESS, int(found[1]) * 1000 + int(found[2] or 0) * 10))

    def count(self, out: Any) -> int:
        return _put(out, (SUCCESS, len(self._gpus)))

    def handle(self, index: Any, out: Any) -> int:
        gpu = self._gpus[int(getattr(index, "value", index))]
        if gpu.failure == SUCCESS:
            out._obj.value = gpu.index + 1
        return gpu.failure

    def path(self, one: Any, two: Any) -> str:
        first, second = self.gpu(one).index, self.gpu(two).index
        topology = self._record.get("topology") or {}
        columns, rows = topology.get("columns") or [], topology.get("rows") or {}
        row = rows.get(f"GPU{first}") or []
        names = map(str, columns)
        cells: dict[Any, Any] = dict(zip(names, row, strict=False) if columns else enumerate(row))
        return str(cells.get(f"GPU{second}", cells.get(second, "")))


def _cut(gpu: Mapping[str, Any]) -> bool:
    return str(gpu.get("mig_current")).lower() == "enabled"


def _error_text(code: int) -> bytes:
    return TEXTS.get(code, f"error {code}").encode()


def _put(out: Any, answer: tuple[int, int]) -> int:
    code, value = answer
    if code == SUCCESS:
        out._obj.value = value
    return code


def _put_text(buffer: Any, text: str) -> int:
    buffer.value = text.encode()
    return SUCCESS


def _number(*paths: str, factor: float = 1.0) -> Callable[..., int]:
    return lambda facts, handle, out: _put(out, facts.gpu(handle).number(*paths, factor=factor))


def _word(path: str, words: Mapping[str, int]) -> Callable[..., int]:
    return lambda facts, handle, out: _put(out, facts.gpu(handle).word(path, words))


def _name(facts: Facts, handle: Any, buffer: Any, _: Any) -> int:
    return _put_text(buffer, str(facts.gpu(handle).at("name")))


def _uuid(facts: Facts, handle: Any, buffer: Any, _: Any) -> int:
    return _put_text(buffer, f"GPU-00000000-0000-0000-0000-{facts.gpu(handle).index:012d}")


def _capability(facts: Facts, handle: Any, major: Any, minor: Any) -> int:
    found = re.fullmatch(r"(\d+)\.(\d+)", str(facts.gpu(handle).at("compute_capability")))
    if not found:
        return NOT_SUPPORTED
    major._obj.value, minor._obj.value = int(found[1]), int(found[2])
    return SUCCESS


def _pair(current: str, pending: str) -> Callable[..., int]:
    def answer(facts: Facts, handle: Any, now: Any, later: Any) -> int:
        gpu = facts.gpu(handle)
        _put(later, gpu.word(pending, _YES))
        return _put(now, gpu.word(current, _YES))

    return answer


def _memory(facts: Facts, handle: Any, out: Any) -> int:
    gpu, memory = facts.gpu(handle), out._obj
    code, total = gpu.number("memory.total", factor=MIB)
    if code != SUCCESS:
        return code
    memory.total, memory.used = total, gpu.number("memory.used", factor=MIB)[1]
    memory.free = total - memory.used
    return SUCCESS


def _utilization(facts: Facts, handle: Any, out: Any) -> int:
    gpu = facts.gpu(handle)
    code, out._obj.gpu = gpu.number("utilisation.gpu")
    out._obj.memory = gpu.number("utilisation.memory")[1]
    return code


def _temperature(facts: Facts, handle: Any, _: Any, out: Any) -> int:
    return _put(out, facts.gpu(handle).number("temperature.gpu"))


def _threshold(facts: Facts, handle: Any, which: Any, out: Any) -> int:
    path = {0: "temperature.shutdown", 1: "temperature.slowdown"}[which]
    return _put(out, facts.gpu(handle).number(path))


def _clock(now: Mapping[int, str]) -> Callable[..., int]:
    return lambda facts, handle, kind, out: _put(out, facts.gpu(handle).number(now[kind]))


def _throttle(facts: Facts, handle: Any, out: Any) -> int:
    reasons = facts.gpu(handle).at("throttle")
    if not isinstance(reasons, Mapping):
        return NOT_SUPPORTED
    bits = {name: bit for bit, name in nvml_types.THROTTLE.items()}
    known = {_THROTTLE.get(name, name): value for name, value in reasons.items()}
    if any(name.startswith("invalid") for name in known):  # "Invalid HW slowdown"
        return UNKNOWN
    active = [name for name, value in known.items() if value is True]
    return _put(out, (SUCCESS, sum(bits[name] for name in active)))


_ECC = {  # (uncorrected, since the card was made): sums, newest naming first
    (0, 0): (
        ("volatile.sram_correctable", "volatile.dram_correctable"),
        "volatile.single_bit_total",
    ),
    (1, 0): (
        (
            "volatile.sram_uncorrectable",
            "volatile.sram_uncorrectable_parity",
            "volatile.sram_uncorrectable_sec_ded",
            "volatile.sram_uncorrectable_secded",
            "volatile.dram_uncorrectable",
        ),
        "volatile.double_bit_total",
        "volatile.uncorrectable_total",
    ),
    (0, 1): (
        ("aggregate.sram_correctable", "aggregate.dram_correctable"),
        "aggregate.single_bit_total",
    ),
    (1, 1): (
        (
            "aggregate.sram_uncorrectable",
            "aggregate.sram_uncorrectable_parity",
            "aggregate.sram_uncorrectable_sec_ded",
            "aggregate.sram_uncorrectable_secded",
            "aggregate.dram_uncorrectable",
        ),
        "aggregate.double_bit_total",
    ),
}


def _ecc_errors(facts: Facts, handle: Any, uncorrected: int, ever: int, out: Any) -> int:
    gpu = facts.gpu(handle)
    parts, *totals = _ECC[uncorrected, ever]
    found = [gpu.number("ecc." + part) for part in parts]
    known = [value for code, value in found if code == SUCCESS]
    if known:
        return _put(out, (SUCCESS, sum(known)))
    seen = gpu.at("ecc.volatile.uncorrectable_total.volatile.uncorrectable_seen")
    if seen == "yes" and (uncorrected, ever) == (1, 0):
        return _put(out, (SUCCESS, 1))
    return _put(out, gpu.number(*("ecc." + total for total in totals)))


def _retired(facts: Facts, handle: Any, cause: int, count: Any, _: Any) -> int:
    path = ("retired_pages.single_bit_ecc", "retired_pages.double_bit_ecc")[cause]
    return _put(count, facts.gpu(handle).number(path))


def _remapped(facts: Facts, handle: Any, *outs: Any) -> int:
    gpu = facts.gpu(handle)
    if not isinstance(gpu.at("remapped_rows"), Mapping):
        return NOT_SUPPORTED
    parts = [gpu.number("remapped_rows.correctable"), gpu.number("remapped_rows.uncorrectable")]
    parts += [gpu.word("remapped_rows.pending", _YES), gpu.word("remapped_rows.failure", _YES)]
    for out, (_, value) in zip(outs, parts, strict=True):
        out._obj.value = value
    return SUCCESS


def _histogram(facts: Facts, handle: Any, out: Any) -> int:
    banks = facts.gpu(handle).at("remapped_rows.histogram")
    if not isinstance(banks, Mapping) or not all(isinstance(n, int) for n in banks.values()):
        return NOT_SUPPORTED
    for name, value in banks.items():
        setattr(out._obj, name, int(value))
    return SUCCESS


def _sram(facts: Facts, handle: Any, out: Any) -> int:
    gpu = facts.gpu(handle)
    code, value = gpu.word("ecc.aggregate.sram_threshold_exceeded", _YES)
    parts = ("parity", "sec_ded", "secded")
    out._obj.threshold_exceeded = value
    out._obj.counters[3] = sum(
        gpu.number("ecc.volatile.sram_uncorrectable_" + part)[1] for part in parts
    )
    return code


def _addressing(facts: Facts, handle: Any, out: Any) -> int:
    code, out._obj.value = facts.gpu(handle).word("addressing_mode", _ADDRESSING)
    return code


def _processes(facts: Facts, handle: Any, count: Any, buffer: Any) -> int:
    told = facts.gpu(handle).at("processes")
    if told is None:
        return NOT_SUPPORTED
    compute = [one for one in told if "C" in str(one.get("type", "C"))]
    room, count._obj.value = count._obj.value, len(compute)
    if not compute:
        return SUCCESS
    if buffer is None or room < len(compute):
        return INSUFFICIENT_SIZE
    raw = b""
    for pid, one in enumerate(compute, start=1000):
        used = one.get("memory")
        known = isinstance(used, (int, float))
        raw += pid.to_bytes(8, "little")
        raw += (int(used * MIB) if known else nvml_types.NOT_AVAILABLE).to_bytes(8, "little")
    ctypes.memmove(buffer, raw, len(raw))
    return SUCCESS


def _field(facts: Facts, handle: Any, count: int, out: Any) -> int:
    field, gpu = out._obj, facts.gpu(handle)
    assert count == 1
    answer = (NOT_SUPPORTED, 0)
    if field.id == nvml_types.SLOWDOWN_TLIMIT:
        answer = gpu.number("temperature.slowdown_tlimit")
    elif field.id == nvml_types.NVLINK_SPEED:
        speed = facts.links(handle).get(field.scope, (False, None, 0))[1]
        answer = (SUCCESS, round(speed * 1000)) if speed else answer
    elif field.id == nvml_types.C2C_LINKS and gpu.at("c2c_mode") is not None:
        answer = gpu.word("c2c_mode", {**_YES, "enabled": 10})
    elif field.id == nvml_types.RECOVERY_ACTION:
        answer = gpu.word("recovery_action", _RECOVERY)
    elif field.id == nvml_types.RESET_STATUS:
        answer = gpu.word("reset_required", _YES)
    elif field.id == nvml_types.DRAIN_AND_RESET_STATUS:
        answer = gpu.word("drain_and_reset_recommended", _YES)
    field.code, field.signed = answer
    return SUCCESS


def _margin(facts: Facts, handle: Any, out: Any) -> int:
    code, out._obj.margin = facts.gpu(handle).number("temperature.tlimit")
    return code


def _fabric(facts: Facts, handle: Any, out: Any) -> int:
    gpu, info = facts.gpu(handle), out._obj
    code, state = gpu.word("fabric.state", _FABRIC_STATES)
    if code != SUCCESS:
        return code
    info.state = state
    info.status = SUCCESS if gpu.at("fabric.status") in (None, "N/A", "Success") else UNKNOWN
    for shift, place in enumerate(_FABRIC_HEALTH):
        bad = str(gpu.at("fabric." + place)).lower() in ("degraded", "true")
        info.health |= (1 if bad else 0) << 2 * shift
    wrong = str(gpu.at("fabric.incorrect_configuration")).lower()
    if wrong not in ("none", "n/a", "false"):
        info.health |= _FABRIC_CONFIGURATION.get(wrong, 15) << 8
    info.summary = _FABRIC_SUMMARIES.get(str(gpu.at("fabric.summary")).lower(), 0)
    return SUCCESS


def _inforom(facts: Facts, handle: Any) -> int:
    corrupt = "corrupt" in str(facts.gpu(handle).at("inforom_state"))
    return CORRUPTED_INFOROM if corrupt else SUCCESS


def _link_state(facts: Facts, handle: Any, link: int, out: Any) -> int:
    found = facts.links(handle).get(link)
    return INVALID_ARGUMENT if found is None else _put(out, (SUCCESS, int(found[0])))


def _link_errors(facts: Facts, handle: Any, link: int, counter: int, out: Any) -> int:
    found = facts.links(handle).get(link)
    recoveries = 1
    if found is None:
        return INVALID_ARGUMENT
    return _put(out, (SUCCESS, found[2] if counter == recoveries else 0))


def _ancestor(facts: Facts, one: Any, two: Any, out: Any) -> int:
    level = _LEVELS.get(facts.path(one, two))
    return NOT_SUPPORTED if level is None else _put(out, (SUCCESS, level))


def _p2p(facts: Facts, one: Any, two: Any, capability: int, out: Any) -> int:
    path = facts.path(one, two)
    if not path:
        return NOT_SUPPORTED
    linked = path.startswith("NV")
    if capability == nvml_types.P2P_NVLINK:
        return _put(out, (SUCCESS, 0 if linked else 5))
    return _put(out, (SUCCESS, 0)) if linked else NOT_SUPPORTED


def _bus(facts: Facts, handle: Any, out: Any) -> int:
    out._obj.bus_id = f"00000000:{facts.gpu(handle).index + 1:02X}:00.0".encode()
    return SUCCESS


def _mig(facts: Facts, handle: Any, index: Any, out: Any) -> int:
    gpu = facts.gpu(handle)
    wanted = int(getattr(index, "value", index))
    if wanted >= len(gpu.at("mig_parts") or ()):
        return 6  # NVML_ERROR_NOT_FOUND
    out._obj.value = gpu.index + 1  # its memory and name are not recorded apart
    return SUCCESS


_ANSWERS: Mapping[str, Callable[..., int]] = {
    "Init": Facts.init,
    "Shutdown": Facts.init,
    "SystemGetDriverVersion": lambda facts, out, _: facts.system_text("driver", out),
    "SystemGetCudaDriverVersion": Facts.cuda,
    "DeviceGetCount": Facts.count,
    "DeviceGetHandleByIndex": Facts.handle,
    "DeviceGetName": _name,
    "DeviceGetUUID": _uuid,
    "DeviceGetCudaComputeCapability": _capability,
    "DeviceGetMigMode": _pair("mig_current", "mig_pending"),
    "DeviceGetEccMode": _pair("ecc.mode", "ecc.pending"),
    "DeviceGetMemoryInfo": _memory,
    "DeviceGetUtilizationRates": _utilization,
    "DeviceGetTemperature": _temperature,
    "DeviceGetTemperatureThreshold": _threshold,
    "DeviceGetFanSpeed": _number("fan_speed"),
    "DeviceGetPowerUsage": _number("power.draw", "power.draw_average", factor=1000),
    "DeviceGetEnforcedPowerLimit": _number(
        "power.limit_enforced", "power.limit_current", "power.limit", factor=1000
    ),
    "DeviceGetPowerManagementDefaultLimit": _number("power.limit_default", factor=1000),
    "DeviceGetClockInfo": _clock({1: "clocks.sm", 2: "clocks.mem"}),
    "DeviceGetMaxClockInfo": _clock({1: "clocks.max_sm", 2: "clocks.max_mem"}),
    "DeviceGetCurrentClocksEventReasons": _throttle,
    "DeviceGetComputeMode": _word("compute_mode", _COMPUTE_MODES),
    "DeviceGetPersistenceMode": _word("persistence", _YES),
    "DeviceGetDisplayActive": _word("display_active", _YES),
    "DeviceGetVirtualizationMode": _word("virtualization", _VIRTUALIZATION),
    "DeviceGetAddressingMode": _addressing,
    "DeviceValidateInforom": _inforom,
    "DeviceGetTotalEccErrors": _ecc_errors,
    "DeviceGetRetiredPages": _retired,
    "DeviceGetRetiredPagesPendingStatus": _word("retired_pages.pending_page_blacklist", _YES),
    "DeviceGetRemappedRows": _remapped,
    "DeviceGetRowRemapperHistogram": _histogram,
    "DeviceGetSramEccErrorStatus": _sram,
    "DeviceGetCurrPcieLinkGeneration": _number("pcie.gen_current"),
    "DeviceGetMaxPcieLinkGeneration": _number("pcie.gen_max"),
    "DeviceGetGpuMaxPcieLinkGeneration": _number("pcie.gen_device_max"),
    "DeviceGetCurrPcieLinkWidth": _number("pcie.width_current"),
    "DeviceGetMaxPcieLinkWidth": _number("pcie.width_max"),
    "DeviceGetPcieReplayCounter": _number("pcie.replays"),
    "DeviceGetComputeRunningProcesses": _processes,
    "DeviceGetFieldValues": _field,
    "DeviceGetMarginTemperature": _margin,
    "DeviceGetGpuFabricInfoV": _fabric,
    "DeviceGetNvLinkState": _link_state,
    "DeviceGetNvLinkErrorCounter": _link_errors,
    "DeviceGetTopologyCommonAncestor": _ancestor,
    "DeviceGetP2PStatus": _p2p,
    "DeviceGetPciInfo": _bus,
    "DeviceGetMaxMigDeviceCount": lambda facts, handle, out: _put(
        out, (SUCCESS, len(facts.gpu(handle).at("mig_parts") or ()))
    ),
    "DeviceGetMigDeviceHandleByIndex": _mig,
}


class Cuda:
    """A libcuda that offers what the record's GPUs and their modes allow."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = record
        said = [str(gpu["cuda"]) for gpu in record["gpus"] if gpu.get("cuda")]
        self._said = said[0] if said else None  # such as "system not yet initialized (802)"

    def cuInit(self, _: Any) -> int:  # noqa: N802  the driver's own names
        if self._said is None:
            return SUCCESS
        code = re.search(r"\d+", self._said)
        return int(code[0]) if code else UNKNOWN

    def cuGetErrorString(self, _: int, out: Any) -> int:  # noqa: N802
        out._obj.value = str(self._said).encode()
        return SUCCESS

    def cuDriverGetVersion(self, out: Any) -> int:  # noqa: N802
        return Facts(self._record).cuda(out)

    def cuDeviceGetCount(self, out: Any) -> int:  # noqa: N802
        return _put(out, (SUCCESS, offered(self._record)))


def offered(record: Mapping[str, Any]) -> int:
    """How many devices CUDA offers one process: of GPUs in MIG mode one part in all."""
    alive = [gpu for gpu in record["gpus"] if "state" not in gpu]
    cut = [gpu for gpu in alive if str(gpu.get("mig_current")).lower() == "enabled"]
    if cut:  # a record that does not list the parts is of a machine that has some
        return 1 if any(gpu.get("mig_parts", True) for gpu in cut) else len(alive) - len(cut)
    return len(alive)


class Recorded(Machine):
    """A machine of the corpus, as the suite's checks ask it."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.recorded = str(record.get("recorded") or "a record")
        self._libraries = {"libnvidia-ml.so.1": Facts(record), "libcuda.so.1": Cuda(record)}
        self._record = record
        self._state: State | None = None

    def load(self, name: str) -> Any:
        return self._libraries[name]

    def state(self) -> State:
        if self._state is None:  # facts do not change from reading to reading
            self._state = super().state()
        return self._state

    def pause(self, seconds: float) -> None:
        pass

    def nodes(self) -> list[str]:
        return [f"/dev/nvidia{i}" for i, _ in enumerate(self._record["gpus"])]

    def pci(self) -> tuple[PciGpu, ...]:
        """Every GPU, in a port of which nothing was recorded."""
        return tuple(
            PciGpu(
                f"0000:{place + 1:02x}:00.0",
                "0x030000",
                str((gpu.get("pcie") or {}).get("device_id") or gpu["name"]),
                "nvidia",
            )
            for place, gpu in enumerate(self._record["gpus"])
        )

    def is_closed(self, _: PciGpu) -> bool:
        return False

    def environ(self) -> Mapping[str, str]:
        return {}

    def log(self) -> Log:
        return Log(error="not recorded")

    def libcuda(self) -> str | None:
        driver = self._record.get("driver")
        return f"/usr/lib/libcuda.so.{driver}" if driver else None

    def kernel_module(self) -> str | None:
        return self._record.get("driver")
