"""Which NVLinks are up, and what their error counters show."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence

from verify.checks.health.findings import Finding, judged, outcome, spans
from verify.device.telemetry import GpuState, State
from verify.model.check import Context, Outcome, Status
from verify.model.measures import Table, pack

# The counters run since the driver was loaded, so only their growth is meaningful. DCGM calls
# a link bad from 100 CRC errors within a second (DCGM_LIMIT_MAX_NVLINK_CRC_ERROR).
NVLINK_ERRORS = 100
MANY_LINKS = 12  # enough links that a single one with errors is no coincidence
APART_S = 1.0
# Boards by name. The SXM boards of H100, H200 and later do not have SXM in their names.
WIRED = re.compile(r"SXM|HBM3|\b(H800|H200|H20|GH200|G?B[23]00)\b")
BRIDGED = re.compile(r"PCIe|NVL$")  # H100 PCIe, H100 NVL, H200 NVL: bridges join two or four
SWITCHED = re.compile(r"\bG?B[23]00\b")  # sold on boards and in racks with NVSwitches only
SWITCH_PATHS = ("PIX", "PXB")


def check_nvlink(context: Context) -> Outcome:
    """Read each NVLink's state and error counters, twice if a counter is not 0."""
    wanted = [gpu.spec.nvlink if gpu.spec else None for gpu in context.expect.gpus or ()]
    first = context.machine.seen()
    later = first
    if any(link.errors for gpu in first.gpus for link in gpu.nvlinks):
        context.machine.pause(APART_S)
        later = context.machine.state()
    return judge_nvlink(later, first, expected=any(wanted))


def judge_nvlink(seen: State, before: Optional[State] = None, *, expected: bool = False) -> Outcome:
    """Whether the links that must be up are up, and count no errors between two readings.

    On boards with wired links (SXM, and GPUs on NVSwitches), those links must be up that another
    GPU of the same kind has up, and all of them unless a virtual machine hides the far ends. Cards
    with bridges use as many links as there are bridges. In MIG mode NVML reports links as down,
    also those of neighbouring GPUs (DCGM, DcgmTopology.cpp), so nothing is judged.
    """
    return judged(seen, lambda found: _judge_nvlink(found, before or found, expected=expected))


def _judge_nvlink(seen: State, before: State, *, expected: bool) -> Outcome:
    linked = [gpu for gpu in seen.gpus if gpu.nvlinks]
    if not linked:
        note = ""
        if expected and any(gpu.virtualization == "passthrough" for gpu in seen.gpus):
            note = ": this virtual machine was given GPUs without their links"  # H200, driver 580
        elif expected:
            note = " although this model has them"
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
        return "NVLink: no link is active (no bridge between the cards, or a single GPU)"
    said = ", ".join("{} of {}".format(_active(gpu), len(gpu.nvlinks)) for gpu in linked)
    errors = sum(one.errors or 0 for gpu in linked for one in gpu.nvlinks)
    return "NVLinks active: {}; errors since the driver was loaded: {}".format(said, errors)


def _nvlink_findings(gpu: GpuState, seen: State) -> List[Finding]:
    have, most = _active(gpu), max(_active(o) for o in seen.gpus if o.name == gpu.name)
    off = [one.link for one in gpu.nvlinks if one.active is False]
    if not off or not (_fewer_than_its_twins(gpu, have, most) or _must_be_up(gpu, seen, have)):
        return []
    said = "{} of {} NVLinks active, off: {}".format(have, len(gpu.nvlinks), spans(off))
    said += "; others of the same model have {}".format(most) if most > have else ""
    cause = "the link did not come up: check bridge, cable, switch and Fabric Manager"
    fix = "look at nvidia-smi nvlink -s and health.fabric on the host; reseat; reset the GPUs"
    return [Finding(gpu.index, said, cause, fix)]


def _fewer_than_its_twins(gpu: GpuState, have: int, most: int) -> bool:
    """Whether missing links are a fault: on bridged cards some of a bridge's links, on wired boards
    any. A part of a V100 mesh in a virtual machine is uneven by design, since links to the GPUs
    that are left out are down.
    """
    mesh = (gpu.compute_capability or "").startswith(("6.", "7."))
    if not is_wired(gpu):
        return 0 < have < most
    return have < most and not (mesh and _virtual(gpu))


def _must_be_up(gpu: GpuState, seen: State, have: int) -> bool:
    """Whether a link that is down is a fault by itself, independent of the other GPUs."""
    if SWITCHED.search(gpu.name or "") and have:
        return True  # its links all go to NVSwitches: some are up, so the switches are there
    alone = len(seen.gpus) == 1 and not have
    return is_wired(gpu) and gpu.virtualization == "none" and not alone


def is_wired(gpu: GpuState) -> bool:
    """Whether the GPU's NVLinks are wired on its board and do not go through bridges."""
    fabric = gpu.fabric_state in ("not-started", "in-progress", "completed")
    name = gpu.name or ""
    return fabric or (WIRED.search(name) is not None and BRIDGED.search(name) is None)


def _virtual(gpu: GpuState) -> bool:
    return gpu.virtualization != "none"


def error_findings(gpu: GpuState, before: State) -> List[Finding]:
    """The links of a GPU that have counted many errors since `before`."""
    cause = "data is corrupted on this link and sent again: dirt, a loose bridge, or wear"
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
    """The one link of a machine that has counted many errors while all others have none.

    Of 5,760 links of a rack swept with all counters at zero, the only one with 505 recoveries died
    soon after (marin-community/marin issue 9086).
    """
    counted = [(gpu, one) for gpu in linked for one in gpu.nvlinks if one.errors]
    links = sum(len(gpu.nvlinks) for gpu in linked)
    if len(counted) != 1 or links < MANY_LINKS or (counted[0][1].errors or 0) < NVLINK_ERRORS:
        return []
    gpu, link = counted[0]
    said = "NVLink {} has counted {} errors, the {} others of this machine none"
    cause = "this link is wearing out, or has a bad connection"
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
