"""Matrix products timed through TensorFlow or JAX, with the same measurement for both."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Callable, Dict, List, Optional, Protocol, Sequence, Tuple, TypeVar, Union

from verify.checks.speed import watch
from verify.checks.speed.pace import MeasuredRate, RatedCard, judge_rates, spec_of
from verify.checks.speed.rates import SIZES, pick_size
from verify.device import same_gpu
from verify.device.telemetry import State
from verify.model.check import Context, Outcome
from verify.model.measures import median

BATCH_S = 0.1  # one timed batch: the wait for the device is negligible
WARM_UP_S = 0.25  # the clocks' ramp-up time
_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
_ROOM = 2 << 30  # bytes for three matrices: enough for the largest size in float64
_CPU_ROOM = 64 << 20


class MatmulDevice(Protocol):
    """What a framework's Place offers here."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""

    @property
    def capability(self) -> Optional[Tuple[int, int]]:
        """The compute capability; None on the CPU."""

    @property
    def card(self) -> str:
        """The card's name."""

    def seconds(
        self, work: Callable[[], object], *, repeats: int, warm_up: int = 3, calls: int = 1
    ) -> List[float]:
        """Seconds per call, each the mean of `calls` calls."""

    def synchronize(self) -> None:
        """Return when all work is done."""


AnyDevice = TypeVar("AnyDevice", bound=MatmulDevice)
Product = Callable[[str, int], Callable[[], object]]  # (dtype, size) -> one product


def check(
    context: Context, places: Sequence[AnyDevice], product: Callable[[AnyDevice], Product]
) -> Outcome:
    """Time each dtype on each device, and compare with the card's own figures."""
    rates: List[MeasuredRate] = []
    cards: List[RatedCard] = []
    notes: Dict[str, None] = {}
    free = watch.before(context.machine) if any(place.is_gpu for place in places) else State()
    for index, place in enumerate(places):
        make = product(place)
        for dtype in dtypes(place.capability):
            found = _attempt(place, index, dtype, make, context.pick(3, 5, 15))
            if isinstance(found, str):
                notes[found] = None
            else:
                rates.append(found)
        if place.is_gpu:
            cards.append(_card(context, place, index, len(places), make("fp32", 2048), free))
    figured = [_figured(rate, cards) for rate in rates]
    kind = "cuda" if places and places[0].is_gpu else "cpu"
    return judge_rates(figured, cards, device=kind, what="products", notes=tuple(notes))


def _attempt(
    place: MatmulDevice, index: int, dtype: str, make: Product, repeats: int
) -> Union[MeasuredRate, str]:
    """The rate, or why there is none: most likely this dtype has no kernel."""
    try:
        return measure(place, index, dtype, make, repeats)
    except Exception as problem:
        return "{} not measured: {}".format(dtype, str(problem).partition("\n")[0][:80])


def dtypes(capability: Optional[Tuple[int, int]]) -> Tuple[str, ...]:
    """The dtypes that a device has units for: fp16 from 6.0, TF32 and bf16 from 8.0."""
    if capability is None:
        return ("fp32", "bf16")
    found = ["fp64", "fp32"]
    found += ["tf32", "bf16"] if capability >= (8, 0) else []
    found += ["fp16"] if capability >= (6, 0) else []
    return tuple(found)


def measure(
    place: MatmulDevice, index: int, dtype: str, make: Product, repeats: int
) -> MeasuredRate:
    """TFLOP/s of a square product, per batch. A product of two n x n is 2 n^3 operations."""
    tried = 1024 if place.is_gpu else SIZES[0]
    once = min(place.seconds(make(dtype, tried), repeats=2, warm_up=2))
    cells = (_ROOM if place.is_gpu else _CPU_ROOM) // (3 * _BYTES[dtype])
    size = pick_size(tried, once, 0.05 if place.is_gpu else 0.1, cells)
    work = make(dtype, size)
    first = max(min(place.seconds(work, repeats=2, warm_up=1)), 1e-7)
    calls = max(1, math.ceil(BATCH_S / first))
    warm_up = max(1, math.ceil(WARM_UP_S / BATCH_S)) if place.is_gpu else 0
    each = place.seconds(work, repeats=repeats, warm_up=warm_up, calls=calls)
    samples = tuple(2.0 * size**3 / seconds / 1e12 for seconds in each)
    return MeasuredRate("gemm", index, samples, "TFLOP/s", dtype, size=size)


def _card(
    context: Context,
    place: MatmulDevice,
    index: int,
    visible: int,
    work: Callable[[], object],
    free: State,
) -> RatedCard:
    """The card, with its state before and under load."""
    before = same_gpu.match(index, None, visible, free.gpus)
    each = median(place.seconds(work, repeats=3, warm_up=1))
    seen = watch.under(work, place.synchronize, each, context.machine.state)
    found = [same_gpu.match(index, None, visible, state.gpus) for state in seen]
    gpu = watch.merged([one for one in found if one is not None])
    spec = spec_of(place.card, gpu.uuid if gpu else None, context.expect.gpus)
    return RatedCard(index, place.card, gpu, spec, watch.busy(before))


def _figured(rate: MeasuredRate, cards: Sequence[RatedCard]) -> MeasuredRate:
    spec = next((card.spec for card in cards if card.index == rate.gpu), None)
    if spec is None:
        return rate
    return replace(rate, figure=spec.tflops.get(rate.label), sure=spec.sure)
