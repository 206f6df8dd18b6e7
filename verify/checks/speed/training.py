"""A training step of a small and of a large network, on the CPU and on the first GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.backends.base import of
from verify.model.check import ON_CPU, Check, Context, Outcome, Status
from verify.model.measures import Metric, Table, median, of_samples, pack
from verify.workloads import networks
from verify.workloads.networks import Network

BATCHES = {"small": 64, "large": 4}  # samples per step, the same on the CPU and on a GPU


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
    backend = of(context)
    broken, place = backend.find(context)
    if broken:
        return broken
    found = []
    for net, layers, network in (("small", 10, networks.small()), ("large", 50, networks.large())):
        batch, repeats = BATCHES[net], context.pick(2, 2, 7)
        cpu = _seconds(backend.place("cpu"), network, batch, repeats)
        gpu = _seconds(place, network, batch, 4 * repeats) if place.is_gpu else ()
        found.append(TimedSteps(net, layers, batch, cpu, gpu))
    return judge_training(found, place.kind)


def _seconds(place: Any, network: Network, batch: int, repeats: int) -> Tuple[float, ...]:
    """Of a forward and backward pass and an optimiser's step on `batch` samples."""
    trainer = place.backend.trainer(place, network, rate=0.01)
    data = trainer.data(batch, learnable=False)
    found = place.seconds(lambda: trainer.step(*data), repeats=repeats, warm_up=3)
    place.release()
    return tuple(found)


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
    note = "" if device == "cuda" else ", " + ON_CPU
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
        "speed.training",
        "A training step, CPU and GPU",
        check_training,
        "standard",
        300,
        gauge=True,
    ),
)
