"""Why a card is slow: heat, power, clocks and links as NVML showed them under the load."""

from __future__ import annotations

from typing import Optional, Tuple

from verify.device.telemetry import GpuState
from verify.model.check import NODE

# (throttle reason, cause, fix); the first that applies is reported
_THROTTLED = (
    (
        ("hw_thermal_slowdown", "sw_thermal_slowdown"),
        "it throttles because of heat{heat}",
        "look at fans, dust and air flow, and at nvidia-smi -q -d TEMPERATURE",
    ),
    (
        ("hw_power_brake_slowdown",),
        "the machine's power supply limits it",
        "look at the power supplies and the machine's own power cap (BMC)",
    ),
    (
        ("hw_slowdown",),
        "its hardware slows it down (heat or power)",
        "look at nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE on the host",
    ),
    (
        ("applications_clocks_setting", "sync_boost", "display_clock_setting"),
        "a setting limits its clocks{clock}",
        "on the host: run nvidia-smi -rac and nvidia-smi -rgc to reset the clocks",
    ),
)
LOW_CLOCK = 0.7  # of the highest clock: lower than boost clocks fall under full load
LOWERED = 0.9  # of the default power limit: below this a user has lowered it


def of_node(metric: str, state: Optional[GpuState]) -> Optional[str]:
    """NODE if NVML showed heat, its power supply or its PCIe link as the reason; else None: a
    setting, other processes or the image may be it.
    """
    if state is None:
        return None
    if metric.endswith("pinned"):
        narrow = _below(state.pcie_width, state.pcie_width_max)
        return NODE if narrow or _below(state.pcie_generation, state.pcie_generation_max) else None
    damage = {reason for reasons, *_ in _THROTTLED[:-1] for reason in reasons}
    return NODE if damage & set(state.throttle_reasons or ()) else None


def why_slow(metric: str, state: Optional[GpuState]) -> Tuple[str, str]:
    """What NVML showed under the load, and what to do about it."""
    if state is None:
        return "unknown: NVML reports nothing for this GPU", "look at nvidia-smi -q on the host"
    if metric.endswith("pinned"):
        return _why_slow_link(state)
    for reasons, cause, fix in _THROTTLED:
        if set(reasons) & set(state.throttle_reasons or ()):
            return cause.format(heat=_heat(state), clock=_clock(state)), fix
    others = len(state.processes or ()) - 1
    if others > 0:
        cause = "{} other process{} on this GPU".format(others, "" if others == 1 else "es")
        return cause, "end them (nvidia-smi lists them) and run again"
    if metric == "memory_copy" and _low(state.clock_memory_mhz, state.clock_memory_max_mhz):
        cause = "its memory's clock is {} of {} MHz".format(
            state.clock_memory_mhz, state.clock_memory_max_mhz
        )
        return cause, "on the host: run nvidia-smi -rmc to reset it"
    if "sw_power_cap" in (state.throttle_reasons or ()) and lowered(state):
        usual = state.power_limit_default_w or 0
        cause = "its power limit was set to {:.0f} W of {:.0f} W".format(
            state.power_limit_w or 0, usual
        )
        return cause, "on the host: nvidia-smi -pl {:.0f}".format(usual)
    if "sw_power_cap" in (state.throttle_reasons or ()):
        cause = "its power limit of {:.0f} W limits it".format(state.power_limit_w or 0)
        return cause, "compare with the default: nvidia-smi -q -d POWER; nvidia-smi -pl sets it"
    if _low(state.clock_sm_mhz, state.clock_sm_max_mhz):
        cause = "its clock stays low{}, and NVML gives no reason".format(_clock(state))
        return cause, "on the host: run nvidia-smi -rgc to reset the clocks; check its kernel log"
    if metric == "memory_copy" and state.ecc_enabled:
        cause = "ECC is on, which reduces the bandwidth of GDDR memory, but not this much"
        return cause, "run again with nothing else on the machine; see health.memory"
    cause = "NVML gives no reason: clocks, temperature and power are normal"
    return (
        cause,
        "run again with nothing else on the machine; if it is still slow, have the card checked",
    )


def _why_slow_link(state: GpuState) -> Tuple[str, str]:
    slot = "reseat the card, or use a slot with more lanes; check the riser"
    if _below(state.pcie_width, state.pcie_width_max):
        return "PCIe x{} of x{}".format(state.pcie_width, state.pcie_width_max), slot
    if _below(state.pcie_generation, state.pcie_generation_max):
        cause = "PCIe {}.0 of {}.0 under load".format(
            state.pcie_generation, state.pcie_generation_max
        )
        return cause, slot
    cause = "the link is normal: the host's memory is on another socket, slow or shared"
    return (
        cause,
        "run on the GPU's own socket (nvidia-smi topo -m): numactl --cpunodebind --membind",
    )


def _low(now: Optional[int], most: Optional[int]) -> bool:
    return bool(now and most and now < LOW_CLOCK * most)


def _heat(state: GpuState) -> str:
    return " ({} degrees)".format(state.temperature_c) if state.temperature_c is not None else ""


def _clock(state: GpuState) -> str:
    if not (state.clock_sm_mhz and state.clock_sm_max_mhz):
        return ""
    return " ({} of {} MHz)".format(state.clock_sm_mhz, state.clock_sm_max_mhz)


def _below(now: Optional[int], most: Optional[int]) -> bool:
    return now is not None and most is not None and now < most


def lowered(state: GpuState) -> bool:
    limit, usual = state.power_limit_w, state.power_limit_default_w
    return limit is not None and usual is not None and limit < LOWERED * usual
