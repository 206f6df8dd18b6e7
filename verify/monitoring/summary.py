"""Summarises a run: running totals of its samples, and the likely bottleneck with its evidence.

The totals take the same little memory however long the run is. Only the *window* from the first to
the last moment that a GPU worked is judged: starting up and saving results would distort it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.device.telemetry import GpuState
from verify.monitoring.samples import Host, Sample

LEAST_SAMPLES = 5
BUSY = 80.0  # percent of the time: a GPU that works less than this waits for something
MEMORY_BUSY = 70.0  # percent: the memory is read or written nearly all the time
MEMORY_FULL = 0.97  # of its bytes
FULL_CLOCK = 0.9  # of the highest: below it, power or heat limits the card
SLOWED = 0.2  # share of the samples slowed by heat or a power brake
AT_POWER_LIMIT = 0.5
CORE_FULL = 0.9  # of one CPU core: a thread that never waits
WORKERS_FULL = 0.7  # of a core each
CPUS_FULL = 0.9  # of all that may be used
CROWDED = 0.95  # of the machine's CPUs
READING_BYTES_S = 200e6  # about a SATA SSD's half
WAITING = 0.2  # share of the samples with a process that waits for storage
HEAT = ("hw_thermal_slowdown", "sw_thermal_slowdown")
BRAKE = ("hw_power_brake_slowdown", "hw_slowdown")
CAP = "sw_power_cap"


@dataclass
class Gauge:
    """The mean and the peak of the readings."""

    count: int = 0
    total: float = 0.0
    peak: Optional[float] = None

    def add(self, value: Optional[float]) -> None:
        """Count a reading; None is ignored."""
        if value is not None:
            self.count += 1
            self.total += value
            self.peak = value if self.peak is None else max(self.peak, value)

    def merge(self, other: Gauge) -> None:
        """Count all of another's readings."""
        self.count += other.count
        self.total += other.total
        peaks = [peak for peak in (self.peak, other.peak) if peak is not None]
        self.peak = max(peaks, default=None)

    @property
    def mean(self) -> Optional[float]:
        """The mean; None without readings."""
        return self.total / self.count if self.count else None


GPU_GAUGES = ("utilization", "memory_utilization", "memory", "power", "temperature", "clock")
HOST_GAUGES = ("machine", "cores", "workers", "worker_cores", "thread", "rss", "read", "waiting")


def _gauges(names: Sequence[str]) -> Dict[str, Gauge]:
    return {name: Gauge() for name in names}


@dataclass
class Totals:
    """Gauges by name, and how often each reason slowed the GPU."""

    gauges: Dict[str, Gauge]
    slowed: Dict[str, int] = field(default_factory=dict)
    samples: int = 0

    def merge(self, other: Totals) -> None:
        """Count all of another's."""
        self.samples += other.samples
        for name, gauge in other.gauges.items():
            self.gauges[name].merge(gauge)
        for reason, count in other.slowed.items():
            self.slowed[reason] = self.slowed.get(reason, 0) + count

    def mean(self, name: str) -> Optional[float]:
        """Of one gauge."""
        return self.gauges[name].mean

    def peak(self, name: str) -> Optional[float]:
        """Of one gauge."""
        return self.gauges[name].peak

    def share(self, reasons: Sequence[str]) -> float:
        """The share of samples in which the most frequent of these reasons slowed the GPU."""
        most = max((self.slowed.get(reason, 0) for reason in reasons), default=0)
        return most / self.samples if self.samples else 0.0


def of_gpu(gpu: GpuState) -> Totals:
    """One reading of a GPU."""
    totals = Totals(_gauges(GPU_GAUGES), samples=1)
    share = None
    if gpu.clock_sm_mhz is not None and gpu.clock_sm_max_mhz:
        share = gpu.clock_sm_mhz / gpu.clock_sm_max_mhz
    readings = (
        gpu.utilization_percent,
        gpu.memory_utilization_percent,
        gpu.memory_used_bytes,
        gpu.power_w,
        gpu.temperature_c,
        share if gpu.utilization_percent != 0 else None,  # an idle card clocks down
    )
    for name, value in zip(GPU_GAUGES, readings):
        totals.gauges[name].add(value)
    totals.slowed = dict.fromkeys(gpu.throttle_reasons or (), 1)
    return totals


def of_host(host: Host) -> Totals:
    """One reading of the processes."""
    totals = Totals(_gauges(HOST_GAUGES), samples=1)
    readings = (
        host.machine_percent,
        host.cores,
        host.workers,
        host.worker_cores,
        host.thread_cores,
        host.rss_bytes,
        host.read_bytes_s,
        None if host.waiting is None else float(host.waiting),
    )
    for name, value in zip(HOST_GAUGES, readings):
        totals.gauges[name].add(value)
    return totals


@dataclass
class GpuRun:
    """One GPU over the whole run."""

    index: int
    name: Optional[str] = None
    memory_total_bytes: Optional[int] = None
    power_limit_w: Optional[float] = None
    energy_wh: Optional[float] = None
    whole: Totals = field(default_factory=lambda: Totals(_gauges(GPU_GAUGES)))
    window: Totals = field(default_factory=lambda: Totals(_gauges(GPU_GAUGES)))
    pending: Totals = field(default_factory=lambda: Totals(_gauges(GPU_GAUGES)))


@dataclass
class Run:
    """The whole run. `add` takes samples in their order."""

    seconds: float = 0.0
    samples: int = 0
    cpus: Optional[int] = None
    read_bytes: float = 0.0
    gpus: Dict[int, GpuRun] = field(default_factory=dict)
    host: Totals = field(default_factory=lambda: Totals(_gauges(HOST_GAUGES)))
    window: Totals = field(default_factory=lambda: Totals(_gauges(HOST_GAUGES)))
    pending: Totals = field(default_factory=lambda: Totals(_gauges(HOST_GAUGES)))
    worked: bool = False
    last: Optional[Sample] = None

    def add(self, sample: Sample) -> None:
        """Count one sample."""
        before, self.last = self.last, sample
        step = 0.0 if before is None else max(0.0, sample.seconds - before.seconds)
        self.samples += 1
        self.seconds = max(self.seconds, sample.seconds)
        for gpu in sample.gpus:
            self._add_gpu(gpu, step, _power(before, gpu.index))
        if sample.host is not None:
            self.cpus = sample.host.cpus or self.cpus
            self.read_bytes += (sample.host.read_bytes_s or 0.0) * step
            totals = of_host(sample.host)
            self.host.merge(totals)
            self.pending.merge(totals)
        working = any(gpu.utilization_percent for gpu in sample.gpus)
        self._move_window(working=working)

    def _add_gpu(self, gpu: GpuState, step: float, power_before: Optional[float]) -> None:
        run = self.gpus.setdefault(gpu.index, GpuRun(gpu.index))
        run.name = gpu.name or run.name
        run.memory_total_bytes = gpu.memory_total_bytes or run.memory_total_bytes
        run.power_limit_w = gpu.power_limit_w or run.power_limit_w
        if gpu.power_w is not None:
            mean = (gpu.power_w + (gpu.power_w if power_before is None else power_before)) / 2
            run.energy_wh = (run.energy_wh or 0.0) + mean * step / 3600
        totals = of_gpu(gpu)
        run.whole.merge(totals)
        run.pending.merge(totals)

    def _move_window(self, *, working: bool) -> None:
        """Samples after the last work count once work resumes; those before the first never do."""
        rows: List[Any] = [self, *self.gpus.values()]
        if working:
            for row in rows:
                row.window.merge(row.pending)
        if working or not self.worked:
            for row in rows:
                row.pending = Totals(_gauges(list(row.pending.gauges)))
        self.worked = self.worked or working

    def finish(self, seconds: float, rss_bytes: Optional[int] = None) -> None:
        """The command ended so many seconds after its start, after the last sample."""
        left = max(0.0, seconds - self.seconds)
        for gpu in self.last.gpus if self.last else ():
            if gpu.power_w is not None:
                run = self.gpus[gpu.index]
                run.energy_wh = (run.energy_wh or 0.0) + gpu.power_w * left / 3600
        self.seconds = max(self.seconds, seconds)
        self.host.gauges["rss"].add(rss_bytes)


def _power(before: Optional[Sample], index: int) -> Optional[float]:
    rows = before.gpus if before is not None else ()
    return next((gpu.power_w for gpu in rows if gpu.index == index), None)


@dataclass(frozen=True)
class Bottleneck:
    """What most likely limits the run, the evidence for it, and what to try.

    `kind` is one of: data, host, memory, compute, power, heat, unused, unknown.
    """

    kind: str
    evidence: Tuple[str, ...]
    advice: Optional[str] = None


def judge(run: Run) -> Bottleneck:
    """Judge from the GPUs that worked and from what the processes did meanwhile."""
    if not run.gpus:
        return Bottleneck("unknown", ("no GPU was measured",))
    if run.samples < LEAST_SAMPLES:
        said = "{} samples are too few to judge by; {} are needed"
        advice = "run longer, or sample more often with --interval"
        return Bottleneck("unknown", (said.format(run.samples, LEAST_SAMPLES),), advice)
    if all(gpu.whole.mean("utilization") is None for gpu in run.gpus.values()):
        return Bottleneck("unknown", ("no GPU reports its utilization",))
    used = [gpu for gpu in run.gpus.values() if gpu.window.peak("utilization")]
    if not used:
        advice = "check whether the program still uses device cpu"
        return Bottleneck("unused", ("no GPU did any work",), advice)
    busy = _mean([gpu.window.mean("utilization") for gpu in used]) or 0.0
    found = _of_busy(used) if busy >= BUSY else _of_waiting(run, used)
    said = "{} busy {:.0f} % of the time while at work".format(_names(used), busy)
    first = (said, *_uneven(used), *_idle(run, used))
    return Bottleneck(found.kind, (*first, *found.evidence), found.advice)


def _idle(run: Run, used: Sequence[GpuRun]) -> Tuple[str, ...]:
    numbers = [str(gpu.index) for gpu in run.gpus.values() if gpu not in used]
    return ("GPU {} did nothing".format(", ".join(numbers)),) if numbers else ()


def _of_busy(used: Sequence[GpuRun]) -> Bottleneck:
    clock = _mean([gpu.window.mean("clock") for gpu in used])
    heat, brake = _share(used, HEAT), _share(used, BRAKE)
    clocks = () if clock is None else ("SM clock at {:.0f} % of its maximum".format(100 * clock),)
    if heat >= SLOWED:
        said = "slowed down by heat in {:.0f} % of the samples".format(100 * heat)
        return Bottleneck("heat", (said, *clocks), "check fans and airflow")
    if brake >= SLOWED:
        said = "slowed down by the hardware in {:.0f} % of the samples".format(100 * brake)
        return Bottleneck("power", (said, *clocks), "check the power supply and its cables")
    cap = _share(used, (CAP,))
    if cap >= AT_POWER_LIMIT and clock is not None and clock < FULL_CLOCK:
        said = "at the power limit in {:.0f} % of the samples".format(100 * cap)
        advice = "raise the power limit if the card has a higher one (nvidia-smi -q -d POWER)"
        return Bottleneck("power", (said, *clocks), advice)
    memory = _mean([gpu.window.mean("memory_utilization") for gpu in used])
    if memory is not None and memory >= MEMORY_BUSY:
        said = "memory read or written {:.0f} % of the time".format(memory)
        advice = "fuse operations (torch.compile, fused optimisers), or use narrower types"
        return Bottleneck("memory", (said, *clocks), advice)
    if clock is None or clock >= FULL_CLOCK:
        advice = "this is as it should be; narrower types (AMP) may still make it faster"
        return Bottleneck("compute", (*clocks, *_memory_words(memory), *_full_words(used)), advice)
    return Bottleneck("unknown", (*clocks, "the driver gives no reason for the low clocks"))


def _memory_words(memory: Optional[float]) -> Tuple[str, ...]:
    return () if memory is None else ("memory busy {:.0f} % of the time".format(memory),)


def _full_words(used: Sequence[GpuRun]) -> Tuple[str, ...]:
    full = max(_fullness(gpu) for gpu in used)
    said = "memory {:.0f} % full: no room for larger batches"
    return (said.format(100 * full),) if full >= MEMORY_FULL else ()


def _of_waiting(run: Run, used: Sequence[GpuRun]) -> Bottleneck:
    loading = _loading(run)
    if loading:
        advice = "use more or faster data workers, cheaper decoding, or a faster disk"
        return Bottleneck("data", tuple(loading), advice)
    thread = run.window.mean("thread")
    if thread is not None and thread >= CORE_FULL:
        said = "one thread of the program keeps {:.0f} % of a CPU core busy".format(100 * thread)
        advice = "launch fewer and larger operations: bigger batches, torch.compile, CUDA graphs"
        return Bottleneck("host", (said,), advice)
    crowded = _crowded(run)
    if crowded:
        return Bottleneck("host", (crowded,), "give it more CPU cores, or run less beside it")
    full = max(_fullness(gpu) for gpu in used)
    if full >= MEMORY_FULL:
        said = "GPU memory {:.0f} % full".format(100 * full)
        return Bottleneck("memory", (said,), "use smaller batches: what does not fit is retried")
    if run.window.mean("cores") is None:
        said = "CPU and disk were not measured"
        return Bottleneck("unknown", (said,), "run the program with verify monitor")
    said = "neither the CPU nor the disk was busy"
    return Bottleneck("unknown", (said,), "check the network, other ranks and the logs")


def _crowded(run: Run) -> Optional[str]:
    """Words on CPU cores that are all busy with this program or others; None if they are not."""
    cores, machine = run.window.mean("cores"), run.window.mean("machine")
    if cores is None or not run.cpus:
        return None
    if cores / run.cpus >= CPUS_FULL:
        return "{:.1f} of {} CPU cores are busy".format(cores, run.cpus)
    if machine is None or machine < 100 * CROWDED:
        return None
    said = "the machine's CPUs are {:.0f} % busy, {:.1f} cores of them with this program"
    return said.format(machine, cores)


def _loading(run: Run) -> List[str]:
    """Signs of a GPU that waits for data."""
    window, found = run.window, []
    cores, workers = window.mean("cores"), window.mean("workers")
    work = window.mean("worker_cores")
    if workers and work is not None and work / workers >= WORKERS_FULL:
        said = "{:.0f} data workers use {:.1f} CPU cores: they are always busy"
        found.append(said.format(workers, work))
    if workers and cores is not None and run.cpus and cores / run.cpus >= CPUS_FULL:
        found.append("{:.1f} of {} CPU cores are busy".format(cores, run.cpus))
    read, waiting = window.mean("read"), window.mean("waiting")
    if read is not None and read >= READING_BYTES_S:
        found.append("{:.0f} MB/s are read from storage".format(read / 1e6))
    if waiting is not None and waiting >= WAITING:
        found.append("a process waits for storage in {:.0f} % of the samples".format(100 * waiting))
    return found


def _fullness(gpu: GpuRun) -> float:
    used = gpu.window.peak("memory")
    return used / gpu.memory_total_bytes if used and gpu.memory_total_bytes else 0.0


def _uneven(used: Sequence[GpuRun]) -> Tuple[str, ...]:
    """Words on GPUs that are unequally busy, so that some wait for others."""
    means = [gpu.window.mean("utilization") or 0.0 for gpu in used]
    if max(means) - min(means) < 30:
        return ()
    said = "unevenly: {:.0f} % to {:.0f} % of the time from GPU to GPU"
    return (said.format(min(means), max(means)),)


def _share(used: Sequence[GpuRun], reasons: Sequence[str]) -> float:
    return max(gpu.window.share(reasons) for gpu in used)


def _mean(values: Sequence[Optional[float]]) -> Optional[float]:
    told = [value for value in values if value is not None]
    return sum(told) / len(told) if told else None


def _names(used: Sequence[GpuRun]) -> str:
    return (
        "GPU {} was".format(used[0].index) if len(used) == 1 else "{} GPUs were".format(len(used))
    )
