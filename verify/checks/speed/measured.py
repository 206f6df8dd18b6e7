"""Speed: arithmetic, memory and copies against the card's figures and its twins."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

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
    return _rate_all(context, "products", _products)


Rates = Tuple[List[MeasuredRate], Sequence[str]]


def _rate_all(
    context: Context, what: str, measure: "Callable[[Context, Any], Tuple[Rates, Load]]"
) -> Outcome:
    """Measure each device, read its state under the load that `measure` gives, and judge."""
    free = watch.before(context.machine)
    broken, places = of(context).every(context)
    if broken:
        return broken
    found: List[MeasuredRate] = []
    cards: List[RatedCard] = []
    notes: Dict[str, None] = {}
    for place in places:
        (some, left_out), load = measure(context, place)
        card = describe(context, place, load, free)
        found += [_with_figure(rate, card) for rate in some]
        cards += [card] if card else []
        notes.update(dict.fromkeys(left_out))
    return judge_rates(found, cards, device=places[0].kind, what=what, notes=tuple(notes))


def _products(context: Context, place: Any) -> "Tuple[Rates, Load]":
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

    return (found, left_out), load


def _with_figure(rate: MeasuredRate, card: Optional[RatedCard]) -> MeasuredRate:
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
    return _rate_all(context, "copies within memory", _copies)


def _copies(context: Context, place: Any) -> "Tuple[Rates, Load]":
    samples, size = rates.memory_copy(place, repeats=context.pick(3, 7, 15))
    rate = MeasuredRate("memory_copy", place.index, tuple(samples), "GB/s", size=size)
    return ([rate], ()), partial(place.copier, size)


# Host and GPU


def check_copies(context: Context) -> Outcome:
    """Copy between the host's memory and each GPU's, pinned and pageable."""
    free = watch.before(context.machine)
    broken, places = of(context).every(context)
    if broken:
        return broken
    if not places[0].is_gpu:
        message = "no GPU visible"
        return Outcome(Status.SKIP, message, fix=START_WITH_GPUS)
    missing = places[0].cannot_pin()
    if missing:
        return Outcome(Status.SKIP, missing, "only pinned memory shows how fast a link is")
    sizes = rates.transfer_sizes(context.pick(1 << 24, 1 << 28, 1 << 30))
    found: List[MeasuredRate] = []
    cards: List[RatedCard] = []
    plots: List[Plot] = []
    for place in places:
        few = sizes if place.index == 0 else sizes[-1:]  # the curve over all sizes for one card
        load = partial(place.transfer, rates.WAYS[0], min(max(sizes), 1 << 26))
        with near(place, free):
            some, plot = _transfers(context, place, few)
            card = describe(context, place, load, free)
        found += [replace(rate, figure=link_gbs(rate.metric, card)) for rate in some]
        cards += [card] if card else []
        plots += [plot] if len(few) > 1 else []
    what = "copies from (h2d) and to (d2h) the host"
    return judge_rates(found, cards, device=places[0].kind, what=what, plots=plots)


def _transfers(
    context: Context, place: Any, sizes: Sequence[int]
) -> "Tuple[List[MeasuredRate], Plot]":
    by_way = {
        way: rates.transfers(place, way, sizes, repeats=context.pick(3, 5, 9)) for way in rates.WAYS
    }
    lines = tuple((way.replace("_", ", "), rates.points(found)) for way, found in by_way.items())
    title = "Copies between the host and GPU {}".format(place.index)
    plot = Plot(title, "size (bytes)", "GB/s", lines, log_x=True)
    found = [
        MeasuredRate(way, place.index, tuple(some[max(some)]), "GB/s", size=max(some))
        for way, some in by_way.items()
    ]
    return found, plot


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
