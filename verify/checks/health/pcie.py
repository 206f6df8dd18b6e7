"""How wide and fast each GPU's PCIe link is, compared with its twins and its maximum."""

from __future__ import annotations

from typing import List, Optional, Sequence

from verify.checks.health.condition import is_laptop
from verify.checks.health.findings import Finding, judged, outcome, spans
from verify.device.telemetry import GpuState, State
from verify.model.check import Context, Outcome, Status, gpus
from verify.model.measures import Table, pack

# GB/s of one PCIe lane in one direction, by generation: transfers a second x coding / 8 (PCI-SIG).
PCIE_LANE_GBS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
BUSY_PERCENT = 50  # from this load on a card runs its link at full speed


def check_pcie(context: Context) -> Outcome:
    """Read the current state of each GPU's PCIe link."""
    return judge_pcie(context.machine.seen())


def judge_pcie(seen: State) -> Outcome:
    """Whether GPUs of one kind have equal links, at full speed under load.

    NVML's maximum is unreliable: it is the slot's, or x16 for a card with 8 lanes (RTX 4060),
    boards share a slot's lanes (A16), and desktops split them. So a narrow link is reported, and is
    a fault only if most of a machine's equal GPUs have more lanes, or if only one or two lanes are
    left. An idle card's link runs at a lower generation.
    """
    return judged(seen, _judge_pcie)


def _judge_pcie(seen: State) -> Outcome:
    known = [gpu for gpu in seen.gpus if gpu.pcie_width is not None]
    if not known:
        return Outcome(Status.SKIP, "the driver reports no PCIe link (a virtual or built-in GPU)")
    words = sorted({"{}.0 x{}".format(g.pcie_generation_max or "?", g.pcie_width) for g in known})
    low = [g.index for g in known if _below(g.pcie_generation, g.pcie_generation_max)]
    narrow = [g.index for g in known if _below(g.pcie_width, g.pcie_width_max)]
    message = "PCIe {}, {}".format(", ".join(words), gpus(len(known)))
    if narrow:
        message += "; fewer lanes than the slot or card may have: GPU {}".format(spans(narrow))
    if low:
        message += "; idle, so at a lower speed now: GPU {}".format(spans(low))
    findings = [found for gpu in known for found in _pcie_findings(gpu, known)]
    return outcome(findings, message, pack(tables=[_pcie_table(known)]), {})


def _pcie_findings(gpu: GpuState, known: Sequence[GpuState]) -> List[Finding]:
    width, speed = _starved(gpu) or _narrower_than_its_twins(gpu, known), _speed_fault(gpu)
    if width:
        cause = "the slot or riser has fewer lanes, is not seated well, or is bifurcated"
        fix = "reseat the card; move it to a full slot; check bifurcation in the BIOS"
        return [Finding(gpu.index, width, cause, fix)]
    if speed:
        cause = "the link was trained at a lower speed: a riser, a cable or a BIOS setting"
        fix = "reseat the card; set the slot's PCIe speed to the card's in the BIOS"
        return [Finding(gpu.index, speed, cause, fix)]
    return []


def width_fault(gpu: GpuState) -> Optional[str]:
    """Words on a link that has fewer lanes than NVML's maximum for it; else None."""
    if not _below(gpu.pcie_width, gpu.pcie_width_max):
        return None
    return "PCIe x{} of x{}".format(gpu.pcie_width, gpu.pcie_width_max)


def _starved(gpu: GpuState) -> Optional[str]:
    """Words on a card with one or two lanes that could have eight or more: it is on a riser or in
    the wrong slot. Four are usual (A16, a Thunderbolt or OCuLink box), and work.
    """
    starved = (gpu.pcie_width or 8) <= 2 and (gpu.pcie_width_max or 0) >= 8 and not gpu.c2c_links
    return width_fault(gpu) if starved else None


def _narrower_than_its_twins(gpu: GpuState, known: Sequence[GpuState]) -> Optional[str]:
    """The words for a GPU with fewer lanes than most of its kind in this machine, else None."""
    widths = [other.pcie_width or 0 for other in known if other.name == gpu.name]
    usual = max(set(widths), key=lambda width: (widths.count(width), width), default=0)
    most = widths.count(usual) > len(widths) / 2 and len(widths) > 2
    if not (most and _below(gpu.pcie_width, usual)):
        return None
    return "PCIe x{}, others of the same model have x{}".format(gpu.pcie_width, usual)


def _speed_fault(gpu: GpuState) -> Optional[str]:
    load = gpu.utilization_percent or 0
    if load < BUSY_PERCENT or not _below(gpu.pcie_generation, gpu.pcie_generation_max):
        return None
    if is_laptop(gpu) or gpu.virtualization not in (None, "none"):
        return None
    said = "PCIe {}.0 of {}.0 although it is {} % busy"
    return said.format(gpu.pcie_generation, gpu.pcie_generation_max, load)


def _below(now: Optional[int], best: Optional[int]) -> bool:
    return now is not None and best is not None and now < best


def _pcie_table(known: Sequence[GpuState]) -> Table:
    columns = ("GPU", "bus id", "PCIe now", "at most", "lanes now", "at most", "replays")
    rows = [
        (
            gpu.index,
            gpu.bus_id,
            gpu.pcie_generation,
            gpu.pcie_generation_max,
            gpu.pcie_width,
            gpu.pcie_width_max,
            gpu.pcie_replays,
        )
        for gpu in known
    ]
    return Table("PCIe links", columns, tuple(rows))
