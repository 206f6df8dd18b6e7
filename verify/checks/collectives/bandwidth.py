"""Bandwidth between GPUs by message size, defined as in nccl-tests.

Algorithm bandwidth is bytes divided by seconds. Bus bandwidth is comparable with a link's speed for
any number n of ranks: times 2(n-1)/n for all-reduce, times (n-1)/n for all-gather, whose bytes are
those that each rank ends up with (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from verify.checks.collectives import floors, nccl_log, operations, ranks, room
from verify.checks.collectives.ranks import ONE_GPU, P2P_FIX, Rank, Team, World
from verify.checks.health.links import Link, generation, slowest_link
from verify.checks.health.nvlinks import error_findings
from verify.checks.health.pcie import width_fault
from verify.checks.speed import watch
from verify.device.telemetry import State
from verify.model.check import NODE, Context, Outcome, Status
from verify.model.measures import LOWER, Metric, Plot, Table, median, of_samples, pack

LIMIT_S = {"gloo": 60.0, "nccl": 180.0}
LARGEST = {
    "nccl": {"quick": 1 << 20, "standard": 1 << 26, "full": 1 << 33},
    "gloo": {"quick": 1 << 16, "standard": 1 << 22, "full": 1 << 24},
}
REPEATS, WARM_UP = 7, 3
NVLS_SINCE = 9  # compute capability: NVSwitches of the third generation came with Hopper
SMALL, LONG = 1 << 18, 1 << 30  # one call is too short to time by itself; is long enough
LARGE_S = 60.0  # for the largest sizes of an operation
COPIES = 3  # of a message in memory: what is given, what is received, and what the library needs


def check_bandwidth(context: Context) -> Outcome:
    """Time all-reduce and all-gather on every GPU, or over the loopback if there is none."""
    broken, team = ranks.find_team(context)
    if broken:
        return broken
    if team.backend == "nccl" and team.size == 1:
        return Outcome(Status.SKIP, ONE_GPU, measured={"ranks": 1})
    wanted = room.sizes(LARGEST[team.backend][context.level])

    def work(rank: Rank) -> List[Dict[str, Any]]:
        return measure(rank, wanted, bounded=True)

    return watched(context, team, lambda: ranks.run(team, work, LIMIT_S[team.backend]))


def watched(context: Context, team: Team, work: Callable[[], World]) -> Outcome:
    """Judge what `work` measures, with the links' error counters before and after it."""
    before = watch.before(context.machine) if team.backend == "nccl" else State()
    world = work()
    seen = context.machine.state() if team.backend == "nccl" else State()
    return judge_bandwidth(world, seen, dict(os.environ), before)


# What each rank does


def measure(rank: Rank, wanted: Sequence[int], *, bounded: bool = False) -> List[Dict[str, Any]]:
    """Seconds of all-reduce and all-gather of these sizes in bytes, as this rank sees them.
    `bounded`: those of the large sizes for which there is memory and time.
    """
    rows: List[Dict[str, Any]] = []
    for name, make in _OPERATIONS.items():
        end, last_s = time.monotonic() + LARGE_S, 0.0
        for size in wanted:
            needed_s = last_s * room.STEP * calls_of(size) * (REPEATS + WARM_UP)
            left_s = end - time.monotonic()
            if bounded and not room.has(
                rank, size=size, copies=COPIES, left_s=left_s, needed_s=needed_s
            ):
                break
            rows.append({"operation": name, **_timed(rank, make, size)})
            last_s = max(rows[-1]["seconds"])
    return rows


def _timed(rank: Rank, make: Callable[[Rank, int], Tuple[int, Any]], size: int) -> Dict[str, Any]:
    """Seconds of one call. Small calls are timed in batches: one is too short for the clock."""
    calls = calls_of(size)
    moved, call = make(rank, size)

    def work() -> None:
        for _ in range(calls):
            call()

    rank.at("{} bytes".format(moved))
    found = rank.place.seconds(work, repeats=REPEATS, warm_up=WARM_UP)
    return {"bytes": moved, "seconds": [seconds / calls for seconds in found]}


def calls_of(size: int) -> int:
    """How many calls are timed as one."""
    return 20 if size <= SMALL else 4 if size < LONG else 1


def _all_reduce(rank: Rank, size: int) -> Tuple[int, Callable[[], object]]:
    """Sums zeros, so that repeated sums do not overflow."""
    import torch
    import torch.distributed as dist

    numbers = torch.zeros(size // 4, device=rank.place.device)
    return numbers.numel() * 4, lambda: dist.all_reduce(numbers)


def _all_gather(rank: Rank, size: int) -> Tuple[int, Callable[[], object]]:
    import torch
    import torch.distributed as dist

    count = max(1, size // 4 // rank.team.size)
    part = torch.zeros(count, device=rank.place.device)
    whole = torch.zeros(count * rank.team.size, device=rank.place.device)
    names = ("all_gather_single", "all_gather_into_tensor", "_all_gather_base")  # new to old
    gather = next(getattr(dist, name) for name in names if hasattr(dist, name))
    try:
        gather(whole, part)
    except RuntimeError as error:
        if not operations.UNSUPPORTED.search(str(error)):
            raise
        parts = list(whole.chunk(rank.team.size))  # gloo of torch before 2.1
        return whole.numel() * 4, lambda: dist.all_gather(parts, part)
    return whole.numel() * 4, lambda: gather(whole, part)


_OPERATIONS = {"all-reduce": _all_reduce, "all-gather": _all_gather}


# The judge


def bus_factor(operation: str, size: int) -> float:
    """Bus bandwidth by algorithm bandwidth, for so many ranks."""
    return {"all-reduce": 2.0, "all-gather": 1.0}[operation] * (size - 1) / size


@dataclass(frozen=True)
class BandwidthSeries:
    """One operation and size: bus bandwidth in GB/s and seconds, sample by sample."""

    operation: str
    bytes: int
    gbs: Tuple[float, ...] = field(default=())
    seconds: Tuple[float, ...] = field(default=())


def series(
    values: Sequence[Sequence[Mapping[str, Any]]], size: Optional[int] = None
) -> List[BandwidthSeries]:
    """Join the ranks' readings: in each sample the slowest rank counts. `size` is the number of
    ranks, if some of them are joined already.
    """
    found = []
    size = size or len(values)
    for rows in zip(*values):
        slowest = tuple(max(sample) for sample in zip(*(row["seconds"] for row in rows)))
        operation, moved = rows[0]["operation"], rows[0]["bytes"]
        factor = bus_factor(operation, size)
        gbs = tuple(moved / seconds * factor / 1e9 for seconds in slowest)
        found.append(BandwidthSeries(operation, moved, gbs, slowest))
    return found


def judge_bandwidth(
    world: World, seen: State, environ: Mapping[str, str], before: Optional[State] = None
) -> Outcome:
    """Whether the largest messages come near to what the links can do, where that is known, and
    whether the NVLinks counted errors meanwhile: `before` is how they stood.
    """
    team = world.team
    measured: Dict[str, Any] = {"device": team.kind, "ranks": team.size, "seconds": world.seconds}
    if world.lost:
        return ranks.judge_lost(world, team.backend, measured)
    found = series(world.values)
    link = slowest_link(seen, team.size) if team.backend == "nccl" else None
    log = "\n".join(trace.log for trace in world.traces)
    ways, setup = nccl_log.transports(log), nccl_log.collective_setup(log)
    measured.update(pack(metrics(team, found, link), [table(found)], [plot(found)]))
    measured["transports"] = list(ways)
    if setup.channels:
        measured.update(channels=setup.channels, nvls_channels=setup.nvls_channels)
    least = {s.operation: _floor(world, seen, link, s) for s in _largest(found)}
    expected: Dict[str, Any] = {"link": link.words, "link_gbs": link.gbs} if link else {}
    known = {name: floor.gbs for name, floor in least.items() if floor}
    expected.update({"least_gbs": known} if known else {})
    best = {s.operation: median(s.gbs) for s in _largest(found)}
    text = ", ".join("{} {:.3g} GB/s".format(name, gbs) for name, gbs in best.items())
    for name, floor in least.items():
        if link and floor and best[name] < floor.gbs:
            message = "{}: {:.3g} GB/s, where {} {:.3g}".format(
                name, best[name], floor.words, floor.of_gbs
            )
            user = watch.in_use(before) if before else None
            if user:
                message, cause = "in use ({}): {}".format(user, message), "others use the GPUs, too"
                return Outcome(Status.SKIP, message, cause, watch.END_USERS, measured, expected)
            cause, fix = blame(seen, ways, environ, link)
            return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    worn = [f for gpu in seen.gpus for f in error_findings(gpu, before or seen)]
    if worn:
        message = "under load: GPU {}: {}".format(worn[0].gpu, worn[0].what)
        found_on = (worn[0].cause, worn[0].fix)
        return Outcome(Status.FAIL, message, *found_on, measured, expected, NODE)
    against = " of {:.3g} ({})".format(link.gbs, link.words) if link else ""
    against += ", not judged" if link and not known else ""
    how = [*ways, *filter(None, [nvls_words(setup, seen, environ)])]
    by = " by {}".format(", ".join(how)) if how else ""
    message = "bus bandwidth {}{}, {}{}{}".format(text, against, team.words, by, team.note)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def nvls_words(
    setup: nccl_log.CollectiveSetup, seen: State, environ: Mapping[str, str]
) -> Optional[str]:
    """Whether NCCL set NVLS (NVLink SHARP) up, where it did or could have: on NVSwitches since
    Hopper, which the GPUs have joined, with more than two GPUs. It costs speed at most, so it is
    reported.
    """
    if setup.nvls_failure:
        return "NVLS failed ({})".format(setup.nvls_failure)
    if setup.nvls_channels:
        return "NVLS with {} channels".format(setup.nvls_channels)
    able = [
        gpu
        for gpu in seen.gpus
        if gpu.fabric_state == "completed" and generation(gpu) >= NVLS_SINCE and not gpu.mig
    ]
    if not setup.channels or len(able) < max(3, len(seen.gpus)):
        return None
    if environ.get("NCCL_NVLS_ENABLE") == "0":
        return "no NVLS (NCCL_NVLS_ENABLE=0)"
    if setup.multicast is False:
        return "no NVLS: the driver has no multicast here (a container or VM may lack it)"
    return "no NVLS, which these GPUs and NVSwitches have"


def _floor(
    world: World, seen: State, link: Optional[Link], one: BandwidthSeries
) -> Optional[floors.Floor]:
    """XLA and TensorFlow join their calls in ways that no published figure is of."""
    return floors.floor(seen, link, one.operation, one.bytes, by_class=not world.together)


def blame(
    seen: State, ways: Sequence[str], environ: Mapping[str, str], link: Link
) -> Tuple[str, str]:
    """The likeliest cause of slow messages, and what to do about it; what is certain first."""
    set_off = next((n for n in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if _on(environ, n)), None)
    if set_off:
        return "{} is set".format(set_off), "unset {}".format(set_off)
    if environ.get("NCCL_P2P_LEVEL") in ("LOC", "0"):
        return "NCCL_P2P_LEVEL disables P2P between GPUs", "unset NCCL_P2P_LEVEL"
    for pair in seen.pairs:
        if link.nvlink and pair.can_read not in (None, "ok"):
            said = "GPU {} cannot reach GPU {} directly: {}"
            cause = said.format(pair.first, pair.second, pair.can_read)
            return cause, "see devices.peers and nvidia-smi topo -p2p r"
    off = [gpu.index for gpu in seen.gpus for one in gpu.nvlinks if one.active is False]
    if off and link.nvlink:
        cause = "NVLinks of GPU {} are not active".format(", ".join(map(str, sorted(set(off)))))
        return cause, "see health.nvlink"
    if link.nvlink and ways and not nccl_log.has(ways, "P2P"):
        cause = "NCCL used {} although NVLink is available".format(" and ".join(ways))
        return cause, "start the container with --ipc host; run with NCCL_DEBUG=INFO to see why"
    for gpu in seen.gpus:
        if width_fault(gpu):
            cause = "GPU {}: {}".format(gpu.index, width_fault(gpu))
            return cause, "see health.pcie"
    return _unknown(ways)


def _unknown(ways: Sequence[str]) -> Tuple[str, str]:
    if nccl_log.has(ways, "NET"):
        cause = "NCCL used the network between GPUs of one machine"
        return cause, "start the container with --shm-size 1g and --ipc host"
    cause = "another job uses the links, or the host routes P2P traffic through the CPU"
    return cause, "end other jobs (nvidia-smi lists them) and run again; " + P2P_FIX


def _on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "0") not in ("0", "")


def _largest(found: Sequence[BandwidthSeries]) -> List[BandwidthSeries]:
    return [
        max((s for s in found if s.operation == n), key=lambda s: s.bytes) for n in _names(found)
    ]


def _smallest(found: Sequence[BandwidthSeries]) -> List[BandwidthSeries]:
    return [
        min((s for s in found if s.operation == n), key=lambda s: s.bytes) for n in _names(found)
    ]


def _names(found: Sequence[BandwidthSeries]) -> List[str]:
    return list(dict.fromkeys(s.operation for s in found))


def metrics(
    team: Team, found: Sequence[BandwidthSeries], link: Optional[Link] = None
) -> List[Metric]:
    """Bus bandwidth of the largest messages, latency of the smallest."""
    labels = {"backend": team.backend, "ranks": str(team.size)}
    wide = [
        of_samples(
            "bus_bandwidth",
            s.gbs,
            "GB/s",
            labels={"operation": s.operation, "bytes": str(s.bytes), **labels},
            spec=link.gbs if link else None,
        )
        for s in _largest(found)
    ]
    quick = [
        of_samples(
            "collective_latency",
            s.seconds,
            "s",
            better=LOWER,
            labels={"operation": s.operation, "bytes": str(s.bytes), **labels},
        )
        for s in _smallest(found)
    ]
    return [*wide, *quick]


def table(found: Sequence[BandwidthSeries]) -> Table:
    """Seconds and bus bandwidth by operation and size."""
    columns = ("operation", "bytes", "seconds", "bus bandwidth (GB/s)")
    rows = [(s.operation, s.bytes, median(s.seconds), median(s.gbs)) for s in found]
    return Table("Collectives by message size", columns, tuple(rows))


def plot(found: Sequence[BandwidthSeries]) -> Plot:
    """Bus bandwidth over size, a line for each operation."""
    lines = [
        (n, tuple((float(s.bytes), median(s.gbs)) for s in found if s.operation == n))
        for n in _names(found)
    ]
    x, y = "message size (bytes)", "bus bandwidth (GB/s)"
    return Plot("Bus bandwidth by message size", x, y, tuple(lines), log_x=True)
