"""Speed: arithmetic, memory and copies against the card's figures and its twins."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Set

from verify.backends.base import of
from verify.backends.sight import START_WITH_GPUS
from verify.checks.health.pcie import PCIE_LANE_GBS
from verify.checks.speed import rates, watch
from verify.checks.speed.pace import MeasuredRate, RatedCard, judge_rates, spec_of
from verify.device.telemetry import State
from verify.model.check import Check, Context, Outcome, Status
from verify.model.measures import Plot, median

Load = Callable[[], Callable[[], object]]  # makes work that is called until a card is warm


# Products


def check_gemm(context: Context) -> Outcome:
    """Multiply large matrices in each number format."""
    return _rate_all(context, "products", _products, near_host=False)


class Measured(NamedTuple):
    """What one device did, and the work under which its state is read."""

    rates: List[MeasuredRate]
    load: Load
    left_out: Sequence[str] = ()
    plots: Sequence[Plot] = ()


def _rate_all(
    context: Context, what: str, measure: "Callable[[Context, Any], Measured]", *, near_host: bool
) -> Outcome:
    """Measure each device, on the CPUs closest to it if the host takes part; read its state under
    the load of the measurement, and judge.
    """
    free = watch.before(context.machine)
    broken, places = of(context).every(context)
    broken = broken or (_cannot_copy(places[0]) if near_host else None)
    if broken:
        return broken
    seen = []
    for place in places:
        with near(place, free) if near_host else contextlib.nullcontext():
            some = measure(context, place)
            seen.append((some, describe(context, place, some.load, free)))
    return judge_rates(
        [_with_figure(rate, card) for some, card in seen for rate in some.rates],
        [card for _, card in seen if card],
        device=places[0].kind,
        what=what,
        plots=[plot for some, _ in seen for plot in some.plots],
        notes=tuple(dict.fromkeys(note for some, _ in seen for note in some.left_out)),
    )


def _products(context: Context, place: Any) -> Measured:
    """The load is that of most training: bf16 products, and fp32 on older cards."""
    found, left_out = [], []
    repeats, longest_s = context.pick(3, 7, 15), 0.05 if place.is_gpu else 0.25
    for dtype in rates.dtypes(place):
        try:
            samples, size = rates.gemm(place, dtype, repeats=repeats, longest_s=longest_s)
            found.append(
                MeasuredRate("gemm", place.index, tuple(samples), "TFLOP/s", dtype, size=size)
            )
        except Exception as problem:  # noqa: PERF203  # most likely there is no kernel
            left_out.append("{} not measured: {}".format(dtype, str(problem).split("\n")[0][:80]))
    heavy = [rate for rate in found if rate.label == "bf16"] or found

    def load() -> Callable[[], object]:
        dtype, size = (heavy[-1].label, heavy[-1].size) if heavy else ("fp32", rates.SIZES[0])
        work: Callable[[], object] = place.product(dtype, size)
        return work

    return Measured(found, load, left_out)


def _with_figure(rate: MeasuredRate, card: Optional[RatedCard]) -> MeasuredRate:
    if rate.metric in rates.WAYS:
        return replace(rate, figure=link_gbs(rate.metric, card))
    if card is None or card.spec is None:
        return rate
    figure = card.spec.memory_bandwidth_gbs
    if rate.metric == "gemm":
        figure = card.spec.tflops.get(rate.label)
    return replace(rate, figure=figure, sure=card.spec.sure)


def describe(context: Context, place: Any, make: Load, free: State) -> Optional[RatedCard]:
    """The card with its state under the load that `make` creates, and who used it before; None for
    the CPU.
    """
    if not place.is_gpu:
        return None
    with place.scope():
        work = make()
        each = median(place.seconds(work, repeats=3, warm_up=1))
        seen = watch.under(work, place.synchronize, each, context.machine.state)
    place.release()
    found = [place.state_in(state.gpus) for state in seen]
    gpu = watch.merged([one for one in found if one is not None])
    spec = spec_of(place.card, gpu.uuid if gpu else None, context.expect.gpus)
    private, busy = seen[-1].confidential is True, watch.busy(place.state_in(free.gpus))
    return RatedCard(place.index, place.card, gpu, spec, busy, confidential=private)


# Memory


def check_memory(context: Context) -> Outcome:
    """Copy a large buffer within the device's memory."""
    return _rate_all(context, "copies within memory", _copies, near_host=False)


def _copies(context: Context, place: Any) -> Measured:
    samples, size = rates.memory_copy(place, repeats=context.pick(3, 7, 15))
    rate = MeasuredRate("memory_copy", place.index, tuple(samples), "GB/s", size=size)
    return Measured([rate], partial(place.copier, size))


# Host and GPU


def check_copies(context: Context) -> Outcome:
    """Copy between the host's memory and each GPU's, pinned and pageable."""
    return _rate_all(context, "copies from (h2d) and to (d2h) the host", _transfers, near_host=True)


def _cannot_copy(place: Any) -> Optional[Outcome]:
    if not place.is_gpu:
        return Outcome(Status.SKIP, "no GPU visible", fix=START_WITH_GPUS)
    missing = place.cannot_pin()
    why = "only pinned memory shows how fast a link is"
    return Outcome(Status.SKIP, missing, why) if missing else None


def _transfers(context: Context, place: Any) -> Measured:
    """In each way; the curve over all sizes for one card."""
    sizes = rates.transfer_sizes(context.pick(1 << 24, 1 << 28, 1 << 30))
    few = sizes[-1:] if place.index else sizes
    repeats = context.pick(3, 5, 9)
    by_way = {way: rates.transfers(place, way, few, repeats=repeats) for way in rates.WAYS}
    lines = tuple((way.replace("_", ", "), rates.points(found)) for way, found in by_way.items())
    title = "Copies between the host and GPU {}".format(place.index)
    plot = Plot(title, "size (bytes)", "GB/s", lines, log_x=True)
    found = [
        MeasuredRate(way, place.index, tuple(some[max(some)]), "GB/s", size=max(some))
        for way, some in by_way.items()
    ]
    load = partial(place.transfer, rates.WAYS[0], min(max(sizes), 1 << 26))
    return Measured(found, load, plots=[plot] if len(few) > 1 else [])


def link_gbs(metric: str, card: Optional[RatedCard]) -> Optional[float]:
    """GB/s that the card's link to the host can do in one direction.

    From its current lanes, since NVML's maximum may exceed the card's own, and the highest
    generation, which it must reach under load. None for pageable memory, which is copied twice, and
    if no link is known. On a GH200 or GB200 copies go over C2C, not PCIe.
    """
    gpu = card.state if card else None
    if gpu is None or not metric.endswith("pinned"):
        return None
    if gpu.c2c_links or gpu.addressing == "ats":
        return gpu.c2c_gbs
    lane = PCIE_LANE_GBS.get(gpu.pcie_generation_max or 0)
    return lane * gpu.pcie_width if lane and gpu.pcie_width else None


@contextlib.contextmanager
def near(place: Any, free: State) -> Iterator[None]:
    """Run on the CPUs closest to the card, if the kernel names them and allows it."""
    gpu = place.state_in(free.gpus)
    allowed = os.sched_getaffinity(0)
    local = _local_cpus(gpu.bus_id if gpu else None) & allowed
    if local:
        os.sched_setaffinity(0, local)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _local_cpus(bus_id: Optional[str]) -> "Set[int]":
    """The CPUs from /sys. NVML prints eight digits of the PCI domain, the kernel four."""
    if not bus_id:
        return set()
    path = "/sys/bus/pci/devices/{}/local_cpulist".format(bus_id[-12:].lower())
    try:
        with open(path, encoding="ascii") as file:
            return cpus_of(file.read())
    except (OSError, ValueError):
        return set()


def cpus_of(text: str) -> "Set[int]":
    """The numbers in a kernel CPU list: "0-3,8". Raises ValueError."""
    found: Set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


CHECKS = (
    Check(
        "speed.gemm",
        "Matrix products as fast as on GPUs of this model",
        check_gemm,
        "standard",
        300,
        gauge=True,
    ),
    Check(
        "speed.memory",
        "Memory as fast as on GPUs of this model",
        check_memory,
        "standard",
        120,
        gauge=True,
    ),
)
COPIES = Check(
    "speed.copies", "Copies as fast as the link", check_copies, "standard", 200, gauge=True
)
