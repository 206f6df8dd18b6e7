"""Which NVLinks are up, and what their error counters show."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Tuple

from verify.checks.health.findings import Finding, judged, listed_numbers, outcome, spans
from verify.device.telemetry import GpuState, NvLink, State
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
# The links that bridges join at a time: any other number is a bridge that is not fully plugged.
# A100, A30, H100 PCIe and H100 NVL: a bridge of four, up to three of them (their product briefs).
# H200 NVL: 18, to one card or six to each of three (its data sheet), of which a virtual machine may
# have some. GA102: all four (its white paper). Turing, Quadro GV100: two (TU104 has a single link).
BRIDGES = (
    (re.compile(r"H200 NVL"), 18, 6),
    (re.compile(r"A100.*PCIe|\bA30\b|H100 (PCIe|NVL)", re.IGNORECASE), 4, 4),
    (re.compile(r"RTX 3090|RTX A[456]\d00\b|\bA40\b"), 4, 4),
    (re.compile(r"RTX 2080 Ti|TITAN RTX|Quadro RTX [68]000|GV100"), 2, 2),
)
FEWER_LINKS = re.compile(r"\b[AH]800\b"), 8  # of the twelve or 18 of the model that it is made from
SWITCHED = re.compile(r"\bG?B[23]00\b")  # sold on boards and in racks with NVSwitches only
AMPERE, HOPPER = 8, 9  # the first part of their compute capability
SWITCH_PATHS = ("PIX", "PXB")
MESH = 4  # GPUs since A100 that NVLinks join without switches
CUBE = 8  # GPUs of the largest mesh without switches (P100, V100)
# A virtual machine with a part of the board's NVSwitches (to A100) has these sixths of the links,
# by its number of GPUs: Fabric Manager user guide, "Full Passthrough Virtualization Model".
SIXTHS = {4: 3, 2: 1}


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

    A GPU on NVSwitches has all its links up. A bridge joins a fixed number. On other boards with
    wired links (SXM), those must be up that another GPU of the same kind has up; links that are
    down on all alike are not wired there. A link is up at both ends. In MIG mode NVML reports links
    as down, also those of neighbouring GPUs (DCGM, DcgmTopology.cpp), so nothing is judged.
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
        said = "NVLink: no link is active (no bridge between the cards, a single GPU"
        return said + (", or a board that wires none)" if any(map(is_wired, linked)) else ")")
    said = ", ".join("{} of {}".format(_active(gpu), len(gpu.nvlinks)) for gpu in linked)
    errors = sum(one.errors or 0 for gpu in linked for one in gpu.nvlinks)
    words = "NVLinks active: {}; errors since the driver was loaded: {}".format(said, errors)
    partly = [gpu for gpu in linked if is_wired(gpu) and _active(gpu) < len(gpu.nvlinks)]
    if partly:
        words += "; the others of GPU {} are not wired, or lead to GPUs that are not here".format(
            listed_numbers(partly)
        )
    return words


def _nvlink_findings(gpu: GpuState, seen: State) -> List[Finding]:
    have = _active(gpu)
    needed, cause, fix = max(_needs(gpu, seen), key=lambda need: need[0])
    if have >= needed:
        return []
    off = [one.link for one in gpu.nvlinks if not one.active]
    most = max(map(_active, _twins(gpu, seen)))
    said = "{} of {} NVLinks active".format(have, len(gpu.nvlinks))
    said += ", off: {}".format(spans(off)) if off else ", and one that only its other end has"
    said += "; others of the same model have {}".format(most) if most > have else ""
    return [Finding(gpu.index, said, cause, fix)]


def _needs(gpu: GpuState, seen: State) -> List[Tuple[int, str, str]]:
    """How many links must be up, by each rule, with the cause and fix if they are not."""
    look = "look at nvidia-smi nvlink -s and health.fabric on the host; "
    repair = look + "reset the GPUs; have the board repaired if that does not help"
    needs = [(_of_switches(gpu, seen), "a link to an NVSwitch, or the switch, failed", repair)]
    step = bridge_links(gpu)
    if step:
        cause = "a bridge joins {} links: it is not fully plugged, or faulty".format(step)
        whole = -(-_active(gpu) // step) * step
        needs.append((whole, cause, "power off and reseat the bridge; replace it if that fails"))
    needs.append((_of_ends(gpu, seen), "the link is down although its other end is here", repair))
    cause = "the link did not come up: check bridge, cable, switch and Fabric Manager"
    return [*needs, (_of_twins(gpu, seen), cause, look + "reseat; reset the GPUs")]


def _of_switches(gpu: GpuState, seen: State) -> int:
    """All links of a GPU on NVSwitches, also in a virtual machine."""
    up, links, count = _active(gpu), whole_links(gpu), len(_twins(gpu, seen))
    if not _on_switches(gpu, seen) or (not up and _virtual(gpu) and count == 1):
        return 0
    part = links * SIXTHS.get(count, 6) // 6
    passed = _virtual(gpu) and _generation(gpu) < HOPPER
    return part if passed and up == part else links


def _on_switches(gpu: GpuState, seen: State) -> bool:
    up, name = _active(gpu), gpu.name or ""
    ends = {one.far for one in gpu.nvlinks if one.active or not _virtual(gpu)}
    if gpu.fabric_state == "completed" or "switch" in ends:
        return True
    if up and SWITCHED.search(name):
        return True
    if not is_wired(gpu) or _generation(gpu) < AMPERE:
        return False
    if up:
        return len(_twins(gpu, seen)) > MESH
    boards = _generation(gpu) >= HOPPER and "GH200" not in name  # no adapters exist for them
    return boards and len(_twins(gpu, seen)) > 1 and not _virtual(gpu)


def _of_ends(gpu: GpuState, seen: State) -> int:
    """The links that are up at a visible GPU's end, or end at one and are down."""
    others = [other for other in seen.gpus if other.bus_id and other is not gpu]
    there = {other.bus_id for other in others}
    down = [one for one in gpu.nvlinks if one.active is False and one.far_bus_id in there]
    lacking = 0
    if _ends_known(gpu) and gpu.bus_id:
        lacking = sum(max(0, other.links_to(gpu) - gpu.links_to(other)) for other in others)
    return _active(gpu) + max(len(down), lacking)


def _of_twins(gpu: GpuState, seen: State) -> int:
    """The links of GPUs of the same kind. Cards that bridges join need not be alike if the links'
    ends are known, and a part of a mesh in a virtual machine is uneven by design: links to the GPUs
    that are left out are down.
    """
    twins = _twins(gpu, seen)
    most = max(map(_active, twins))
    if not is_wired(gpu):
        return 0 if not _active(gpu) or all(map(_ends_known, twins)) else most
    full = any(_active(one) == len(one.nvlinks) for one in twins)
    whole = len(twins) >= CUBE or (full and len(twins) <= MESH)
    mesh = _generation(gpu) in (6, 7) and not _on_switches(gpu, seen)
    return 0 if mesh and _virtual(gpu) and not whole else most


def _twins(gpu: GpuState, seen: State) -> List[GpuState]:
    """The GPUs of its model, with itself."""
    return [other for other in seen.gpus if other.name == gpu.name]


def _ends_known(gpu: GpuState) -> bool:
    return all(one.far_bus_id for one in gpu.nvlinks if one.active)


def bridge_links(gpu: GpuState) -> int:
    """How many links a bridge joins on this card; 0 if that is not known."""
    counts = (row[1:] for row in BRIDGES if row[0].search(gpu.name or ""))
    known = (part if _virtual(gpu) else whole for whole, part in counts)
    return 0 if is_wired(gpu) else next(known, 0)


def whole_links(gpu: GpuState) -> int:
    """The NVLinks of the model; NVML also lists those that the model does not use."""
    name, fewer = FEWER_LINKS
    return min(len(gpu.nvlinks), fewer) if name.search(gpu.name or "") else len(gpu.nvlinks)


def _generation(gpu: GpuState) -> int:
    """The first part of the compute capability; 0 if it is not known."""
    return int((gpu.compute_capability or "0").partition(".")[0])


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
        (gpu.index, one.link, words[one.active], one.gbs, one.errors, _far_words(one))
        for gpu in linked
        for one in gpu.nvlinks
    ]
    return Table("NVLinks", ("GPU", "link", "state", "GB/s", "errors", "far end"), tuple(rows))


def _far_words(link: NvLink) -> Optional[str]:
    return " ".join(filter(None, (link.far, link.far_bus_id))) or None
