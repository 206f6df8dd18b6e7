"""Memory leaks of training, on the device and on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from verify.backends.base import of
from verify.device.limits import resident_bytes
from verify.model.check import Context, Outcome, Status, on_device
from verify.model.measures import Plot, median, pack
from verify.workloads.networks import smooth

BATCH = 8
WARM_UP = 20  # cuDNN's choices, allocator pools and optimiser state are created here
# A step allocates and frees the same blocks, so torch's count on a GPU does not move at all; its
# smallest block is 512 bytes. The host's count moves by pages and by malloc's arenas: measured on
# a CPU, 100 steps without a leak have a slope below 19 kB a step, with wider layers below 90 kB.
TOLERANCE = {"GPU": 64.0, "host": 65536.0}  # bytes a step
KB, MB = 1e3, 1e6


@dataclass(frozen=True)
class MemorySeries:
    """Bytes held after each step."""

    what: str  # "GPU" or "host"
    held: Tuple[int, ...]


def check_leak(context: Context) -> Outcome:
    """Train, and read the held memory after each step."""
    backend = of(context)
    broken, place = backend.find(context)
    if broken:
        return broken
    backend.use_one_thread(place)  # on shared CPUs threads that wait for each other are slow
    trainer = backend.trainer(place, smooth(), rate=0.01)

    def step() -> None:
        """In a function of its own, so that no variable keeps its arrays alive."""
        float(trainer.step(*trainer.data(BATCH)))

    return judge_leak(watch(step, place.held_bytes, context.pick(60, 100, 1000)), place.kind)


def watch(
    step: Callable[[], object], held: Callable[[], Optional[int]], steps: int
) -> List[MemorySeries]:
    """The held memory after each step past the warm-up. `held` returns the bytes that the framework
    has taken of its GPU, or None if it has no GPU or does not report it.
    """
    device: List[int] = []
    host: List[int] = []
    for i in range(WARM_UP + steps):
        step()
        if i >= WARM_UP:
            host.append(resident_bytes("VmRSS"))
            taken = held()
            device += [] if taken is None else [taken]
    found = [MemorySeries("GPU", tuple(device))] if device else []
    return [*found, MemorySeries("host", tuple(host))]


def slope(held: Sequence[float]) -> float:
    """Bytes per step: the median of the slopes between all pairs (Theil and Sen).

    A single jump of any height does not change it; a steady leak does.
    """
    pairs = ((i, j) for j in range(len(held)) for i in range(j))
    slopes = [(held[j] - held[i]) / (j - i) for i, j in pairs]
    return median(slopes) if slopes else 0.0


def judge_leak(found: Sequence[MemorySeries], device: str) -> Outcome:
    """Whether the held memory does not grow with the steps."""
    slopes = {series.what: slope(thinned(series.held)) for series in found}
    measured: Dict[str, Any] = {
        "device": device,
        "steps": max((len(series.held) for series in found), default=0),
        "bytes_per_step": slopes,
        **pack(plots=(_plot(found),)),
    }
    expected = {"bytes_per_step": {what: TOLERANCE[what] for what in slopes}}
    if not measured["steps"]:
        fix = "see training.loss"
        return Outcome(Status.FAIL, "no step was made", "no readings", fix, measured, expected)
    for what, each in slopes.items():
        if each > TOLERANCE[what]:
            message = "training uses {:.1f} kB more {} memory with each step".format(
                each / KB, what
            )
            cause = "the framework or a library keeps tensors that nothing references"
            fix = "try another version of the framework; look for hooks or patches"
            return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    held = ", ".join("{} {:.1f} MB".format(s.what, s.held[-1] / MB) for s in found)
    said = "no growth in {} training steps ({}), {}"
    message = said.format(measured["steps"], held, on_device(device))
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def thinned(held: Sequence[int], most: int = 200) -> List[float]:
    """Every n-th reading, scaled to growth per step: the number of pairs is quadratic."""
    every = max(1, -(-len(held) // most))
    kept = [float(value) for value in held[::every]]
    first = kept[0] if kept else 0.0
    return [first + (value - first) / every for value in kept]


def _plot(found: Sequence[MemorySeries]) -> Plot:
    lines = tuple(
        (series.what, tuple((float(i), value / MB) for i, value in enumerate(series.held)))
        for series in found
    )
    return Plot("Memory held while training", "step", "MB", lines)
