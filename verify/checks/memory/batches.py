"""Runs the search for a batch size on this machine's GPU or CPU and its memory.

The checks and the command `verify batch` both use it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from verify.backends.base import Place, of
from verify.checks.memory.bench import Bencher, Job, Late, Refused
from verify.device import limits
from verify.model.check import Context, Outcome
from verify.model.measures import LOWER, Metric, Plot, Table, pack
from verify.running.children import Child
from verify.workloads import batching
from verify.workloads.batching import BatchTrial, Search

STEPS = 4  # the fewest in a trial; see Bench
LATE_S = 120.0  # a cold start of CUDA, and a step that is slower than all before it
LOOK_LIMIT_S = 180.0
GB = 1e9


@dataclass(frozen=True)
class Mode:
    """One precision: the chosen settings, and the search."""

    precision: str
    gpu: Optional[str]
    search: Search


def look(context: Context) -> Tuple[Optional[Outcome], Place]:
    """Where to run, found in a child: this process forks, so it must not start CUDA. Raises
    Refused if there is no device.
    """

    def work() -> Dict[str, Any]:
        broken, place = of(context).find(context)
        return {"broken": broken and broken.as_dict(), "place": asdict(place)}

    ending = Child(work).wait(LOOK_LIMIT_S)
    if not ending.returned:
        raise Refused("{} cannot be used: {}".format(of(context).counts_as, ending.how()))
    broken = ending.value["broken"]
    place = of(context).place(**ending.value["place"])
    return Outcome.from_dict(broken) if broken else None, place


def run(
    job: Job,
    place: Place,
    *,
    maximum: int,
    minimum: int = 1,
    seconds: float,
    resolution: float = 0.0,
    tell: Callable[[str, BatchTrial], None] = lambda *_: None,
) -> Mode:
    """Search one precision. Raises Refused if the model cannot be built or trained, and Late if not
    one trial ended in time.
    """
    bencher, trials = Bencher(job, place), []  # type: Tuple[Bencher, List[BatchTrial]]
    deadline = time.monotonic() + seconds

    def measure(batch: int) -> BatchTrial:
        found = None if place.is_gpu else refuse(trials, batch, available, job.memory_share)
        if found is None:
            found = bencher.measure(batch, max(0.0, deadline - time.monotonic()) + LATE_S)
        trials.append(found)
        tell(str(bencher.facts.get("precision", "")), found)
        return found

    def stop(batch: int, done: Sequence[BatchTrial]) -> Optional[str]:
        left = deadline - time.monotonic()
        wanted = batching.predicted_seconds(done, batch, STEPS) or 0.0
        if done and wanted > left:
            return in_time
        return None

    available = limits.memory_available(limits.read())
    in_time = "the time limit was reached ({:.0f} s)".format(seconds)
    try:
        search = batching.search(
            measure, maximum, minimum=minimum, stop=stop, resolution=resolution
        )
    except Late:
        if not trials:
            raise
        search = Search(tuple(trials), in_time)
    finally:
        bencher.close()
    return Mode(str(bencher.facts.get("precision", "")), bencher.facts.get("gpu"), search)


def refuse(
    trials: Sequence[BatchTrial], batch: int, available: Optional[int], share: float
) -> Optional[BatchTrial]:
    """A trial refused by estimate. For the CPU, where the kernel kills instead of refusing."""
    wanted = batching.predicted_bytes(trials, batch)
    if wanted is None or available is None or wanted <= available * share:
        return None
    said = "would need about {:.1f} GB, and {:.1f} GB may be used"
    reason = said.format(wanted / GB, available * share / GB)
    return BatchTrial(batch, fits=False, reason=reason)


def measured(modes: Sequence[Mode], model: str) -> Dict[str, Any]:
    """The searches as metrics, tables and plots for reports."""
    metrics: List[Metric] = []
    tables, lines = [], []
    for mode in modes:
        metrics += _metrics(mode, model)
        tables.append(_table(mode, model))
        timed = sorted((t.batch, t.samples_per_s) for t in mode.search.trials if t.samples_per_s)
        if timed:
            lines.append((mode.precision, tuple((float(b), float(s)) for b, s in timed)))
    plot = Plot(model + ": throughput by batch", "batch", "samples/s", tuple(lines), log_x=True)
    return pack(metrics, tables, (plot,) if lines else ())


def _metrics(mode: Mode, model: str) -> List[Metric]:
    largest, fastest = mode.search.largest, mode.search.fastest
    labels = {"model": model, "precision": mode.precision}
    found = []
    if largest is not None:
        found.append(Metric("largest_batch", largest.batch, "samples", labels=labels))
    if fastest is not None and fastest.samples_per_s:
        at = {**labels, "batch": str(fastest.batch)}
        found.append(
            Metric(
                "batch_throughput",
                fastest.samples_per_s,
                "samples/s",
                repeats=fastest.steps,
                spread=fastest.spread,
                labels=at,
            )
        )
        if fastest.peak_bytes:
            peak = Metric("batch_peak_memory", fastest.peak_bytes, "bytes", LOWER, labels=at)
            found.append(peak)
    return found


def _table(mode: Mode, model: str) -> Table:
    columns = ("batch", "samples/s", "spread", "peak memory (bytes)", "GPU use (%)", "why not")
    rows = tuple(
        (t.batch, t.samples_per_s, t.spread, t.peak_bytes, t.utilization_percent, t.reason)
        if t.fits
        else (t.batch, None, None, None, None, t.reason)
        for t in sorted(mode.search.trials, key=lambda trial: trial.batch)
    )
    return Table("{}, {}".format(model, mode.precision or "not measured"), columns, rows)
