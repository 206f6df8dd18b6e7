"""Why a card is slow: heat, power, clocks and links as NVML showed them under the load."""

from __future__ import annotations

import json
import pkgutil
from typing import Any, List, Optional, Tuple

from verify.checks.health.condition import is_laptop
from verify.device.telemetry import GpuState
from verify.model.check import NODE

# (throttle reasons, cause, fix, what is at fault); the first that applies is reported
_THROTTLED = (
    (
        ("hw_thermal_slowdown", "sw_thermal_slowdown"),
        "it throttles because of heat{heat}",
        "look at fans, dust and air flow, and at nvidia-smi -q -d TEMPERATURE",
        NODE,
    ),
    (
        ("hw_power_brake_slowdown",),
        "the machine's power supply limits it",
        "look at the power supplies and the machine's own power cap (BMC)",
        NODE,
    ),
    (
        ("hw_slowdown",),
        "its hardware slows it down (heat or power)",
        "look at nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE on the host",
        NODE,
    ),
    (
        ("applications_clocks_setting", "sync_boost", "display_clock_setting"),
        "a setting limits its clocks{clock}",
        "on the host: run nvidia-smi -rac and nvidia-smi -rgc to reset the clocks",
        None,
    ),
)
_SLOT = "reseat the card, or use a slot with more lanes; check the riser"
LOW_CLOCK = 0.7  # of the highest clock: lower than boost clocks fall under full load
STUCK_CLOCK = 0.4  # of the highest clock: without a reason, no healthy card is so low under load
LOWERED = 0.9  # of the default power limit: below this a user has lowered it


def why_slow(metric: str, state: Optional[GpuState]) -> Tuple[str, str, Optional[str]]:
    """What NVML showed under the load, what to do about it, and NODE if that is heat, the power
    supply or the PCIe link; else None: a setting, other processes or the image may be at fault.
    """
    if state is None:
        cause = "unknown: NVML reports nothing for this GPU"
        return cause, "look at nvidia-smi -q on the host", None
    if metric.endswith("pinned"):
        return _why_slow_link(state)
    for reasons, cause, fix, whose in _THROTTLED:
        if set(reasons) & set(state.throttle_reasons or ()):
            return cause.format(heat=_heat(state), clock=_clock(state)), fix, whose
    return (*_other_reason(metric, state), None)


def _other_reason(metric: str, state: GpuState) -> Tuple[str, str]:
    """The cause and the fix if no throttle reason says it alone."""
    others = len(state.processes or ()) - 1
    capped = "sw_power_cap" in (state.throttle_reasons or ())
    limit, usual = state.power_limit_w or 0, state.power_limit_default_w or 0
    if others > 0:
        cause = "{} other process{} on this GPU".format(others, "" if others == 1 else "es")
        return cause, "end them (nvidia-smi lists them) and run again"
    if metric == "memory_copy" and _low(state.clock_memory_mhz, state.clock_memory_max_mhz):
        cause = "its memory's clock is {} of {} MHz"
        found = cause.format(state.clock_memory_mhz, state.clock_memory_max_mhz)
        return found, "on the host: run nvidia-smi -rmc to reset it"
    if capped and lowered(state):
        cause = "its power limit was set to {:.0f} W of {:.0f} W".format(limit, usual)
        return cause, "on the host: nvidia-smi -pl {:.0f}".format(usual)
    if capped:
        cause = "its power limit of {:.0f} W limits it".format(limit)
        return cause, "compare with the default: nvidia-smi -q -d POWER; nvidia-smi -pl sets it"
    if _low(state.clock_sm_mhz, state.clock_sm_max_mhz):
        return why_low(state)[:2]
    if metric == "memory_copy" and state.ecc_enabled:
        cause = "ECC is on, which reduces the bandwidth of GDDR memory, but not this much"
        return cause, "run again with nothing else on the machine; see health.memory"
    cause = "NVML gives no reason: clocks, temperature and power are normal"
    again = "run again with nothing else on the machine; if it is still slow, have the card checked"
    return cause, again


def is_stuck(state: GpuState) -> bool:
    """Whether a whole GPU keeps a very low clock under load, and NVML gives no reason at all."""
    part = state.mig or state.virtualization == "vgpu" or is_laptop(state)
    known = state.throttle_reasons == () and state.clock_sm_mhz and state.clock_sm_max_mhz
    if part or not known:
        return False
    return (state.clock_sm_mhz or 0) < STUCK_CLOCK * (state.clock_sm_max_mhz or 0)


def why_low(state: GpuState) -> Tuple[str, str, Optional[str]]:
    """The cause of a clock that is low without a reason from NVML: a known fault of the model."""
    cause = "its clock stays low{}, and NVML gives no reason".format(_clock(state))
    for row in _known_faults():
        low = (state.clock_sm_mhz or 0) < row["below_mhz"] and (state.power_w or 0) < row["below_w"]
        if low and row["name"] in (state.name or ""):
            return "{}: {}".format(cause, row["cause"]), row["fix"], NODE
    fix = "on the host: run nvidia-smi -rgc to reset the clocks; check its kernel log"
    return cause, fix + " and its power supply", None


def _known_faults() -> List[Any]:
    data = pkgutil.get_data("verify.checks.speed", "stuck_clocks.json")
    found: List[Any] = json.loads(data or b"[]")
    return found


def _why_slow_link(state: GpuState) -> Tuple[str, str, Optional[str]]:
    for now, most, said in (
        (state.pcie_width, state.pcie_width_max, "PCIe x{} of x{}"),
        (state.pcie_generation, state.pcie_generation_max, "PCIe {}.0 of {}.0 under load"),
    ):
        if now is not None and most is not None and now < most:
            return said.format(now, most), _SLOT, NODE
    cause = "the link is normal: the host's memory is on another socket, slow or shared"
    fix = "run on the GPU's own socket (nvidia-smi topo -m): numactl --cpunodebind --membind"
    return cause, fix, None


def _low(now: Optional[int], most: Optional[int]) -> bool:
    return bool(now and most and now < LOW_CLOCK * most)


def _heat(state: GpuState) -> str:
    return " ({} degrees)".format(state.temperature_c) if state.temperature_c is not None else ""


def _clock(state: GpuState) -> str:
    if not (state.clock_sm_mhz and state.clock_sm_max_mhz):
        return ""
    return " ({} of {} MHz)".format(state.clock_sm_mhz, state.clock_sm_max_mhz)


def lowered(state: GpuState) -> bool:
    limit, usual = state.power_limit_w, state.power_limit_default_w
    return limit is not None and usual is not None and limit < LOWERED * usual
