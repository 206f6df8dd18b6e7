"""Whether a card is as fast as its specification and its twins, and why it is not.

The floors are far below what healthy cards reach, so a lower rate is clearly a fault. Large
products reach 60 to 95 % of a figure and copies within memory 70 to 95 %: published readings are in
tests/data/verify/recorded/rates.json. If only the power limit slows a card (75 W cards cannot keep
their clocks through large products), the floor is lower.

A figure that is uncertain fails a card only far below it, and a very low clock under load that NVML
gives no reason for fails one without any figure.

A rate is shown without a verdict if the figure does not apply: a part of a card (MIG, vGPU), a
laptop (its maker sets the power), a lowered power limit, a card that others use; for copies from
and to the host also a virtual machine, confidential computing and memory shared with the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.checks.health.condition import is_laptop
from verify.checks.speed.slowness import is_stuck, lowered, why_low, why_slow
from verify.checks.speed.watch import END_USERS
from verify.device.telemetry import GpuState
from verify.model.check import NODE, ON_CPU, Outcome, Status, gpus
from verify.model.expectations import ExpectedGpu, Spec
from verify.model.measures import Metric, Plot, Table, median, of_samples, pack

FLOOR = {"gemm": 0.5, "memory_copy": 0.6, "h2d_pinned": 0.5, "d2h_pinned": 0.5}
POWER_FLOOR = 0.25  # for products, if the card is at its power limit and nothing else is wrong
UNCERTAIN_FLOOR = 0.2  # of a figure that may be wrong: twice too high, with sparsity, for example
# Share of its twins' rate: equal cards of one machine differ by some 8 % and rarely by more than
# 10 % (Sinha et al., "Not All GPUs Are Created Equal", SC 2022, over five clusters). With two cards
# it is not known which is the normal one, so the limit is looser.
TWIN_FLOOR, PAIR_FLOOR = 0.85, 0.7
_AMONG_PEERS = ("gemm", "memory_copy")  # copies depend on each card's CPU socket
USUAL_LINK = 0.7  # of a link's figure: healthy machines copy at 75 to 90 %
CEILING = 1.05  # a higher share means that the measurement or the figure is wrong
_AT_EASE = ("gpu_idle", "sw_power_cap")
Fault = Tuple[str, str, str, Optional[str]]  # message, cause, fix, what is at fault


@dataclass(frozen=True)
class MeasuredRate:
    """One card's rate in one metric, sample by sample, and its figure for that."""

    metric: str  # a key of FLOOR if it is judged
    gpu: int
    samples: Tuple[float, ...]
    unit: str
    label: str = ""  # the dtype
    size: int = 0  # rows of the matrices, or bytes
    figure: Optional[float] = None
    sure: bool = True  # whether the figure is the maker's for this very card

    @property
    def value(self) -> float:
        """The median."""
        return median(self.samples)

    @property
    def share(self) -> Optional[float]:
        """Of the figure."""
        return self.value / self.figure if self.figure else None

    def words(self) -> str:
        """As "bf16 788 TFLOP/s (80 %)"."""
        name = "" if self.metric == "memory_copy" else self.metric.replace("_", " ")
        text = "{} {} {}".format(self.label or name, _three(self.value), self.unit).strip()
        return text if self.share is None else "{} ({:.0f} %)".format(text, 100 * self.share)


@dataclass(frozen=True)
class RatedCard:
    """A card and its state under load; the state is None without NVML."""

    index: int  # the framework's number
    name: str = ""
    state: Optional[GpuState] = None
    spec: Optional[Spec] = None
    busy: Optional[str] = None  # who used it before this process
    confidential: bool = False  # confidential computing: transfers from the card are encrypted


def spec_of(
    name: str, uuid: Optional[str], expected: Optional[Sequence[ExpectedGpu]]
) -> Optional[Spec]:
    """The figures that the expectations have for this card."""
    rows = [gpu for gpu in expected or () if gpu.spec is not None]
    for gpu in rows:
        if uuid and gpu.uuid == uuid:
            return gpu.spec
    alike = (gpu.spec for gpu in rows if gpu.name and _plain(gpu.name) == _plain(name))
    return next(alike, None)


def _plain(name: str) -> str:
    """The name without the maker's, which drivers before about 495 leave out."""
    return name[len("NVIDIA ") :] if name.startswith("NVIDIA ") else name


def judge_rates(
    rates: Sequence[MeasuredRate],
    cards: Sequence[RatedCard],
    *,
    device: str,
    what: str,
    plots: Sequence[Plot] = (),
    notes: Sequence[str] = (),
) -> Outcome:
    """Whether each card is as fast as its specification and its twins; else only the numbers."""
    measured: Dict[str, Any] = {"device": device}
    measured.update(pack([_metric(rate, cards) for rate in rates], [_table(rates, cards)], plots))
    expected = {"least_share": {rate.metric: _floor(rate) for rate in rates if _judged(rate)}}
    if not rates:
        message = "nothing was measured: " + ("; ".join(notes) or "no reason given")
        fix = "see devices.kernel"
        return Outcome(Status.FAIL, message, "no work could be timed", fix, measured, expected)
    by_index = {card.index: card for card in cards}
    slow = [rate for rate in rates if _too_slow(rate, by_index.get(rate.gpu))]
    free = [_slow(rate, by_index[rate.gpu]) for rate in slow if not by_index[rate.gpu].busy]
    fault = free[0] if free else _stuck(rates, cards) or _behind(rates, by_index)
    if fault:
        return Outcome(Status.FAIL, *fault[:3], measured, expected, fault[3])
    told = [*_summary(rates, by_index, device, what), *_remarks(rates, by_index), *notes]
    if not slow:
        return Outcome(Status.PASS, "; ".join(told), measured=measured, expected=expected)
    card = by_index[slow[0].gpu]  # others use it too: there is no verdict on it
    message = "GPU {} is in use ({}): {}".format(card.index, card.busy, "; ".join(told))
    cause = "other processes use part of it"
    return Outcome(Status.SKIP, message, cause, END_USERS, measured, expected)


def _judged(rate: MeasuredRate) -> bool:
    return rate.metric in FLOOR and rate.figure is not None


def _floor(rate: MeasuredRate, *, capped: bool = False) -> float:
    floor = POWER_FLOOR if capped else FLOOR[rate.metric]
    return floor if rate.sure else min(floor, UNCERTAIN_FLOOR)


def unjudged(metric: str, card: Optional[RatedCard]) -> Optional[str]:
    """Why a card's figure does not apply to its rate, in words; None if it does."""
    state = card.state if card else None
    if card is None or state is None:
        return None
    if state.mig:
        return "there is no specification for a MIG slice"
    if state.virtualization == "vgpu":
        return "there is no specification for a vGPU, a part of a GPU"
    if is_laptop(state):
        return "a laptop's GPU has the power limit that its vendor chose: no specification applies"
    if metric == "gemm" and lowered(state):
        said = "its power limit was lowered to {:.0f} of {:.0f} W: no specification applies"
        return said.format(state.power_limit_w or 0, state.power_limit_default_w or 0)
    if not metric.endswith("pinned"):
        return None
    if card.confidential:
        return "confidential computing encrypts copies: no specification applies"
    if state.virtualization not in (None, "none"):
        return "in a virtual machine the hypervisor limits copies: no specification applies"
    return None


def _too_slow(rate: MeasuredRate, card: Optional[RatedCard]) -> bool:
    if card is None or rate.share is None or not _judged(rate) or unjudged(rate.metric, card):
        return False
    capped = rate.metric == "gemm" and _at_power_limit(card)
    return rate.share < _floor(rate, capped=capped)


def _at_power_limit(card: RatedCard) -> bool:
    """Whether the card's default power limit slows it, and nothing else does."""
    if card.state is None or card.state.throttle_reasons is None or lowered(card.state):
        return False
    reasons = set(card.state.throttle_reasons)
    return "sw_power_cap" in reasons and reasons <= set(_AT_EASE)


def _slow(rate: MeasuredRate, card: RatedCard) -> Fault:
    said = "GPU {} ({}): {}, where its class does {:.4g}"
    message = said.format(card.index, card.name, rate.words(), rate.figure or 0.0)
    doubt = "" if rate.sure else ", a figure that is uncertain, but not by so much"
    return (message + doubt, *why_slow(rate.metric, card.state))


def _stuck(rates: Sequence[MeasuredRate], cards: Sequence[RatedCard]) -> Optional[Fault]:
    """The first card that products do not wake up. Other work may leave a clock low."""
    states = [card.state for card in cards if card.state and not card.busy]
    slow = next((state for state in states if is_stuck(state)), None)
    if slow is None or rates[0].metric != "gemm":
        return None
    said = "GPU {}: SM clock {} of {} MHz under load"
    message = said.format(slow.index, slow.clock_sm_mhz, slow.clock_sm_max_mhz)
    return (message, *why_low(slow))


def _behind(rates: Sequence[MeasuredRate], cards: Dict[int, RatedCard]) -> Optional[Fault]:
    """The first card that is slower than its twins, of which one in the middle is typical."""
    for rate in rates:
        if rate.metric not in _AMONG_PEERS or rate.gpu not in cards:
            continue
        alike = [one for one in rates if (one.metric, one.label) == (rate.metric, rate.label)]
        card = cards[rate.gpu]
        twins = [one for one in alike if one.gpu in cards and are_alike(cards[one.gpu], card)]
        usual = sorted(twins, key=lambda one: one.value)[len(twins) // 2] if twins else rate
        if rate.value < (TWIN_FLOOR if len(twins) > 2 else PAIR_FLOOR) * usual.value:
            said = "GPU {}: {}, GPU {} of the same model: {}"
            message = said.format(rate.gpu, rate.words(), usual.gpu, _three(usual.value))
            return (message, *why_slow(rate.metric, card.state)[:2], NODE)
    return None


def are_alike(one: RatedCard, other: RatedCard) -> bool:
    """Whether two cards are twins: of one kind, whole, free, with one power limit and no screen."""
    if one.name != other.name or one.busy or other.busy:
        return False
    states = [card.state for card in (one, other) if card.state is not None]
    if any(state.mig or state.virtualization == "vgpu" for state in states):
        return False
    limits = {state.power_limit_w for state in states}
    return len(limits) < 2 and len({bool(state.display) for state in states}) < 2


# Words


def _three(value: float) -> str:
    """Three digits without an exponent."""
    return "{:.0f}".format(value) if value >= 100 else "{:.3g}".format(value)


def _summary(
    rates: Sequence[MeasuredRate], cards: Dict[int, RatedCard], device: str, what: str
) -> List[str]:
    """The first card's rates, with the number of other cards."""
    first = rates[0].gpu
    texts = ", ".join(rate.words() for rate in rates if rate.gpu == first)
    if device == "cpu":
        return ["{}: {}, {}".format(what, texts, ON_CPU)]
    others = len({rate.gpu for rate in rates}) - 1
    name = cards[first].name if first in cards else "GPU {}".format(first)
    more = " (and {} in the table)".format(gpus(others)) if others else ""
    return ["{}: {} on {}{}".format(what, texts, name, more)]


def _remarks(rates: Sequence[MeasuredRate], cards: Dict[int, RatedCard]) -> List[str]:
    found = []
    over = next((r for r in rates if r.share is not None and r.share > CEILING), None)
    if over:
        told = "{} is more than the specified {:.4g}: one of the two is wrong"
        found.append(told.format(over.words(), over.figure))
    pinned = [
        r
        for r in rates
        if r.metric.endswith("pinned") and r.share and not unjudged(r.metric, cards.get(r.gpu))
    ]
    if any((rate.share or 0) < USUAL_LINK for rate in pinned):
        found.append("healthy links reach {:.0f} % or more".format(100 * USUAL_LINK))
    if any(rate.share is not None and not rate.sure for rate in rates):
        said = "the specification is uncertain: only less than {:.0f} % of it fails"
        found.append(said.format(100 * UNCERTAIN_FLOOR))
    why = [unjudged(rate.metric, cards.get(rate.gpu)) for rate in rates]
    found += [words for words in dict.fromkeys(why) if words]
    capped = [cards[index].state for index in sorted(cards) if _at_power_limit(cards[index])]
    if capped and rates[0].metric == "gemm":
        watts = capped[0].power_limit_w if capped[0] else None
        limit = "" if watts is None else " of {:.0f} W".format(watts)
        found.append("at its power limit" + limit)
    return found


def _metric(rate: MeasuredRate, cards: Sequence[RatedCard]) -> Metric:
    labels = {"dtype": rate.label} if rate.label else {}
    if any(card.index == rate.gpu for card in cards):
        labels["gpu"] = str(rate.gpu)
    return of_samples(
        rate.metric, rate.samples, rate.unit, labels=labels, spec=rate.figure if rate.sure else None
    )


def _table(rates: Sequence[MeasuredRate], cards: Sequence[RatedCard]) -> Table:
    names = {card.index: card.name for card in cards}
    rows = tuple(
        (
            names.get(rate.gpu, "CPU"),
            rate.gpu if rate.gpu in names else None,
            rate.label or rate.metric.replace("_", ", "),
            rate.size or None,
            rate.value,
            rate.figure,
            None if rate.share is None else 100 * rate.share,
        )
        for rate in rates
    )
    unit = rates[0].unit if rates else ""
    head = ("card", "GPU", "what", "size", unit, "its class: " + unit, "%")
    return Table("Speed", head, rows)
