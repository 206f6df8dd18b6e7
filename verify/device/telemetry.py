"""What NVML measures of each GPU: memory, load, heat, clocks, errors, links. Values only.

Each field is None where the driver does not report it (an older driver, a GPU without the feature).
Units are in the names; bytes are bytes, GB/s powers of ten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU. Its pid is the host's, also in a container."""

    pid: int
    used_bytes: Optional[int] = None


@dataclass(frozen=True)
class Mig:
    """One MIG device of a GPU in MIG mode."""

    uuid: Optional[str] = None
    name: Optional[str] = None
    memory_bytes: Optional[int] = None


@dataclass(frozen=True)
class NvLink:
    """One NVLink of a GPU."""

    link: int
    active: Optional[bool] = None
    errors: Optional[int] = None  # replays, recoveries and CRC errors together
    gbs: Optional[float] = None  # GB/s in one direction, as the driver states it
    far: Optional[str] = None  # what it ends at: gpu, npu (of POWER9), switch, unknown
    far_bus_id: Optional[str] = None


@dataclass(frozen=True)
class GpuState:
    """One GPU now."""

    index: int
    name: Optional[str] = None
    uuid: Optional[str] = None
    compute_capability: Optional[str] = None
    bus_id: Optional[str] = None
    mig: Optional[bool] = None
    mig_devices: Optional[Tuple[Mig, ...]] = ()
    memory_total_bytes: Optional[int] = None
    memory_used_bytes: Optional[int] = None
    processes: Optional[Tuple[GpuProcess, ...]] = None
    utilization_percent: Optional[int] = None
    memory_utilization_percent: Optional[int] = None
    temperature_c: Optional[int] = None
    fans_percent: Optional[Tuple[int, ...]] = None  # what the fans are told to do
    slowdown_c: Optional[int] = None  # the temperature at which the card slows itself down
    slowdown_margin_c: Optional[int] = None  # degrees left until then, if the card reports it
    power_w: Optional[float] = None
    power_limit_w: Optional[float] = None
    power_limit_default_w: Optional[float] = None
    clock_sm_mhz: Optional[int] = None
    clock_sm_max_mhz: Optional[int] = None
    clock_memory_mhz: Optional[int] = None
    clock_memory_max_mhz: Optional[int] = None
    throttle_reasons: Optional[Tuple[str, ...]] = None  # names, as nvidia-smi spells them
    persistence: Optional[bool] = None
    virtualization: Optional[str] = None  # none, passthrough, vgpu, host-vgpu, host-vsga
    license: Optional[str] = None  # of a virtual GPU: licensed, unlicensed (unrestricted), ...
    addressing: Optional[str] = None  # none, hmm, ats (a GPU that shares the CPU's memory)
    display: Optional[bool] = None  # this GPU drives a display
    recovery: Optional[str] = None  # the action that NVML asks for, or "none"
    inforom_corrupt: Optional[bool] = None
    compute_mode: Optional[str] = None  # default, exclusive-process, prohibited
    ecc_enabled: Optional[bool] = None
    ecc_corrected: Optional[int] = None  # since the driver was loaded
    ecc_uncorrected: Optional[int] = None
    ecc_uncorrected_ever: Optional[int] = None
    retired_pages: Optional[int] = None
    retired_pending: Optional[bool] = None
    remapped_rows: Optional[int] = None  # uncorrectable ones
    remap_pending: Optional[bool] = None
    remap_failed: Optional[bool] = None
    # banks of memory by spare rows left: all, most, some, one, none
    spare_rows: Optional[Tuple[int, ...]] = None
    sram_uncorrected: Optional[int] = None  # since the driver was loaded; part of ecc_uncorrected
    sram_threshold_exceeded: Optional[bool] = None
    pcie_generation: Optional[int] = None
    pcie_generation_max: Optional[int] = None  # of this card in this slot
    pcie_generation_card: Optional[int] = None  # of this card in any slot
    pcie_replays: Optional[int] = None  # since the driver was loaded
    c2c_links: Optional[int] = None  # to the CPU of the same module (GH200, GB200)
    c2c_gbs: Optional[float] = None  # GB/s of all of them in one direction
    pcie_width: Optional[int] = None
    pcie_width_max: Optional[int] = None
    nvlinks: Tuple[NvLink, ...] = ()
    fabric_state: Optional[str] = None  # not-supported, not-started, in-progress, completed
    fabric_status: Optional[str] = None  # NVML's own text for the result, if it failed
    fabric_health: Tuple[str, ...] = ()  # faults that the fabric reports for this GPU
    failure: Optional[str] = None  # NVML's message for a GPU that is lost or must be reset
    refused: Tuple[Tuple[str, int], ...] = ()  # NVML's functions that failed, with their errors

    def links_to(self, other: "GpuState") -> int:
        """The NVLinks that are up and end at another GPU."""
        ends = [link.far_bus_id for link in self.nvlinks if link.active]
        return ends.count(other.bus_id) if other.bus_id else 0


@dataclass(frozen=True)
class Pair:
    """How two GPUs are connected. `path` is as in `nvidia-smi topo -m`: NV4, PIX, PHB, SYS.

    "NV" without a number is NVLink where the driver does not report the number of links.
    """

    first: int
    second: int
    path: Optional[str] = None
    can_read: Optional[str] = None  # "ok", or NVML's reason why not
    can_write: Optional[str] = None


@dataclass(frozen=True)
class State:
    """Every GPU and every pair. `error` says why nothing could be read."""

    driver: Optional[str] = None
    gpus: Tuple[GpuState, ...] = ()
    pairs: Tuple[Pair, ...] = ()
    error: Optional[str] = None
    found: bool = False  # whether the library exists at all
    problems: Tuple[str, ...] = ()  # NVML's errors for values that it did not report
    confidential: Optional[bool] = None  # whether confidential computing is on
