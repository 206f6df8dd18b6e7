"""Data loading: whether workers deliver every sample, and how fast in this container."""

from __future__ import annotations

import gc
import math
import os
import re
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from verify.backends.pytorch import Place, find
from verify.checks.loading.forks import check_fork, in_short
from verify.checks.loading.room import PREFETCH, SHM, SHM_FIX, check_files, check_shm, usual_need
from verify.device import limits
from verify.model.check import ON_CPU, Check, Context, Outcome, Status
from verify.model.measures import LOWER, Metric, Plot, Table, median, of_samples, pack, spread
from verify.running import symptoms
from verify.running.children import Child, Ending, patient
from verify.running.symptoms import last_words
from verify.workloads.samples import SAMPLE_BYTES, Batches, Images

BATCH = 8
MOST_WORKERS = 32
EPOCH_S = 0.4  # how long a timed epoch should take
GUESS = 300.0  # samples/s, before anything is known; measured on one core: about 500
NEAR = 0.05  # a rate within this share of the best is as good
HANG_S = 30.0  # for one batch; DataLoader gives up then
CHILD_S = 90.0
LOOK_S = 90.0
BUDGET_S = {"quick": 10.0, "standard": 40.0, "full": 120.0}  # then no more worker counts are tried

# The causes behind torch's own "exited unexpectedly" and "timed out". Newer torch reserves before
# it writes: a worker without room in /dev/shm then reports that, and nothing more comes from it.
_TELLING = re.compile(
    r"unable to allocate shared memory.{0,60}No space left on device"
    r"|killed by signal: [\w ]+|Unexpected bus error[\w ]*|Too many open files"
)
TROUBLE = (
    (
        r"[Bb]us error|SIGBUS|shared memory|No space left",
        "{} is full: a worker has no room for its batch".format(SHM),
        SHM_FIX.format(1),
    ),
    (
        r"Too many open files|ancdata",
        "the limit of open files is reached: each tensor is handed over as a file descriptor",
        "start the container with --ulimit nofile=65536",
    ),
    (
        r"start new thread|Resource temporarily unavailable|fork: retry",
        "the limit of processes is reached",
        "start the container with --pids-limit 4096 and --ulimit nproc=65536",
    ),
    (
        r"timed out|did not finish",
        "a worker hangs: most likely a lock that was held during the fork",
        "see loading.fork; try multiprocessing_context='spawn'",
    ),
    (
        r"killed by signal: Killed|SIGKILL|Cannot allocate memory",
        "the container's memory limit, most likely: the kernel killed a worker",
        "give the container more memory, or use fewer workers",
    ),
)


@dataclass(frozen=True)
class LoadedSamples:
    """What a DataLoader with a number of workers delivered."""

    workers: int
    pinned: bool = False
    rates: Tuple[float, ...] = ()  # samples/s of each timed epoch
    first_s: float = 0.0  # until the first batch, with the workers' start
    samples: int = 0  # of an epoch
    missing: int = 0
    doubled: int = 0
    damaged: int = 0
    disordered: bool = False
    error: Optional[str] = None

    @property
    def rate(self) -> float:
        """Samples per second, the median."""
        return median(self.rates) if self.rates else 0.0

    def trouble(self) -> Optional[str]:
        """What is wrong, in words."""
        kinds = ((self.missing, "are missing"), (self.doubled, "were repeated"))
        said = ["{} of {} samples {}".format(n, self.samples, what) for n, what in kinds if n]
        said += ["{} samples have wrong content".format(self.damaged)] if self.damaged else []
        said += ["the order was lost"] if self.disordered and not said else []
        return self.error or ("; ".join(said) if said else None)


def check_workers(context: Context) -> Outcome:
    """Load with increasing numbers of workers. This process forks, so it must not start CUDA."""
    looked = Child(lambda: _look(context)).wait(LOOK_S)
    if not looked.returned:
        raise RuntimeError("looking for a GPU: " + looked.how())
    if looked.value["broken"]:
        return Outcome.from_dict(looked.value["broken"])
    place = Place(**looked.value["place"])
    found = limits.read()
    cpus = limits.cpus(found)
    loaded = list(_load_all(place, most_workers(cpus, _shm_free()), context))
    return judge_workers(loaded, cpus, found.cpus, place.kind)


def most_workers(cpus: int, shm_bytes: Optional[int]) -> int:
    """How many workers to try: one per CPU, at most MOST_WORKERS, and at most as many as have room
    in /dev/shm for the batches that each prefetches (a hundred fill a gigabyte).
    """
    each = BATCH * SAMPLE_BYTES * (PREFETCH + 1)
    room = MOST_WORKERS if shm_bytes is None else shm_bytes // 2 // each
    return max(1, min(cpus, MOST_WORKERS, room))


def _shm_free() -> Optional[int]:
    try:
        found = os.statvfs(SHM)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _look(context: Context) -> Dict[str, Any]:
    broken, place = find(context)
    return {"broken": broken and broken.as_dict(), "place": asdict(place)}


def _load_all(place: Place, most: int, context: Context) -> Iterator[LoadedSamples]:
    """Try each number of workers, then pinned memory with the best; stop after a failure."""
    deadline = time.monotonic() + BUDGET_S[context.level]
    repeats = context.pick(2, 3, 7)
    done: List[LoadedSamples] = []
    for workers in counts(most):
        if done and time.monotonic() > deadline:
            break
        size = epoch_size(workers, done[-1].rate if done else GUESS)
        done.append(_in_child(workers, size, repeats, place, pinned=False))
        yield done[-1]
        if done[-1].trouble():
            return
    if place.is_gpu:  # pinned memory is CUDA's
        best = recommend({one.workers: one.rate for one in done})
        wanted = context.pick([best], [best], [one.workers for one in done])
        for workers in wanted:
            size = next(one.samples for one in done if one.workers == workers)
            yield _in_child(workers, size, repeats, place, pinned=True)


def counts(most: int) -> List[int]:
    """0, 1, 2, 4, ... and the number of CPUs."""
    powers = [1 << i for i in range(most.bit_length()) if 1 << i <= most]
    return sorted({0, *powers, most})


def epoch_size(workers: int, rate: float) -> int:
    """Samples per epoch: enough for EPOCH_S, and the same number of batches for each worker."""
    each = max(1, workers)
    batches = max(4 * each, math.ceil(rate * EPOCH_S / BATCH))
    return BATCH * each * math.ceil(batches / each)


def _in_child(
    workers: int, size: int, repeats: int, place: Place, *, pinned: bool
) -> LoadedSamples:
    def work() -> Dict[str, Any]:
        return asdict(_load(workers, size, repeats, place, pinned=pinned))

    ending = Child(work).wait(CHILD_S)
    if ending.returned:
        return LoadedSamples(**{**ending.value, "rates": tuple(ending.value["rates"])})
    return LoadedSamples(workers, pinned, samples=size, error=_how(ending))


def _how(ending: Ending) -> str:
    """How a child was lost, with the line that best explains its worker's end."""
    said = in_short(ending.how())
    told = _TELLING.search(ending.output)
    words = told.group() if told else "" if ending.raised else last_words(ending.output)
    return "{} ({})".format(said, words) if words and words not in said else said


def _load(workers: int, size: int, repeats: int, place: Place, *, pinned: bool) -> LoadedSamples:
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)  # as in a worker, for a fair comparison with no workers
    images = Images(size)
    loader = DataLoader(
        images,
        batch_size=BATCH,
        num_workers=workers,
        pin_memory=pinned,
        persistent_workers=workers > 0,
        timeout=patient(HANG_S) if workers else 0,
    )
    start = time.perf_counter()
    first_s, numbers, damaged = 0.0, [], 0
    answers = images.answers()
    for pictures, batch in _delivered(loader, place, pinned=pinned):
        first_s = first_s or time.perf_counter() - start
        numbers += batch.tolist()
        right = torch.stack([answers.image(i) for i in batch.tolist()])
        damaged += int((pictures.cpu() != right).flatten(1).any(1).sum().item())
    found = count(numbers, LoadedSamples(workers, pinned, (), first_s, size, damaged=damaged))
    for _ in range(repeats):
        if found.trouble():
            break
        start = time.perf_counter()
        numbers = [i for _, batch in _delivered(loader, place, pinned=pinned) for i in batch]
        place.synchronize()
        rate = size / (time.perf_counter() - start)
        found = count([int(i) for i in numbers], replace(found, rates=(*found.rates, rate)))
    del loader
    gc.collect()  # ends the workers and removes their named semaphores
    return found


def _delivered(loader: Any, place: Place, *, pinned: bool) -> Iterator[Any]:
    """Batches on the device: on a GPU through a copy that can overlap if memory is pinned."""
    for pictures, numbers in loader:
        there = pictures.to(place.device, non_blocking=pinned) if place.is_gpu else pictures
        yield there, numbers


def count(numbers: Sequence[int], found: LoadedSamples) -> LoadedSamples:
    """The reading, with an epoch's numbers checked: each from 0 on once, and in order."""
    missing = len(set(range(found.samples)) - set(numbers))
    doubled = len(numbers) - len(set(numbers))
    disordered = list(numbers) != sorted(numbers)
    return replace(found, missing=missing, doubled=doubled, disordered=disordered)


def recommend(rates: Mapping[int, float]) -> int:
    """The fewest workers that are as good as the best: each one costs memory."""
    best = max(rates.values(), default=0.0)
    return min((n for n, rate in rates.items() if rate >= best * (1 - NEAR)), default=0)


def judge_workers(
    loaded: Sequence[LoadedSamples], cpus: int, quota: Optional[float], device: str
) -> Outcome:
    """Whether every sample came; the rate is for information."""
    plain = {one.workers: one.rate for one in loaded if not one.pinned and one.rates}
    best = recommend(plain)
    measured: Dict[str, Any] = {
        "device": device,
        "cpus": cpus,
        "quota": quota,
        "recommended_workers": best,
        **_numbers(loaded),
    }
    expected = {"missing": 0, "doubled": 0, "damaged": 0}
    for one in loaded:
        trouble = one.trouble()
        if trouble:
            pinned = ", pinned memory" if one.pinned else ""
            message = "{}{}: {}".format(_workers(one.workers), pinned, trouble)
            cause, fix = explain(one)
            return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    if not plain:
        fix = "run python -m torch.utils.collect_env, and build the image again"
        message = "nothing was loaded"
        return Outcome(Status.FAIL, message, "no epoch came to its end", fix, measured, expected)
    where = "" if device == "cuda" else ", " + ON_CPU
    most = max(plain)
    tried = " of up to {} tried".format(most) if most < cpus else ""
    said = "every sample once and in order; num_workers={}{} is fastest: {:.0f} samples/s{}{}{}"
    slow = _slow(plain, cpus, quota)
    message = said.format(best, tried, plain[best], _gain(plain), slow, where)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _workers(count: int) -> str:
    return "{} worker{}".format(count or "without", "" if count == 1 else "s")


def _gain(rates: Mapping[int, float]) -> str:
    return " ({:.0f} without workers)".format(rates[0]) if rates.get(0) else ""


def _slow(rates: Mapping[int, float], cpus: int, quota: Optional[float]) -> str:
    """The likely reason if more workers gain little."""
    alone, many = rates.get(1, 0.0), max(rates)
    if many < 2 or not alone or max(rates.values()) > alone * (1 + 0.5 * (min(many, cpus) - 1)):
        return ""
    reason = "CPUs that share cores, other work on them, or slow memory"
    if quota is not None and quota <= cpus:
        reason = "the container's CPU quota is {:g}".format(quota)
    return "; {} workers are {:.1f} times as fast as one: {}".format(
        many, max(rates.values()) / alone, reason
    )


def explain(one: LoadedSamples) -> Tuple[str, str]:
    """The cause of the trouble, and the fix."""
    for pattern, cause, fix in TROUBLE:
        if one.error and re.search(pattern, one.error):
            return cause, fix
    again = "run it again with num_workers=0; build the image again from its lock"
    if one.error:
        known, remedy = symptoms.explain(one.error)
        return known or "a worker or the loader crashed", remedy or again
    if one.damaged and one.workers:
        return "batches were corrupted or mixed up between a worker and the main process", again
    if one.damaged:
        return "torch assembled a batch wrongly in the main process", again
    return "torch's sampler or loader loses or repeats samples", again


def _numbers(loaded: Sequence[LoadedSamples]) -> Dict[str, Any]:
    metrics: List[Metric] = []
    for one in loaded:
        labels = {"workers": str(one.workers), "pinned": "yes" if one.pinned else "no"}
        if one.rates:
            metrics.append(of_samples("loader", one.rates, "samples/s", labels=labels))
            metrics.append(Metric("loader_start", one.first_s, "s", LOWER, labels=labels))
    columns = ("workers", "pinned", "samples/s", "spread", "first batch (s)")
    rows = tuple(
        (one.workers, "yes" if one.pinned else "no", one.rate, spread(one.rates), one.first_s)
        for one in loaded
    )
    lines = []
    for name, pinned in (("pageable", False), ("pinned", True)):
        points = tuple((float(o.workers), o.rate) for o in loaded if o.pinned is pinned and o.rates)
        lines += [(name, points)] if points else []
    plot = Plot("Samples a second by workers", "workers", "samples/s", tuple(lines))
    title = "DataLoader: inflate, crop and normalise images of 224 x 224"
    return pack(metrics, (Table(title, columns, rows),), (plot,) if lines else ())


@dataclass(frozen=True)
class MovedBatch:
    """Full-sized batches from workers, all held at the same time."""

    workers: int
    batches: int
    wrong: int = 0
    strategy: str = ""
    error: Optional[str] = None


def check_batch(context: Context) -> Outcome:  # noqa: ARG001
    """Fill /dev/shm as a usual job does: keep every batch that the workers may prefetch."""
    workers = usual_need().workers
    batches = workers * PREFETCH + 1
    ending = Child(lambda: asdict(_move(workers, batches))).wait(CHILD_S)
    moved = (
        MovedBatch(**ending.value)
        if ending.returned
        else MovedBatch(workers, 0, error=_how(ending))
    )
    return judge_moved(moved, batches)


def _move(workers: int, batches: int) -> MovedBatch:
    import torch.multiprocessing
    from torch.utils.data import DataLoader

    strategy = str(torch.multiprocessing.get_sharing_strategy())
    limit_s = patient(HANG_S)
    loader = DataLoader(Batches(batches), batch_size=None, num_workers=workers, timeout=limit_s)
    held = list(loader)
    wrong = sum(int(not bool((batch == i).all())) for i, batch in enumerate(held))
    return MovedBatch(workers, len(held), wrong, strategy)


def judge_moved(moved: MovedBatch, batches: int) -> Outcome:
    """Whether every batch came, with the right content."""
    measured = {**asdict(moved), "batch_bytes": Batches.BYTES}
    expected = {"batches": batches, "wrong": 0}
    size = "{} batches of {:.1f} MB from {} workers".format(
        batches, Batches.BYTES / 1e6, moved.workers
    )
    trouble = moved.error
    if trouble is None and moved.batches != batches:
        trouble = "{} came".format(moved.batches)
    if trouble is None and moved.wrong:
        trouble = "{} have wrong content".format(moved.wrong)
    if trouble is not None:
        message = "{}: {}".format(size, trouble)
        cause, fix = explain(LoadedSamples(moved.workers, damaged=moved.wrong, error=moved.error))
        return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    message = "{}, all held at a time, by {}".format(size, moved.strategy)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


CHECKS = (
    Check("loading.shm", "Shared memory has room for workers' batches", check_shm, framework=False),
    Check("loading.files", "Limits of files and processes suffice", check_files, framework=False),
    Check("loading.batch", "Workers hand over full-sized batches", check_batch, "standard", 120),
    Check("loading.workers", "Workers deliver every sample", check_workers, "standard", 330),
    Check("loading.fork", "Workers start while CUDA is in use", check_fork, "standard", 300),
)
