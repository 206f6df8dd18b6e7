"""Is a card as fast as its class and its twins? Rates beside figures, and why one falls short.

The floors are far below what sound cards reach, so that less is a fault and no matter of taste.
Large products reach 60 to 95 % of a figure and copies within memory 70 to 95 %: published readings
are in tests/data/verify/recorded/rates.json. Where the power limit is the only thing that holds a
card (75 W cards cannot keep their clocks through large products), the floor is lower.

A rate is shown without a verdict where the figure does not apply: a part of a card (MIG, vGPU), a
laptop (its maker sets the power), a power limit that somebody lowered, a card that others use; for
copies from and to the host also a virtual machine, confidential computing and memory that the CPU
shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.checks.health import is_laptop
from verify.core import Outcome, Status, gpus
from verify.expectations import ExpectedGpu, Spec
from verify.measures import Metric, Plot, Table, median, of_samples, pack
from verify.telemetry import GpuState

FLOOR = {"gemm": 0.5, "memory_copy": 0.6, "h2d_pinned": 0.5, "d2h_pinned": 0.5}
POWER_FLOOR = 0.25  # for products, where the card is at its power limit and nothing else is wrong
# Of what its twins do: equal cards of one machine differ by some 8 % and rarely by more than 10 %
# (Sinha et al., "Not All GPUs Are Created Equal", SC 2022, over five clusters). Of two it is not
# known which is the usual one, so that more is let pass.
TWIN_FLOOR, PAIR_FLOOR = 0.85, 0.7
_AMONG_PEERS = ("gemm", "memory_copy")  # copies depend on the socket that each card hangs on
USUAL_LINK = 0.7  # of a link's figure: sound machines copy at 75 to 90 %
CEILING = 1.05  # more than this of a figure is an error, of the measurement or of the figure
LOW_CLOCK = 0.7  # of the highest clock: less than boost clocks fall to under a full load
_AT_EASE = ("gpu_idle", "sw_power_cap")
LOWERED = 0.9  # of the default power limit: less than this was set by somebody

# (throttle reason, cause, what to do); the first that holds is told
_THROTTLED = (
    (
        ("hw_thermal_slowdown", "sw_thermal_slowdown"),
        "it slows itself down for heat{heat}",
        "look at fans, dust and air flow, and at nvidia-smi -q -d TEMPERATURE",
    ),
    (
        ("hw_power_brake_slowdown",),
        "the machine's power supply holds it back",
        "look at the power supplies and the machine's own power cap (BMC)",
    ),
    (
        ("hw_slowdown",),
        "its hardware slows it down (heat or power)",
        "look at nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE on the host",
    ),
    (
        ("applications_clocks_setting", "sync_boost", "display_clock_setting"),
        "its clocks are held down by a setting{clock}",
        "on the host: nvidia-smi -rac and nvidia-smi -rgc give the clocks free",
    ),
)


@dataclass(frozen=True)
class Rate:
    """What one card did of one thing, sample by sample, and its figure for that."""

    metric: str  # a key of FLOOR where it is judged
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
class Card:
    """A card and its state while it was under the load; the state is None without NVML."""

    index: int  # the framework's number
    name: str = ""
    state: Optional[GpuState] = None
    spec: Optional[Spec] = None
    busy: Optional[str] = None  # who was on it before us
    confidential: bool = False  # confidential computing: what leaves the card is encrypted


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
    """Drivers before about 495 leave the maker's name out."""
    return name[len("NVIDIA ") :] if name.startswith("NVIDIA ") else name


def judge_rates(
    rates: Sequence[Rate],
    cards: Sequence[Card],
    *,
    device: str,
    what: str,
    plots: Sequence[Plot] = (),
    notes: Sequence[str] = (),
) -> Outcome:
    """Whether each card is as fast as its class and as its peers; elsewhere the numbers alone."""
    measured: Dict[str, Any] = {"device": device}
    measured.update(pack([_metric(rate, cards) for rate in rates], [_table(rates, cards)], plots))
    expected = {"least_share": {rate.metric: FLOOR[rate.metric] for rate in rates if _judged(rate)}}
    if not rates:
        message = "nothing was measured: " + ("; ".join(notes) or "no reason given")
        fix = "look at what devices.kernel says"
        return Outcome(Status.FAIL, message, "no work could be timed", fix, measured, expected)
    by_index = {card.index: card for card in cards}
    slow = [rate for rate in rates if _too_slow(rate, by_index.get(rate.gpu))]
    for rate in slow:
        if not by_index[rate.gpu].busy:
            return _slow(rate, by_index[rate.gpu], measured, expected)
    behind = _behind(rates, by_index)
    if behind:
        rate, usual = behind
        return _outrun(rate, usual, by_index[rate.gpu], measured, expected)
    told = [*_summary(rates, by_index, device, what), *_remarks(rates, by_index), *notes]
    if slow:
        return _shared(by_index[slow[0].gpu], told, measured, expected)
    return Outcome(Status.PASS, "; ".join(told), measured=measured, expected=expected)


def _shared(
    card: Card, told: Sequence[str], measured: Dict[str, Any], expected: Dict[str, Any]
) -> Outcome:
    """A slow card that somebody else uses, too: there is no verdict on it."""
    message = "GPU {} is in use ({}): {}".format(card.index, card.busy, "; ".join(told))
    cause = "what it does for others is missing here"
    fix = "end what runs on the GPU (nvidia-smi lists it), and run again"
    return Outcome(Status.SKIP, message, cause, fix, measured, expected)


def _judged(rate: Rate) -> bool:
    return rate.metric in FLOOR and rate.figure is not None and rate.sure


def unjudged(metric: str, card: Optional[Card]) -> Optional[str]:
    """Why a card's figure does not apply to its rate, in words; None where it does."""
    state = card.state if card else None
    if card is None or state is None:
        return None
    if state.mig:
        return "a MIG slice has no figure of its own"
    if state.virtualization == "vgpu":
        return "a vGPU is a part of a card and has no figure of its own"
    if is_laptop(state):
        return "a laptop's GPU has the power that its maker gave it: no figure applies"
    if metric == "gemm" and _lowered(state):
        said = "its power limit was lowered to {:.0f} of {:.0f} W: no figure applies"
        return said.format(state.power_limit_w or 0, state.power_limit_default_w or 0)
    if not metric.endswith("pinned"):
        return None
    if card.confidential:
        return "confidential computing encrypts what is copied: no figure applies"
    if state.virtualization not in (None, "none"):
        return "in a virtual machine the hypervisor sets the pace of copies: no figure applies"
    return None


def _too_slow(rate: Rate, card: Optional[Card]) -> bool:
    if card is None or rate.share is None or not _judged(rate) or unjudged(rate.metric, card):
        return False
    capped = rate.metric == "gemm" and _at_power_limit(card)
    return rate.share < (POWER_FLOOR if capped else FLOOR[rate.metric])


def _at_power_limit(card: Card) -> bool:
    """The card's usual power limit holds it, and nothing else does."""
    if card.state is None or card.state.throttle_reasons is None or _lowered(card.state):
        return False
    reasons = set(card.state.throttle_reasons)
    return "sw_power_cap" in reasons and reasons <= set(_AT_EASE)


def _lowered(state: GpuState) -> bool:
    limit, usual = state.power_limit_w, state.power_limit_default_w
    return limit is not None and usual is not None and limit < LOWERED * usual


def _slow(rate: Rate, card: Card, measured: Dict[str, Any], expected: Dict[str, Any]) -> Outcome:
    message = "GPU {} ({}): {}, where its class does {:.4g}".format(
        card.index, card.name, rate.words(), rate.figure or 0.0
    )
    cause, fix = why_slow(rate.metric, card.state)
    return Outcome(Status.FAIL, message, cause, fix, measured, expected)


def _behind(rates: Sequence[Rate], cards: Dict[int, Card]) -> "Optional[tuple[Rate, Rate]]":
    """A card that falls behind its twins, and the usual one of them."""
    for rate in rates:
        if rate.metric not in _AMONG_PEERS or rate.gpu not in cards:
            continue
        twins = sorted(
            (
                other
                for other in rates
                if (other.metric, other.label) == (rate.metric, rate.label)
                and other.gpu in cards
                and _alike(cards[other.gpu], cards[rate.gpu])
            ),
            key=lambda other: other.value,
        )
        if len(twins) < 2:
            continue
        usual = twins[len(twins) // 2]
        if rate.value < (TWIN_FLOOR if len(twins) > 2 else PAIR_FLOOR) * usual.value:
            return rate, usual
    return None


def _alike(one: Card, other: Card) -> bool:
    """Whether two cards are twins: of one kind, whole, free, with one power limit and no screen."""
    if one.name != other.name or one.busy or other.busy:
        return False
    states = [card.state for card in (one, other) if card.state is not None]
    if any(state.mig or state.virtualization == "vgpu" for state in states):
        return False
    limits = {state.power_limit_w for state in states}
    return len(limits) < 2 and len({bool(state.display) for state in states}) < 2


def _outrun(
    rate: Rate, usual: Rate, card: Card, measured: Dict[str, Any], expected: Dict[str, Any]
) -> Outcome:
    message = "GPU {} does {}, GPU {} of the same kind {}".format(
        rate.gpu, rate.words(), usual.gpu, _three(usual.value)
    )
    cause, fix = why_slow(rate.metric, card.state)
    return Outcome(Status.FAIL, message, cause, fix, measured, expected)


def why_slow(metric: str, state: Optional[GpuState]) -> Tuple[str, str]:
    """What NVML showed under the load, and what to do about it."""
    if state is None:
        return "unknown: NVML told nothing of this card", "look at nvidia-smi -q on the host"
    if metric.endswith("pinned"):
        return _why_slow_link(state)
    for reasons, cause, fix in _THROTTLED:
        if set(reasons) & set(state.throttle_reasons or ()):
            return cause.format(heat=_heat(state), clock=_clock(state)), fix
    others = len(state.processes or ()) - 1
    if others > 0:
        cause = "{} other process{} on this GPU".format(others, "" if others == 1 else "es")
        return cause, "end them (nvidia-smi lists them) and run again"
    if metric == "memory_copy" and _low(state.clock_memory_mhz, state.clock_memory_max_mhz):
        cause = "its memory's clock is {} of {} MHz".format(
            state.clock_memory_mhz, state.clock_memory_max_mhz
        )
        return cause, "on the host: nvidia-smi -rmc gives it free"
    if "sw_power_cap" in (state.throttle_reasons or ()) and _lowered(state):
        usual = state.power_limit_default_w or 0
        cause = "its power limit was set to {:.0f} W of {:.0f} W".format(
            state.power_limit_w or 0, usual
        )
        return cause, "on the host: nvidia-smi -pl {:.0f}".format(usual)
    if "sw_power_cap" in (state.throttle_reasons or ()):
        cause = "it is held by its power limit of {:.0f} W".format(state.power_limit_w or 0)
        return cause, "compare with the default: nvidia-smi -q -d POWER; nvidia-smi -pl sets it"
    if _low(state.clock_sm_mhz, state.clock_sm_max_mhz):
        cause = "its clock stays low{}, and NVML gives no reason".format(_clock(state))
        return cause, "on the host: nvidia-smi -rgc gives the clocks free; look at its kernel log"
    if metric == "memory_copy" and state.ecc_enabled:
        cause = "ECC is on, which costs GDDR memory a part of its bandwidth; that is no full reason"
        return cause, "run again alone on the machine; look at health.memory"
    cause = "NVML shows no reason: clocks, heat and power are in order"
    return cause, "run again alone on the machine; if it stays, have the card looked at"


def _why_slow_link(state: GpuState) -> Tuple[str, str]:
    slot = "set the card well in its slot, or in one with more lanes; look at the riser"
    if _below(state.pcie_width, state.pcie_width_max):
        return "PCIe x{} of x{}".format(state.pcie_width, state.pcie_width_max), slot
    if _below(state.pcie_generation, state.pcie_generation_max):
        cause = "PCIe {}.0 of {}.0 under load".format(
            state.pcie_generation, state.pcie_generation_max
        )
        return cause, slot
    cause = "the link itself is in order: the host's memory is far (another socket), slow or shared"
    return (
        cause,
        "run on the card's own socket (nvidia-smi topo -m): numactl --cpunodebind --membind",
    )


def _below(now: Optional[int], most: Optional[int]) -> bool:
    return now is not None and most is not None and now < most


def _low(now: Optional[int], most: Optional[int]) -> bool:
    return bool(now and most and now < LOW_CLOCK * most)


def _heat(state: GpuState) -> str:
    return " ({} degrees)".format(state.temperature_c) if state.temperature_c is not None else ""


def _clock(state: GpuState) -> str:
    if not (state.clock_sm_mhz and state.clock_sm_max_mhz):
        return ""
    return " ({} of {} MHz)".format(state.clock_sm_mhz, state.clock_sm_max_mhz)


# Words


def _three(value: float) -> str:
    """Three digits, and never a power of ten."""
    return "{:.0f}".format(value) if value >= 100 else "{:.3g}".format(value)


def _summary(rates: Sequence[Rate], cards: Dict[int, Card], device: str, what: str) -> List[str]:
    """The first card's rates, with the others' count where there are more."""
    first = rates[0].gpu
    texts = ", ".join(rate.words() for rate in rates if rate.gpu == first)
    if device == "cpu":
        return ["{}: {}, on the CPU: no GPU visible".format(what, texts)]
    others = len({rate.gpu for rate in rates}) - 1
    name = cards[first].name if first in cards else "GPU {}".format(first)
    more = " (and {} in the table)".format(gpus(others)) if others else ""
    return ["{}: {} on {}{}".format(what, texts, name, more)]


def _remarks(rates: Sequence[Rate], cards: Dict[int, Card]) -> List[str]:
    found = []
    over = next((r for r in rates if r.share is not None and r.share > CEILING), None)
    if over:
        told = "{} is more than its figure of {:.4g}: one of the two is wrong"
        found.append(told.format(over.words(), over.figure))
    pinned = [
        r
        for r in rates
        if r.metric.endswith("pinned") and r.share and not unjudged(r.metric, cards.get(r.gpu))
    ]
    if any((rate.share or 0) < USUAL_LINK for rate in pinned):
        found.append("sound links reach {:.0f} % and more".format(100 * USUAL_LINK))
    if any(rate.share is not None and not rate.sure for rate in rates):
        found.append("the figures are not sure, so that nothing is judged by them")
    why = [unjudged(rate.metric, cards.get(rate.gpu)) for rate in rates]
    found += [words for words in dict.fromkeys(why) if words]
    capped = sorted({c.index for c in cards.values() if _at_power_limit(c)})
    if capped and rates[0].metric == "gemm":
        watts = cards[capped[0]].state
        limit = "" if watts is None or watts.power_limit_w is None else " of {:.0f} W"
        said = "at its power limit" + limit.format(watts.power_limit_w if watts else 0)
        found.append(said)
    return found


def _metric(rate: Rate, cards: Sequence[Card]) -> Metric:
    labels = {"dtype": rate.label} if rate.label else {}
    if any(card.index == rate.gpu for card in cards):
        labels["gpu"] = str(rate.gpu)
    return of_samples(
        rate.metric, rate.samples, rate.unit, labels=labels, spec=rate.figure if rate.sure else None
    )


def _table(rates: Sequence[Rate], cards: Sequence[Card]) -> Table:
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
