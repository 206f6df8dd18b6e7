"""How wide and fast each GPU's PCIe link is, compared with what the card and its port can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Optional, Sequence, Tuple

from verify.checks.health.condition import is_laptop
from verify.checks.health.findings import Finding, judged, outcome, spans
from verify.device.pci import PciGpu, bus_address
from verify.device.telemetry import GpuState, State
from verify.model.check import Context, Outcome, Status, gpus
from verify.model.measures import Table, pack

# GB/s of one PCIe lane in one direction, by generation: transfers a second x coding / 8 (PCI-SIG).
PCIE_LANE_GBS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
NATIVE = (None, "none")  # no virtual machine, or not known
BUSY_PERCENT = 50  # from this load on a card runs its link at full speed


def check_pcie(context: Context) -> Outcome:
    """Read the current state of each GPU's PCIe link."""
    return judge_pcie(context.machine.seen(), context.machine.pci())


def judge_pcie(seen: State, pci: Optional[Sequence[PciGpu]] = None) -> Outcome:
    """Whether each link has the lanes and the speed that both its ends can have.

    Slots differ (x16/x16/x8 boards, one lane for a riser), and NVML's maximum is the card's or the
    slot's. So few lanes are a fault only if the card and the port above it, by the kernel, can have
    more, and most equal GPUs have or this one is busy. An idle link runs at a lower generation.
    """
    on_bus = {card.address: card for card in pci or ()}
    return judged(seen, lambda found: _judge_pcie(found, on_bus))


def _judge_pcie(seen: State, on_bus: Dict[str, PciGpu]) -> Outcome:
    known = [gpu for gpu in seen.gpus if gpu.pcie_width is not None]
    cards = {gpu.index: _card(gpu, on_bus) for gpu in known}
    if not known:
        return Outcome(Status.SKIP, "the driver reports no PCIe link (a virtual or built-in GPU)")
    words = sorted({"{}.0 x{}".format(g.pcie_generation_max or "?", g.pcie_width) for g in known})
    low = [g for g in known if _below(g.pcie_generation, g.pcie_generation_max)]
    busy = [g.index for g in low if (g.utilization_percent or 0) >= BUSY_PERCENT]
    idle = [g.index for g in low if g.index not in busy]
    narrow = [g.index for g in known if _is_narrow(g, cards[g.index])]
    slots = [g.index for g in known if _has_narrow_slot(g, cards[g.index])]
    message = "PCIe {}, {}".format(", ".join(words), gpus(len(known)))
    if narrow:
        message += "; fewer lanes than the slot or card may have: GPU {}".format(spans(narrow))
    if slots:
        message += "; all lanes of a slot that has fewer than the card: GPU {}".format(spans(slots))
    for why, gpus_ in (("idle, so", idle), ("busy, yet", busy)):
        message += "; {} at a lower speed now: GPU {}".format(why, spans(gpus_)) if gpus_ else ""
    findings = [found for gpu in known for found in _pcie_findings(gpu, cards[gpu.index], known)]
    return outcome(findings, message, pack(tables=[_pcie_table(known, cards)]), {})


def _card(gpu: GpuState, on_bus: Dict[str, PciGpu]) -> PciGpu:
    """The GPU as the kernel sees it, if its port is a real one that uses all of its lanes."""
    card = on_bus.get(bus_address(gpu.bus_id or ""), PciGpu(""))
    invented = _below(card.port_width_max, gpu.pcie_width) or gpu.virtualization not in NATIVE
    if is_laptop(gpu) or invented or gpu.c2c_links:
        return replace(card, port_width_max=None, port_generation_max=None)
    return card


def _lanes(card: PciGpu) -> Optional[int]:
    """What both ends of the link have."""
    known = card.width_max and card.port_width_max
    return min(card.width_max or 0, card.port_width_max or 0) if known else None


def _is_narrow(gpu: GpuState, card: PciGpu) -> bool:
    return _below(gpu.pcie_width, _lanes(card) or gpu.pcie_width_max)


def _has_narrow_slot(gpu: GpuState, card: PciGpu) -> bool:
    return _below(_lanes(card), card.width_max) and not _is_narrow(gpu, card)


def _pcie_findings(gpu: GpuState, card: PciGpu, known: Sequence[GpuState]) -> List[Finding]:
    width, speed = _width_fault(gpu, card, known), _speed_fault(gpu, card)
    if width:
        cause = "the link came up with some of its lanes: a contact, a riser or a lane is bad"
        fix = "reseat the card and its riser, and clean the contacts; try another slot"
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


def _width_fault(gpu: GpuState, card: PciGpu, known: Sequence[GpuState]) -> Optional[str]:
    """The words for a link with fewer lanes than both its ends.

    One lane is usually a riser's, and equal GPUs that are all so share a board's switch (A16).
    """
    lanes = _lanes(card)
    if not _below(gpu.pcie_width, lanes):
        return None
    twins = [other for other in known if other.name == gpu.name and other.index != gpu.index]
    wider = sum(_below(gpu.pcie_width, other.pcie_width) for other in twins)
    busy = (gpu.utilization_percent or 0) >= BUSY_PERCENT and gpu.pcie_width != 1
    if not (2 * wider > len(twins) or (busy and (wider or not twins))):
        return None
    return "PCIe x{}, although the card and its port have x{}".format(gpu.pcie_width, lanes)


def _speed_fault(gpu: GpuState, card: PciGpu) -> Optional[str]:
    load = gpu.utilization_percent or 0
    ends = (gpu.pcie_generation_max, card.generation_max, card.port_generation_max)
    best = min((end for end in ends if end), default=None)
    if load < BUSY_PERCENT or not _below(gpu.pcie_generation, best):
        return None
    if is_laptop(gpu) or gpu.virtualization not in NATIVE or gpu.pcie_width == 1:
        return None  # a riser's one lane is as fast as the BIOS of such boards sets it
    said = "PCIe {}.0 of {}.0 although it is {} % busy"
    return said.format(gpu.pcie_generation, best, load)


def _below(now: Optional[int], best: Optional[int]) -> bool:
    return now is not None and best is not None and now < best


def _pcie_table(known: Sequence[GpuState], cards: Dict[int, PciGpu]) -> Table:
    columns: Tuple[str, ...] = ("GPU", "bus id", "PCIe now", "at most", "its port")
    columns += ("lanes now", "at most", "its port", "replays")
    rows = [
        (
            gpu.index,
            gpu.bus_id,
            gpu.pcie_generation,
            gpu.pcie_generation_max,
            cards[gpu.index].port_generation_max,
            gpu.pcie_width,
            gpu.pcie_width_max,
            cards[gpu.index].port_width_max,
            gpu.pcie_replays,
        )
        for gpu in known
    ]
    return Table("PCIe links", columns, tuple(rows))
