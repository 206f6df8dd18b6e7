"""Links: what PCIe, NVLink and peer access between the GPUs can do and do, by NVML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.checks.health import Finding, is_laptop, judged, outcome, spans
from verify.core import Check, Context, Outcome, Status, gpus
from verify.measures import Table, pack
from verify.telemetry import GpuState, NvLink, Pair, State

# GB/s of one PCIe lane in one direction, by generation: transfers a second x coding / 8 (PCI-SIG).
PCIE_LANE_GBS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
# GB/s of one NVLink in one direction, by compute capability. NVIDIA's pages state both directions
# together: P100 (40), V100, A100 and H100 (50), B200 (100); cards with bridges by their data sheets
# (Turing 100 over 2 links, GA102 112.5 over 4). nvmlDeviceGetNvLinkVersion cannot be used for this:
# drivers answer with the kernel's numbers, which differ from nvml.h's.
NVLINK_GBS = {
    "6": 20.0,
    "7.0": 25.0,
    "7.5": 25.0,
    "8.0": 25.0,
    "8.6": 14.0625,
    "9": 25.0,
    "10": 50.0,
}
# The least share of a link that messages of 64 MiB and more must reach, far below what sound
# machines do: over NVLink 0.5 at 32 MiB (8 A100) and 0.86 at 100 MB (8 H100), through the host 0.43
# and more of a slot (8 RTX 4090, 4 V100), all in tests/data/verify/recorded/rates.json; through a
# switch 0.6. Nothing is published for B200 at this size.
LEAST_SHARE = {"nvlink": 0.3, "switch": 0.25, "host": 0.05}
BUSY_PERCENT = 50  # from here a card has its link at full speed
# The counters run since the driver was loaded, so that only their growth says something. DCGM calls
# a link bad from 100 CRC errors within a second (DCGM_LIMIT_MAX_NVLINK_CRC_ERROR).
NVLINK_ERRORS = 100
MANY_LINKS = 12  # of a machine: enough that one with errors beside others without is no chance
APART_S = 1.0
# Boards by their names. The SXM boards of H100, H200 and later do not have SXM in their names.
WIRED = re.compile(r"SXM|HBM3|\b(H800|H200|H20|GH200|G?B[23]00)\b")
BRIDGED = re.compile(r"PCIe|NVL$")  # H100 PCIe, H100 NVL, H200 NVL: bridges join two or four
SWITCHED = re.compile(r"\bG?B[23]00\b")  # sold on boards and in racks with NVSwitches only
_SWITCHED = ("PIX", "PXB")


@dataclass(frozen=True)
class Link:
    """The slowest way between two GPUs of a machine; GB/s in one direction."""

    words: str
    gbs: float
    share: float  # large messages that reach less of it are a finding
    nvlink: bool = False


def slowest_link(seen: State, size: int) -> Optional[Link]:
    """What limits a ring through so many GPUs; None where that cannot be told.

    NVLink counts where it joins every pair. Else some hop goes over PCIe.
    """
    paths = [pair.path or "" for pair in seen.pairs]
    known = len(seen.gpus) == size > 1 and len(_pairs(seen)) == size * (size - 1) // 2
    if not known or not all(paths) or any(gpu.mig for gpu in seen.gpus):
        return None
    if all(path.startswith("NV") for path in paths):
        return _nvlink(seen, paths)
    return _pcie(seen, paths)


def _pairs(seen: State) -> "set[Tuple[int, int]]":
    return {(min(p.first, p.second), max(p.first, p.second)) for p in seen.pairs}


def _nvlink(seen: State, paths: Sequence[str]) -> Optional[Link]:
    """By the bonded links of a pair, 4 of "NV4"; a plain "NV" does not tell their number."""
    speeds = [link_gbs(gpu, one) for gpu in seen.gpus for one in gpu.nvlinks if one.active]
    counts = [int(path[2:]) for path in paths if path[2:].isdigit()]
    known = [speed for speed in speeds if speed]
    if not known or len(known) < len(speeds) or len(counts) < len(paths):
        return None
    count = min(counts)
    words = "NVLink ({} link{} a pair)".format(count, "" if count == 1 else "s")
    return Link(words, min(known) * count, LEAST_SHARE["nvlink"], nvlink=True)


def link_gbs(gpu: GpuState, link: NvLink) -> Optional[float]:
    """GB/s of one NVLink in one direction: as the driver states it, else by the kind of GPU."""
    capability = gpu.compute_capability or ""
    known = NVLINK_GBS.get(capability) or NVLINK_GBS.get(capability.partition(".")[0])
    return link.gbs or known


def _pcie(seen: State, paths: Sequence[str]) -> Optional[Link]:
    best = [(gpu.pcie_generation_max, gpu.pcie_width) for gpu in seen.gpus]
    rated = [
        (PCIE_LANE_GBS[generation] * width, generation, width)
        for generation, width in best
        if generation in PCIE_LANE_GBS and width
    ]
    if len(rated) < len(seen.gpus):
        return None
    gbs, generation, width = min(rated)
    direct = all(p.can_read == "ok" for p in seen.pairs) and set(paths) <= set(_SWITCHED)
    way = "switch" if direct else "host"
    words = "PCIe {}.0 x{} through {}".format(
        generation, width, "a PCIe switch" if direct else "the host"
    )
    return Link(words, gbs, LEAST_SHARE[way])


def _numbers(found: Sequence[int]) -> str:
    return spans(found)


# PCIe


def check_pcie(context: Context) -> Outcome:
    """Ask for each GPU's PCIe link as it is now."""
    return judge_pcie(context.machine.seen())


def judge_pcie(seen: State) -> Outcome:
    """Whether GPUs of one kind have equal links, at full speed where they work.

    NVML's maximum says little: it is that of the slot, or x16 for a card with 8 lanes (RTX 4060),
    boards share a slot's lanes (A16), and desktops split them. So a narrow link is reported, and a
    fault only where most of a machine's equal GPUs have more lanes, or where one or two are left.
    An idle card's link runs at a lower generation.
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
        message += "; fewer lanes than the slot or card may have: GPU {}".format(_numbers(narrow))
    if low:
        message += "; idle, so at a lower speed now: GPU {}".format(_numbers(low))
    findings = [found for gpu in known for found in _pcie_findings(gpu, known)]
    return outcome(findings, message, pack(tables=[_pcie_table(known)]), {})


def _pcie_findings(gpu: GpuState, known: Sequence[GpuState]) -> List[Finding]:
    width, speed = _starved(gpu) or _narrower_than_its_twins(gpu, known), _speed_fault(gpu)
    if width:
        cause = "the slot or riser is wired or seated with fewer lanes, or splits them"
        fix = "reseat the card; move it to a full slot; look at bifurcation in the BIOS"
        return [Finding(gpu.index, width, cause, fix)]
    if speed:
        cause = "the link was trained at a lower speed: a riser, a cable or a BIOS setting"
        fix = "reseat the card; set the slot's PCIe speed to the card's in the BIOS"
        return [Finding(gpu.index, speed, cause, fix)]
    return []


def width_fault(gpu: GpuState) -> Optional[str]:
    """The lanes of a link that has fewer than NVML's maximum for it, in words; else None."""
    if not _below(gpu.pcie_width, gpu.pcie_width_max):
        return None
    return "PCIe x{} of x{}".format(gpu.pcie_width, gpu.pcie_width_max)


def _starved(gpu: GpuState) -> Optional[str]:
    """The words for a card with one or two lanes where it could have eight and more: a riser, or
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
    return "PCIe x{}, where the others of its kind have x{}".format(gpu.pcie_width, usual)


def _speed_fault(gpu: GpuState) -> Optional[str]:
    load = gpu.utilization_percent or 0
    if load < BUSY_PERCENT or not _below(gpu.pcie_generation, gpu.pcie_generation_max):
        return None
    if is_laptop(gpu) or gpu.virtualization not in (None, "none"):
        return None
    said = "PCIe {}.0 of {}.0 although it works at {} %"
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


# NVLink


def check_nvlink(context: Context) -> Outcome:
    """Ask for each NVLink's state and error counters, twice where a counter is not 0."""
    wanted = [gpu.spec.nvlink if gpu.spec else None for gpu in context.expect.gpus or ()]
    first = context.machine.seen()
    later = first
    if any(link.errors for gpu in first.gpus for link in gpu.nvlinks):
        context.machine.pause(APART_S)
        later = context.machine.state()
    return judge_nvlink(later, first, expected=any(wanted))


def judge_nvlink(seen: State, before: Optional[State] = None, *, expected: bool = False) -> Outcome:
    """Whether the links that must be up are up, and count no errors while we look.

    Which must be up: on boards whose links are wired (SXM and what hangs on NVSwitches) those that
    another GPU of the kind has, and all of them where no virtual machine hides the far ends. Cards
    with bridges use as many as there are bridges. In MIG mode NVML reports links as down, those of
    the GPUs beside it too (DCGM, DcgmTopology.cpp), so nothing is judged.
    """
    return judged(seen, lambda found: _judge_nvlink(found, before or found, expected=expected))


def _judge_nvlink(seen: State, before: State, *, expected: bool) -> Outcome:
    linked = [gpu for gpu in seen.gpus if gpu.nvlinks]
    if not linked:
        note = " although the plan expects them" if expected else ""
        return Outcome(Status.SKIP, "the driver reports no NVLinks" + note)
    findings = [] if _mig(seen) else [f for gpu in linked for f in _nvlink_findings(gpu, seen)]
    findings = findings or [f for gpu in linked for f in error_findings(gpu, before)]
    findings = findings or _odd_link(linked)
    measured = pack(tables=[_nvlink_table(linked)])
    aim = {"nvlink": True} if expected else {}
    return outcome(findings, _nvlink_words(linked, mig=_mig(seen)), measured, aim)


def _mig(seen: State) -> bool:
    return any(gpu.mig for gpu in seen.gpus)


def _nvlink_words(linked: Sequence[GpuState], *, mig: bool) -> str:
    if mig:
        return "NVLink: MIG is on, and the driver then reports links as down"
    if not any(_active(gpu) for gpu in linked):
        return "NVLink: no link is active (no bridge between the cards, or a GPU alone)"
    said = ", ".join("{} of {}".format(_active(gpu), len(gpu.nvlinks)) for gpu in linked)
    errors = sum(one.errors or 0 for gpu in linked for one in gpu.nvlinks)
    return "NVLinks active: {}; errors since the driver was loaded: {}".format(said, errors)


def _nvlink_findings(gpu: GpuState, seen: State) -> List[Finding]:
    have, most = _active(gpu), max(_active(o) for o in seen.gpus if o.name == gpu.name)
    off = [one.link for one in gpu.nvlinks if one.active is False]
    if not off or not (_fewer_than_its_twins(gpu, have, most) or _must_be_up(gpu, seen, have)):
        return []
    said = "{} of {} NVLinks active, off: {}".format(have, len(gpu.nvlinks), _numbers(off))
    said += "; others of its kind have {}".format(most) if most > have else ""
    cause = "the link did not train: a bridge, a cable or a switch, or the fabric manager"
    fix = "look at nvidia-smi nvlink -s and health.fabric on the host; reseat; reset the GPUs"
    return [Finding(gpu.index, said, cause, fix)]


def _fewer_than_its_twins(gpu: GpuState, have: int, most: int) -> bool:
    """Bridged cards: one of the links of a bridge. Wired boards: any. A part of a V100's mesh in a
    virtual machine is uneven by design, since links to the GPUs left out are down.
    """
    mesh = (gpu.compute_capability or "").startswith(("6.", "7."))
    if not is_wired(gpu):
        return 0 < have < most
    return have < most and not (mesh and _virtual(gpu))


def _must_be_up(gpu: GpuState, seen: State, have: int) -> bool:
    """Whether a link that is down is a fault by itself, whatever the other GPUs have."""
    if SWITCHED.search(gpu.name or "") and have:
        return True  # its links all go to NVSwitches: some are up, so the switches are there
    alone = len(seen.gpus) == 1 and not have
    return is_wired(gpu) and gpu.virtualization == "none" and not alone


def is_wired(gpu: GpuState) -> bool:
    """Whether the GPU's NVLinks are wired to others on its board, rather than by bridges."""
    fabric = gpu.fabric_state in ("not-started", "in-progress", "completed")
    name = gpu.name or ""
    return fabric or (WIRED.search(name) is not None and BRIDGED.search(name) is None)


def _virtual(gpu: GpuState) -> bool:
    return gpu.virtualization != "none"


def error_findings(gpu: GpuState, before: State) -> List[Finding]:
    """The links of a GPU that have counted many errors since `before`."""
    cause = "data is damaged on this link and sent again: dirt, a loose bridge, or wear"
    fix = "look at nvidia-smi nvlink -e on the host; reseat the bridge or have it repaired"
    old = {
        one.link: one.errors or 0
        for other in before.gpus
        if other.index == gpu.index
        for one in other.nvlinks
    }
    grown = {one.link: (one.errors or 0) - old.get(one.link, 0) for one in gpu.nvlinks}
    said = "NVLink {} counts errors: {} more within a moment"
    return [
        Finding(gpu.index, said.format(link, more), cause, fix)
        for link, more in grown.items()
        if more >= NVLINK_ERRORS
    ]


def _odd_link(linked: Sequence[GpuState]) -> List[Finding]:
    """The one link of a machine that has counted many errors, where all the others have none.

    Of 5,760 links of a rack swept with all counters at zero, the only one with 505 recoveries died
    soon after (marin-community/marin issue 9086).
    """
    counted = [(gpu, one) for gpu in linked for one in gpu.nvlinks if one.errors]
    links = sum(len(gpu.nvlinks) for gpu in linked)
    if len(counted) != 1 or links < MANY_LINKS or (counted[0][1].errors or 0) < NVLINK_ERRORS:
        return []
    gpu, link = counted[0]
    said = "NVLink {} has counted {} errors, the {} others of this machine none"
    cause = "this link is wearing out, or its connection is bad"
    fix = "look at nvidia-smi nvlink -e on the host, again after some hours; have it repaired"
    return [Finding(gpu.index, said.format(link.link, link.errors, links - 1), cause, fix)]


def _active(gpu: GpuState) -> int:
    return sum(one.active is True for one in gpu.nvlinks)


def _nvlink_table(linked: Sequence[GpuState]) -> Table:
    words = {True: "active", False: "off", None: None}
    rows = [
        (gpu.index, one.link, words[one.active], one.gbs, one.errors)
        for gpu in linked
        for one in gpu.nvlinks
    ]
    return Table("NVLinks", ("GPU", "link", "state", "GB/s", "errors"), tuple(rows))


# Peers


def check_peers(context: Context) -> Outcome:
    """Ask what lies between the GPUs and whether they reach each other's memory."""
    return judge_peers(context.machine.seen())


def judge_peers(seen: State) -> Outcome:
    """Whether GPUs that are made to reach each other do.

    Over PCIe many machines cannot: GeForce cards since Ada, virtual machines. That costs speed and
    nothing else, so it is told. Over NVLink, or switched off by hand, it is a fault.
    """
    return judged(seen, _judge_peers)


def _judge_peers(seen: State) -> Outcome:
    if len(seen.gpus) < 2:
        return Outcome(Status.SKIP, "one GPU: it has no peer")
    if not seen.pairs:
        return Outcome(Status.SKIP, "the driver does not report what joins the GPUs")
    measured = pack(tables=_matrices(seen))
    for pair in seen.pairs:
        fault = _peer_fault(pair, seen)
        if fault:
            return Outcome(Status.FAIL, *fault, measured)
    paths = ", ".join(sorted({pair.path or "unknown" for pair in seen.pairs}))
    message = "{} joined by {}; {}".format(gpus(len(seen.gpus)), paths, _reach(seen.pairs))
    return Outcome(Status.PASS, message, measured=measured)


def _reach(pairs: Sequence[Pair]) -> str:
    closed = sorted({reason for pair in pairs for reason in [_closed(pair)] if reason})
    if closed:
        said = "P2P not available ({}): copies go through host memory"
        return said.format(", ".join(closed))
    told = all(pair.can_read is not None for pair in pairs)
    return "P2P between all" if told else "the driver does not report P2P"


def _closed(pair: Pair) -> Optional[str]:
    """NVML's reason why one GPU cannot read or write the other's memory."""
    return next((r for r in (pair.can_read, pair.can_write) if r not in (None, "ok")), None)


def _peer_fault(pair: Pair, seen: State) -> "Optional[Tuple[str, str, str]]":
    reason = _closed(pair)
    mig = any(gpu.mig for gpu in seen.gpus if gpu.index in (pair.first, pair.second))
    if reason is None or mig:  # MIG devices have no peers by design
        return None
    message = "no P2P between GPU {} and GPU {} ({}): {}".format(
        pair.first, pair.second, pair.path or "path unknown", reason
    )
    if reason == "disabled-by-regkey":
        cause = "an option of the nvidia kernel module switches P2P off"
        return message, cause, "remove it from NVreg_RegistryDwords in /etc/modprobe.d on the host"
    if (pair.path or "").startswith("NV"):
        cause = "the GPUs are joined by NVLink, yet the driver does not let them use it"
        fix = (
            "look at health.nvlink and health.fabric; a virtual machine needs all GPUs of a bridge"
        )
        return message, cause, fix
    return None


def _matrices(seen: State) -> List[Table]:
    indices = [gpu.index for gpu in seen.gpus]
    columns = ("GPU", *(str(i) for i in indices))
    cells: Dict[Tuple[int, int], Pair] = {}
    for pair in seen.pairs:
        cells[pair.first, pair.second] = pair
        cells.setdefault((pair.second, pair.first), pair)

    def rows(word: Any) -> "Tuple[Tuple[Any, ...], ...]":
        return tuple(
            (str(i), *("X" if i == j else word(cells.get((i, j), Pair(i, j))) for j in indices))
            for i in indices
        )

    paths = Table("Paths between GPUs", columns, rows(lambda pair: pair.path))
    reach = Table("P2P between GPUs", columns, rows(lambda p: _closed(p) or p.can_read))
    return [paths, reach]


CHECKS = (
    Check(
        "health.pcie",
        "PCIe links at full width",
        check_pcie,
        limit_s=30,
        framework=False,
        shares=True,
        replays=True,
    ),
    Check(
        "health.nvlink",
        "NVLinks up and clean",
        check_nvlink,
        limit_s=30,
        framework=False,
        shares=True,
        replays=True,
    ),
    Check(
        "devices.peers",
        "What joins the GPUs",
        check_peers,
        limit_s=30,
        framework=False,
        shares=True,
        replays=True,
    ),
)
