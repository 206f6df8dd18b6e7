"""Memory: who holds it, whether it keeps what is written, whether training frees it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.backends.base import of
from verify.backends.sight import START_WITH_GPUS
from verify.checks.memory import batches
from verify.checks.memory.bench import Job, Late, Refused
from verify.checks.memory.leaks import check_leak
from verify.checks.memory.patterns import check_pattern
from verify.checks.memory.recovery import check_recovery
from verify.device import cuda_memory, limits, same_gpu, state
from verify.device.telemetry import GpuProcess
from verify.model.check import Check, Context, Outcome, Status, gpus
from verify.running.children import Child

NOTED = 0.9  # the free share of a GPU's memory: below it, other processes are named
ENOUGH = 0.5  # below it, the check fails
MODEL = "resnet50"
FIRST, MAXIMUM = {"cuda": 32, "cpu": 1}, {"cuda": 4096, "cpu": 4}
SECONDS = 75.0  # for each precision
LOOK_LIMIT_S = 60.0  # for CUDA to start on every GPU
GB = 1e9


@dataclass(frozen=True)
class HeldMemory:
    """One GPU's memory from CUDA, and who held some of it before this process started CUDA."""

    device: int
    name: str
    free: int
    total: int
    others: Optional[Tuple[GpuProcess, ...]] = None  # None: NVML does not report
    shared: bool = False  # with the CPU: then the page cache is not counted as free

    @property
    def share(self) -> float:
        """The free share."""
        return self.free / self.total if self.total else 0.0

    def who(self) -> str:
        """The other processes in words, the largest first."""
        if not self.others:
            return "NVML lists no other process"
        ordered = sorted(self.others, key=lambda process: -(process.used_bytes or 0))
        rows = ["{}{}".format(p.pid, _holding(p)) for p in ordered[:4]]
        more = len(ordered) - len(rows)
        return "process " + ", ".join(rows) + (" and {} more".format(more) if more else "")

    def as_dict(self) -> Dict[str, Any]:
        """For the report."""
        others = self.others and [vars(process) for process in self.others]
        return {"device": self.device, "free": self.free, "total": self.total, "others": others}


def _holding(process: GpuProcess) -> str:
    if process.used_bytes is None:
        return ""
    return " ({:.1f} GB)".format(process.used_bytes / GB)


def check_free(context: Context) -> Outcome:
    """Read each GPU's free memory before the framework starts, which may take most of it, and what
    the container may take of the host's.
    """
    backend = of(context)
    held, error = read_before(context)
    broken, place = backend.find(context)
    if broken:
        return broken
    return judge_before(held, error, backend.takes()) if place.is_gpu else none_visible()


def none_visible() -> Outcome:
    """The skip without GPUs, with what the container may take of the host's memory."""
    return Outcome(Status.SKIP, "no GPU visible", None, START_WITH_GPUS, measured=_host())


def _host() -> Dict[str, Any]:
    found = limits.read()
    return {
        "host_available_bytes": limits.memory_available(found),
        "container_limit_bytes": found.memory_bytes,
        "container_used_bytes": found.memory_used_bytes,
    }


def read_before(context: Context) -> "Tuple[List[HeldMemory], str]":
    """Each GPU's free memory before the framework starts, or why it is unknown.

    A child queries CUDA, since a query here would start CUDA; NVML names the other processes.
    """
    before = state.read()
    looked = Child(lambda: _rooms(context)).wait(LOOK_LIMIT_S)
    if not looked.returned:
        return [], looked.how()
    held = []
    for row in looked.value["rooms"]:
        one = cuda_memory.GpuMemory(**row)
        gpu = same_gpu.match(one.index, one.uuid, len(looked.value["rooms"]), before.gpus)
        shared = gpu is not None and gpu.memory_total_bytes is None
        who = gpu.processes if gpu else None
        held.append(HeldMemory(one.index, one.name, one.free, one.total, who, shared))
    return held, looked.value["error"]


def _rooms(context: Context) -> Dict[str, Any]:
    try:
        rooms = [one.as_dict() for one in cuda_memory.read(context.machine.load)]
    except cuda_memory.CudaMemoryError as error:
        return {"rooms": [], "error": str(error)}
    return {"rooms": rooms, "error": ""}


def judge_before(held: Sequence[HeldMemory], error: str, takes: str) -> Outcome:
    """`judge_free` for a framework that takes memory at its start; `takes` says how much of it."""
    if not held:
        message = "CUDA does not report free memory: {}".format(error or "it shows no GPU")
        fix = "check the memory use in nvidia-smi, and see devices.count"
        return Outcome(Status.SKIP, message, error or None, fix, measured={"device": "cuda"})
    outcome = judge_free(held)
    if outcome.status is Status.PASS and takes:
        outcome = replace(outcome, message="{}; {}".format(outcome.message, takes))
    return replace(
        outcome, measured={**outcome.measured, **_host(), **({"takes": takes} if takes else {})}
    )


def judge_free(held: Sequence[HeldMemory]) -> Outcome:
    """Whether every GPU has at least half its memory free, and who holds the rest.

    Less is not a fault of the GPU: others use it. But it cannot be tested meanwhile, so there is no
    verdict.
    """
    measured = {"device": "cuda", "memory": [one.as_dict() for one in held]}
    expected = {"free_share": ENOUGH}
    if not held:
        message = "no GPU reported its memory"
        return Outcome(Status.FAIL, message, message, START_WITH_GPUS, measured, expected)
    worst = min(held, key=lambda one: (one.shared, one.share))
    if worst.share < ENOUGH and not worst.shared:
        message = "GPU {} ({}) is in use: {:.1f} of {:.1f} GB free".format(
            worst.device, worst.name, worst.free / GB, worst.total / GB
        )
        cause = "other processes use the rest: {} (process numbers of the host)".format(worst.who())
        fix = "end them (ps -p PID on the host), or choose another GPU by CUDA_VISIBLE_DEVICES"
        return Outcome(Status.SKIP, message, cause, fix, measured, expected)
    message = "{:.1f} of {:.1f} GB free".format(worst.free / GB, worst.total / GB)
    message += " or more, on each of {}".format(gpus(len(held))) if len(held) > 1 else ""
    for one in held:
        if one.others and one.share < NOTED:
            message += "; GPU {} is shared with {}".format(one.device, one.who())
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def check_batch(context: Context) -> Outcome:
    """The largest and the fastest batch of a large network, without and with AMP."""
    broken, place = batches.look(context)
    if broken is not None:
        return broken
    jobs = (Job(MODEL, amp=amp, by_trainer=True) for amp in (False, True))
    try:
        modes = [search_batch(job, place) for job in jobs]
    except Late as error:
        cause = "the machine is slow or busy, or the step hangs: training.loss would, too"
        return Outcome(Status.SKIP, str(error), cause, None, {"device": place.kind})
    except Refused as error:
        fix = "see training.loss and devices.convolution"
        cause = "a training step of {} does not work here".format(MODEL)
        return Outcome(Status.FAIL, str(error), cause, fix, {"device": place.kind})
    return judge_batches(modes, place.kind, place.words)


def search_batch(job: Job, place: Any) -> batches.Mode:
    """To 1/16: a check has little time, and `verify batch` finds the exact size. Where the first
    does not fit, from one sample on; compilers need most of the time, so that few are tried.
    """
    first, room = FIRST[place.kind], MAXIMUM[place.kind]
    more: Dict[str, Any] = {"seconds": SECONDS, "resolution": 1 / 16}
    found = batches.run(job, place, minimum=first, maximum=room, **more)
    if found.search.largest is None and first > 1:
        return batches.run(job, place, maximum=first - 1, **more)
    return found


def judge_batches(modes: Sequence[batches.Mode], device: str, words: str) -> Outcome:
    """Whether at least one sample fits in each precision; the rest is for information."""
    rows = [{"precision": mode.precision, **mode.search.as_dict()} for mode in modes]
    measured = {"device": device, "searches": rows, **batches.measured(modes, MODEL)}
    parts = []
    for mode in modes:
        largest, fastest = mode.search.largest, mode.search.fastest
        if largest is None or fastest is None:
            reason = next((t.reason for t in mode.search.trials if t.reason), mode.search.ended)
            message = "{} in {}: {}".format(MODEL, mode.precision, mode.search.ended)
            cause = "not enough memory for a training step: {}".format(reason)
            fix = "end other users of the memory (nvidia-smi, free -m), or take a larger GPU"
            return Outcome(Status.FAIL, message, cause, fix, measured, {"largest": 1})
        part = "{}: {} fit ({}), fastest {} with {:.0f} samples/s"
        pace = fastest.samples_per_s or 0.0
        ended = mode.search.ended
        parts.append(part.format(mode.precision, largest.batch, ended, fastest.batch, pace))
    message = "{}, {}; {}".format(MODEL, words, "; ".join(parts) or "nothing was tried")
    if not parts:
        return Outcome(Status.SKIP, message, "no precision was asked for", None, measured)
    return Outcome(Status.PASS, message, measured=measured, expected={"largest": 1})


BATCH = Check("memory.batch", "The largest and the fastest batch", check_batch, "full", 600)
CHECKS = (
    Check("memory.free", "GPU memory is free", check_free, gpu=True),
    Check(
        "memory.pattern",
        "Memory stores every byte correctly",
        check_pattern,
        "standard",
        300,
        gpu=True,
    ),
    Check(
        "memory.leak",
        "Training does not leak memory",
        check_leak,
        "standard",
        120,
        gpu=True,
        gauge=True,
    ),
    Check(
        "memory.recovery",
        "Work continues after running out of memory",
        check_recovery,
        "standard",
        120,
        gpu=True,
    ),
)
