"""Speed: arithmetic, memory and copies against the card's figures; CPU against GPU."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from verify.backends.pytorch import Place, find_gpus
from verify.backends.pytorch import find as find_place
from verify.backends.sight import START_WITH_GPUS
from verify.checks.health.pcie import PCIE_LANE_GBS
from verify.checks.speed import rates, watch
from verify.checks.speed.pace import MeasuredRate, RatedCard, judge_rates, spec_of
from verify.device import same_gpu
from verify.device.telemetry import State
from verify.model.check import Check, Context, Outcome, Status
from verify.model.measures import Metric, Plot, Table, median, of_samples, pack
from verify.workloads import models

BATCHES = {"small": 64, "large": 4}  # samples per step, the same on the CPU and on a GPU


def find(context: Context) -> "Tuple[Optional[Outcome], Tuple[Place, ...]]":
    """Every GPU, or the CPU if nothing hints at one."""
    broken, place = find_place(context)
    if broken or not place.is_gpu:
        return broken, (place,)
    return find_gpus(context)


# Products


def check_gemm(context: Context) -> Outcome:
    """Multiply large matrices in each number format."""
    free = watch.before(context.machine)
    broken, places = find(context)
    if broken:
        return broken
    found: List[MeasuredRate] = []
    cards: List[RatedCard] = []
    notes: Dict[str, None] = {}
    for place in places:
        some, left_out = _products(context, place)
        card = describe(context, place, partial(_load, place, some), free)
        found += [_with_figure(rate, card) for rate in some]
        cards += [card] if card else []
        notes.update(dict.fromkeys(left_out))
    return judge_rates(found, cards, device=places[0].kind, what="products", notes=tuple(notes))


def _products(context: Context, place: Place) -> "Tuple[List[MeasuredRate], List[str]]":
    found, left_out = [], []
    repeats, longest_s = context.pick(3, 7, 15), 0.05 if place.is_gpu else 0.25
    for dtype in rates.dtypes(place):
        restore = rates.with_tf32(on=dtype == "tf32")
        try:
            samples, size = rates.gemm(place, dtype, repeats=repeats, longest_s=longest_s)
            found.append(
                MeasuredRate("gemm", place.index, tuple(samples), "TFLOP/s", dtype, size=size)
            )
        except RuntimeError as problem:  # no kernel for this dtype, most likely
            left_out.append("{} not measured: {}".format(dtype, str(problem).split("\n")[0][:80]))
        finally:
            restore()
    return found, left_out


def _load(place: Place, found: Sequence[MeasuredRate]) -> Callable[[], object]:
    """The load of most training: bf16 products, and fp32 on older cards."""
    heavy = [rate for rate in found if rate.label == "bf16"] or list(found)
    return rates.product(place, heavy[-1].label, heavy[-1].size)


def _with_figure(rate: MeasuredRate, card: Optional[RatedCard]) -> MeasuredRate:
    if card is None or card.spec is None:
        return rate
    figure = card.spec.memory_bandwidth_gbs
    if rate.metric == "gemm":
        figure = card.spec.tflops.get(rate.label)
    return replace(rate, figure=figure, sure=card.spec.sure)


def describe(
    context: Context, place: Place, make: Callable[[], Callable[[], object]], free: State
) -> Optional[RatedCard]:
    """The card with its state under the load that `make` creates, and who used it before; None for
    the CPU.
    """
    import torch

    if not place.is_gpu:
        return None
    name = str(torch.cuda.get_device_name(place.index))
    with torch.cuda.device(place.index):
        work = make()
        each = median(place.seconds(work, repeats=3, warm_up=1))
        seen = watch.under(work, place.synchronize, each, context.machine.state)
    place.release()
    found = [same_gpu.find(place.index, state.gpus) for state in seen]
    gpu = watch.merged([one for one in found if one is not None])
    before = same_gpu.find(place.index, free.gpus)
    spec = spec_of(name, gpu.uuid if gpu else None, context.expect.gpus)
    private = seen[-1].confidential is True
    return RatedCard(place.index, name, gpu, spec, watch.busy(before), confidential=private)


# Memory


def check_memory(context: Context) -> Outcome:
    """Copy a large buffer within the device's memory."""
    free = watch.before(context.machine)
    broken, places = find(context)
    if broken:
        return broken
    found: List[MeasuredRate] = []
    cards: List[RatedCard] = []
    for place in places:
        samples, size = rates.memory_copy(place, repeats=context.pick(3, 7, 15))
        rate = MeasuredRate("memory_copy", place.index, tuple(samples), "GB/s", size=size)
        card = describe(context, place, partial(rates.copy_within, place, size), free)
        found.append(_with_figure(rate, card))
        cards += [card] if card else []
    return judge_rates(found, cards, device=places[0].kind, what="copies within memory")


# Host and GPU


def check_copies(context: Context) -> Outcome:
    """Copy between the host's memory and each GPU's, pinned and pageable."""
    free = watch.before(context.machine)
    broken, places = find(context)
    if broken:
        return broken
    if not places[0].is_gpu:
        message = "no GPU visible"
        return Outcome(Status.SKIP, message, fix=START_WITH_GPUS)
    sizes = rates.transfer_sizes(context.pick(1 << 24, 1 << 28, 1 << 30))
    found: List[MeasuredRate] = []
    cards: List[RatedCard] = []
    plots: List[Plot] = []
    for place in places:
        few = sizes if place.index == 0 else sizes[-1:]  # the curve over all sizes for one card
        load = partial(rates.transfer, place, "h2d_pinned", min(max(sizes), 1 << 26))
        with near(place, free):
            some, plot = _transfers(context, place, few)
            card = describe(context, place, load, free)
        found += [replace(rate, figure=link_gbs(rate.metric, card)) for rate in some]
        cards += [card] if card else []
        plots += [plot] if len(few) > 1 else []
    what = "copies from (h2d) and to (d2h) the host"
    return judge_rates(found, cards, device=places[0].kind, what=what, plots=plots)


def _transfers(
    context: Context, place: Place, sizes: Sequence[int]
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
def near(place: Place, free: State) -> Iterator[None]:
    """Run on the CPUs closest to the card, if the kernel names them and allows it."""
    gpu = same_gpu.find(place.index, free.gpus)
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


# Training


@dataclass(frozen=True)
class TimedSteps:
    """Seconds of a training step of one network, on the CPU and on the first GPU."""

    net: str
    layers: int
    batch: int
    cpu: Tuple[float, ...]
    gpu: Tuple[float, ...] = ()

    @property
    def faster(self) -> Optional[float]:
        """The GPU's speed as a multiple of the CPU's."""
        return median(self.cpu) / median(self.gpu) if self.gpu else None


def check_training(context: Context) -> Outcome:
    """Train a small and a large network for a few steps on the CPU and on the first GPU."""
    broken, place = find_place(context)
    if broken:
        return broken
    found = []
    for net, layers, make in (("small", 10, models.small_net), ("large", 50, models.large_net)):
        batch = BATCHES[net]
        repeats = context.pick(2, 2, 7)
        cpu = rates.train_step(Place("cpu"), make(), batch, repeats=repeats)
        gpu: List[float] = []
        if place.is_gpu:
            gpu = rates.train_step(place, make(), batch, repeats=4 * repeats)
        found.append(TimedSteps(net, layers, batch, tuple(cpu), tuple(gpu)))
    return judge_training(found, place.kind)


def judge_training(found: Sequence[TimedSteps], device: str) -> Outcome:
    """Whether the GPU trains the large network faster than the CPU; a small one need not be."""
    measured: Dict[str, Any] = {"device": device}
    measured.update(pack(_step_metrics(found), [_step_table(found)]))
    expected = {"large_net_faster": "more than once"}
    large = next((row for row in found if row.net == "large"), None)
    if large is not None and large.faster is not None and large.faster <= 1:
        message = "the GPU trains the {}-layer network {:.2g} times as fast as the CPU".format(
            large.layers, large.faster
        )
        cause = "something limits the GPU: clocks, other processes, or the link to the host"
        fix = "see speed.gemm, speed.memory and health.clocks"
        return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    parts = []
    for row in found:
        text = "{} layers {:.3g} s a step of {}".format(row.layers, median(row.cpu), row.batch)
        if row.faster is not None:
            told = "{} layers {:.3g} s on the GPU, {:.3g} s on the CPU ({:.3g} times as fast)"
            text = told.format(row.layers, median(row.gpu), median(row.cpu), row.faster)
        parts.append(text)
    note = "" if device == "cuda" else ", on the CPU: no GPU visible"
    message = "training: {}{}".format("; ".join(parts), note)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _step_metrics(found: Sequence[TimedSteps]) -> List[Metric]:
    rows = [(row, "cpu", row.cpu) for row in found] + [(row, "gpu", row.gpu) for row in found]
    return [
        of_samples(
            "train_step", some, "s", better="lower", labels={"net": row.net, "device": device}
        )
        for row, device, some in rows
        if some
    ]


def _step_table(found: Sequence[TimedSteps]) -> Table:
    rows = tuple(
        (
            "{} ({} layers)".format(row.net, row.layers),
            row.batch,
            median(row.cpu),
            median(row.gpu) if row.gpu else None,
            row.faster,
        )
        for row in found
    )
    head = ("network", "samples a step", "CPU (s)", "GPU (s)", "times as fast")
    return Table("A training step on the CPU and on the GPU", head, rows)


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
    Check("speed.copies", "Copies as fast as the link", check_copies, "standard", 200, gauge=True),
    Check(
        "speed.training",
        "A training step, CPU and GPU",
        check_training,
        "standard",
        200,
        gauge=True,
    ),
)
