"""Links: what PCIe, NVLink and peer access between the GPUs can do and do, from NVML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.checks.health.findings import judged
from verify.checks.health.nvlinks import SWITCH_PATHS, check_nvlink
from verify.checks.health.pcie import PCIE_LANE_GBS, check_pcie
from verify.device.telemetry import GpuState, NvLink, Pair, State
from verify.model.check import Check, Context, Outcome, Status, gpus
from verify.model.measures import Table, pack

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
# The least share of a link that messages of 64 MiB and more must reach, far below healthy
# machines: over NVLink 0.5 at 32 MiB (8 A100) and 0.86 at 100 MB (8 H100), through the host 0.43
# and more of a slot (8 RTX 4090, 4 V100), all in tests/data/verify/recorded/rates.json; through a
# switch 0.6. For NVLink 5 only figures of larger messages are published (floors.json).
LEAST_SHARE = {"nvlink": 0.3, "switch": 0.25, "host": 0.05}
UNPUBLISHED = 10  # the first generation that has it


@dataclass(frozen=True)
class Link:
    """The slowest way between two GPUs of a machine; GB/s in one direction."""

    words: str
    gbs: float
    share: float  # large messages that reach less than this are a finding; 0: not known
    nvlink: bool = False


def slowest_link(seen: State, size: int) -> Optional[Link]:
    """The link that limits a ring through `size` GPUs; None if it is unknown.

    It is NVLink if that joins every pair. Otherwise some hop goes over PCIe.
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
    """From the bonded links of a pair, 4 for "NV4"; a plain "NV" does not say their number."""
    speeds = [link_gbs(gpu, one) for gpu in seen.gpus for one in gpu.nvlinks if one.active]
    counts = [int(path[2:]) for path in paths if path[2:].isdigit()]
    known = [speed for speed in speeds if speed]
    if not known or len(known) < len(speeds) or len(counts) < len(paths):
        return None
    count = min(counts)
    words = "NVLink ({} link{} a pair)".format(count, "" if count == 1 else "s")
    later = any(generation(gpu) >= UNPUBLISHED for gpu in seen.gpus)
    return Link(words, min(known) * count, 0.0 if later else LEAST_SHARE["nvlink"], nvlink=True)


def generation(gpu: GpuState) -> int:
    """The first number of the compute capability; 0 if it is not known."""
    major = (gpu.compute_capability or "").partition(".")[0]
    return int(major) if major.isdigit() else 0


def link_gbs(gpu: GpuState, link: NvLink) -> Optional[float]:
    """GB/s of one NVLink in one direction: as the driver reports it, else by GPU generation."""
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
    direct = all(p.can_read == "ok" for p in seen.pairs) and set(paths) <= set(SWITCH_PATHS)
    way = "switch" if direct else "host"
    words = "PCIe {}.0 x{} through {}".format(
        generation, width, "a PCIe switch" if direct else "the host"
    )
    return Link(words, gbs, LEAST_SHARE[way])


# PCIe


# NVLink


# Peers


def check_peers(context: Context) -> Outcome:
    """Read how the GPUs are connected and whether they can access each other's memory."""
    return judge_peers(context.machine.seen())


def judge_peers(seen: State) -> Outcome:
    """Whether GPUs that should have peer access have it.

    Over PCIe many machines have none: GeForce cards since Ada, virtual machines. That costs only
    speed, so it is reported. With NVLink, or if a user turned it off, it is a fault.
    """
    return judged(seen, _judge_peers)


def _judge_peers(seen: State) -> Outcome:
    if len(seen.gpus) < 2:
        return Outcome(Status.SKIP, "one GPU: there is no peer")
    if not seen.pairs:
        return Outcome(Status.SKIP, "the driver does not report how the GPUs are connected")
    measured = pack(tables=_matrices(seen))
    for pair in seen.pairs:
        fault = _peer_fault(pair, seen)
        if fault:
            return Outcome(Status.FAIL, *fault, measured)
    paths = ", ".join(sorted({pair.path or "unknown" for pair in seen.pairs}))
    message = "{} connected by {}; {}".format(gpus(len(seen.gpus)), paths, _reach(seen.pairs))
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
        cause = "an option of the nvidia kernel module disables P2P"
        return message, cause, "remove it from NVreg_RegistryDwords in /etc/modprobe.d on the host"
    if (pair.path or "").startswith("NV"):
        cause = "the GPUs are connected by NVLink, but the driver does not let them use it"
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
        "How the GPUs are connected",
        check_peers,
        limit_s=30,
        framework=False,
        shares=True,
        replays=True,
    ),
)
