"""All GPUs together at full power, for minutes: what fails only under load, and wrong bits.

Every GPU multiplies the same matrix with itself. Its numbers are multiples of 1/64 below 2, so all
sums are exact in fp32, and a result has the same bits in whatever order a library adds up: a GPU
whose bits differ from its own first result or from an equal GPU's computes wrongly. Another process
reads the GPUs each second, so that a busy framework does not delay it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, List, Optional, Sequence, Tuple

from verify.backends.base import of
from verify.checks.health.after import grown
from verify.checks.health.condition import clock_findings
from verify.checks.health.findings import Finding, outcome
from verify.checks.speed import rates, watch
from verify.checks.speed.pace import TWIN_FLOOR, RatedCard, are_alike
from verify.checks.speed.slowness import is_stuck, why_low, why_slow
from verify.device.telemetry import GpuState, State
from verify.model.check import NODE, ON_CPU, UNKNOWN, Check, Context, Outcome, Status, gpus
from verify.model.measures import Table, median, pack
from verify.running.children import ENDING_S, in_time, interrupted, interruptible

USUAL_MIN, ON_CPU_S = 1.0, 3.0
LONGEST_S = 0.02  # of one product
LOOK_S = 0.25  # of work between two looks at the clock
MOST_QUEUED = 64
GRACE_S, READY_S = 30.0, 90.0
SLOWED_SHARE = 0.25  # of the time: in hours of load, heat need not last for half of them
LESS_WORK = 0.95  # of the usual: with less power than others, a GPU that does as much is just good
_WRONG = "wrong arithmetic: silent data corruption"
_OUT = "take the GPU out of use and have it replaced; see health.memory and nvidia-smi -q -d ECC"


@dataclass
class Burn:
    """What one GPU did."""

    card: RatedCard
    first: int = 0  # a checksum of the first result's bits
    rounds: int = 0
    wrong: int = 0  # results with other bits than the first
    seconds: float = 0.0
    error: Optional[str] = None
    ended: bool = False
    states: List[GpuState] = field(default_factory=list)

    @property
    def pace(self) -> Optional[float]:
        """Results a second."""
        return self.rounds / self.seconds if self.seconds else None

    def clock(self) -> Optional[float]:
        """The median SM clock, in MHz."""
        return _of(median, self.states, "clock_sm_mhz")

    def power(self) -> Optional[float]:
        """The mean power, in watts."""
        return _of(lambda values: sum(values) / len(values), self.states, "power_w")


def _of(
    what: Callable[[List[float]], float], states: Sequence[GpuState], name: str
) -> Optional[float]:
    values = [float(getattr(state, name)) for state in states if getattr(state, name) is not None]
    return what(values) if values else None


def check_burn(context: Context) -> Outcome:
    """Load all GPUs, and the CPU for some seconds if nothing hints at a GPU."""
    with interruptible(again=False):
        return _check(context)


def _check(context: Context) -> Outcome:
    machine, backend = context.machine, of(context)
    sampled_s = 60 * (context.burn_min or USUAL_MIN)
    free, sampler = watch.before(machine), watch.LoadSampler(machine, sampled_s)
    try:
        broken, places = backend.every(context)
        if broken:
            return broken
        found = [Burn(_card(place, free)) for place in places]
        backend.sum_in_fp32()
        dtype = _dtype(places[0])
        factor = _factor(backend, _size(places[0], dtype))
        usual_s = 60 * USUAL_MIN if places[0].is_gpu else ON_CPU_S
        seconds = usual_s if context.burn_min is None else 60 * context.burn_min
        loaded_s = _burn(places, found, (factor, dtype), seconds, sampler)
        for one in found:
            one.states = sampler.of(one.card.state)
        after = machine.state() if places[0].is_gpu else free
        name = interrupted()
        if not name:
            return judge_burn(found, free, after, dtype, seconds / 60)
        begun = [one for one in found if one.rounds or one.error or not one.ended]
        judged = judge_burn(begun, free, after, dtype, loaded_s / 60)
        return until(judged, name, loaded_s / 60, seconds / 60)
    finally:
        sampler.kill()


def _card(place: Any, free: State) -> RatedCard:
    """With NVML's number, if that is known: `grown` and the other checks of health use it."""
    state = place.state_in(free.gpus) if place.is_gpu else None
    number = place.index if state is None else state.index
    return RatedCard(number, place.card, state, busy=watch.busy(state))


def _dtype(place: Any) -> str:
    """What most of training uses there: it draws the most power."""
    capability = place.capability or (0, 0)
    return "bf16" if place.has("bf16") else "fp16" if capability >= (7, 0) else "fp32"


def _size(place: Any, dtype: str) -> int:
    """The largest size whose product should take at most `LONGEST_S`: twice the size takes 8 times
    as long.
    """
    for size, larger in zip(rates.SIZES, rates.SIZES[1:]):
        side, times = place.put(_factor(place.backend, size), dtype), []
        for _ in range(2):  # the first call may compile
            began = time.monotonic()
            int(_product(place, side, dtype))
            times.append(time.monotonic() - began)
        if 8 * min(times) > LONGEST_S or larger * larger * 8 > rates.room(place):
            return size
    return rates.SIZES[-1]


def _product(place: Any, side: Any, dtype: str) -> Any:
    """A checksum of the result's bits, which is still computed."""
    return place.backend.numbers.checksum(place, place.multiply(side, side, dtype))


def _factor(backend: Any, size: int) -> Any:
    """A matrix that is multiplied with itself: its sums are as random as those of two."""
    (numbers,) = backend.draw(43, (size, size))
    return (40 * numbers).round().clip(-127, 127) / 64


def _burn(
    places: Sequence[Any],
    found: Sequence[Burn],
    given: Tuple[Any, str],
    seconds: float,
    sampler: watch.LoadSampler,
) -> float:
    """Every GPU in a thread of its own, so that a slow one holds up no other. Returns how long they
    were loaded, in seconds.
    """
    ready = threading.Barrier(len(places) + 1)
    over = threading.Event()
    threads = [
        threading.Thread(target=_load, args=(place, one, given, ready, over), daemon=True)
        for place, one in zip(places, found)
    ]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    with contextlib.suppress(threading.BrokenBarrierError):  # one is not ready in time
        ready.wait(READY_S)
        sampler.start()
        began = time.monotonic()
        end = began + seconds
        while in_time(end, 0.0) > 0 and any(thread.is_alive() for thread in threads):
            over.wait(min(watch.READ_S, max(0.0, end - time.monotonic())))
    loaded_s = time.monotonic() - began
    sampler.stop(GRACE_S)
    over.set()
    end = time.monotonic() + GRACE_S
    for thread in threads:
        thread.join(max(0.0, in_time(end, ENDING_S / 2)))
    for one in found if interrupted() else ():
        one.ended = one.ended or loaded_s - one.seconds < GRACE_S  # too soon to call it a hang
    return loaded_s


def _load(
    place: Any,
    one: Burn,
    given: Tuple[Any, str],
    ready: threading.Barrier,
    over: threading.Event,
) -> None:
    factor, dtype = given
    waiting = True
    try:
        with place.scope():
            side = place.put(factor, dtype)
            one.first = int(_product(place, side, dtype))
            began = time.monotonic()
            one.wrong = int(int(_product(place, side, dtype)) != one.first)
            calls = int(LOOK_S / max(time.monotonic() - began, LOOK_S / MOST_QUEUED))
            waiting = False
            ready.wait()
            began = time.monotonic()
            while not over.is_set():
                queued = range(max(1, calls))
                sums = [_product(place, side, dtype) for _ in queued]  # int() waits for them
                one.wrong += sum(int(value) != one.first for value in sums)
                one.rounds += len(sums)
                one.seconds = time.monotonic() - began
    except threading.BrokenBarrierError:
        pass
    except Exception as error:  # any: it becomes this GPU's finding, and the others go on
        one.error = "{}: {}".format(type(error).__name__, str(error).split("\n")[0][:200])
        with contextlib.suppress(threading.BrokenBarrierError):
            ready.wait() if waiting else None
    one.ended = True


# The judgement


def judge_burn(
    found: Sequence[Burn], before: State, after: State, dtype: str, minutes: float
) -> Outcome:
    """Whether all GPUs computed the same bits, as fast as equal ones, and lost nothing by it."""
    findings = [finding for one in found for finding in _of_one(one, found)]
    findings += grown(before, after, minutes)
    on_cpu = bool(found) and all(one.card.name == "CPU" for one in found)
    rows = tuple(_row(one) for one in found)
    head = ("GPU", "card", "products", "wrong", "MHz, least", "MHz", "C, most", "W")
    measured = {
        "device": "cpu" if on_cpu else "cuda",
        "minutes": minutes,
        "dtype": dtype,
        **pack(tables=[Table("Under full load", head, rows)]),
    }
    return outcome(findings, _words(found, dtype, minutes, on_cpu=on_cpu), measured, {"wrong": 0})


def until(judged: Outcome, name: str, loaded_min: float, minutes: float) -> Outcome:
    """What was found until a signal came; to find nothing in a part of the time is not a pass."""
    if judged.status is not Status.PASS:
        return judged
    said = "interrupted ({}) after {:.3g} of {:.3g} min, nothing wrong until then: {}"
    said = said.format(name, loaded_min, minutes, judged.message)
    return replace(judged, status=Status.SKIP, message=said)


def _words(found: Sequence[Burn], dtype: str, minutes: float, *, on_cpu: bool) -> str:
    total = sum(one.rounds for one in found)
    said = "{} products in {}, all with the same bits".format(total, dtype)
    if on_cpu:
        return "{}, {}".format(said, ON_CPU)
    return "{} at full load for {:.3g} min: {}".format(gpus(len(found)), minutes, said)


def _row(one: Burn) -> Tuple[Any, ...]:
    def least(values: List[float]) -> float:
        return min(values)

    low, hot = _of(least, one.states, "clock_sm_mhz"), _of(max, one.states, "temperature_c")
    card = one.card
    return (card.index, card.name, one.rounds, one.wrong, low, one.clock(), hot, one.power())


def _of_one(one: Burn, found: Sequence[Burn]) -> List[Finding]:
    index = one.card.index
    if not one.ended:
        cause = "the GPU or its driver hangs under load"
        fix = "look at the kernel log (dmesg), reset the GPU or reboot the host"
        return [Finding(index, "its work did not end", cause, fix, _whose(found))]
    if one.error:
        fix = "see devices.kernel, and the kernel log (dmesg)"
        return [Finding(index, "failed under load", one.error, fix, _whose(found))]
    if not one.rounds and all(other.ended and not other.error for other in found):
        said = "it was not ready within {:.0f} s".format(READY_S)
        fix = "run again with nothing else on the machine"
        return [Finding(index, said, "the first product took too long", fix, UNKNOWN)]
    findings = [*_bits(one, found), *_behind(one, found)]
    state = watch.merged(one.states, SLOWED_SHARE)
    if state is None:
        return findings
    # the load is ours, whether or not the driver reports it
    state = replace(state, utilization_percent=100)
    findings += clock_findings(state, [State(gpus=(state,))])
    if is_stuck(state) and not one.card.busy:
        said = "SM clock {} of {} MHz under load"
        said = said.format(state.clock_sm_mhz, state.clock_sm_max_mhz)
        cause, fix, whose = why_low(state)
        findings.append(Finding(index, said, cause, fix, whose or UNKNOWN))
    return findings


def _whose(found: Sequence[Burn]) -> str:
    """What is at fault if a GPU fails: the node, if the image's code does well on another one."""
    good = any(one.rounds and one.ended and not one.error and not one.wrong for one in found)
    return NODE if good else UNKNOWN


def _bits(one: Burn, found: Sequence[Burn]) -> List[Finding]:
    """What differs from the GPU's own first result, or from that of most equal GPUs."""
    if one.wrong:
        said = "{} of {} equal products have other bits than the first"
        said = said.format(one.wrong, one.rounds)
        whose = NODE if len(found) == 1 and one.card.name != "CPU" else _whose(found)
        return [Finding(one.card.index, said, _WRONG, _OUT, whose)]
    firsts = [other.first for other in found if other.card.name == one.card.name and other.rounds]
    most = max((firsts.count(first) for first in firsts), default=0)
    usual = {first for first in firsts if firsts.count(first) == most}
    if not one.rounds or usual == {one.first}:  # of as many on both sides, all are named
        return []
    said = "its products have other bits than those of equal GPUs"
    return [] if len(firsts) < 2 else [Finding(one.card.index, said, _WRONG, _OUT)]


def _behind(one: Burn, found: Sequence[Burn]) -> List[Finding]:
    """What a GPU has less of than three or more equal ones."""
    twins = [other for other in found if are_alike(other.card, one.card)]
    if len(twins) < 3:
        return []
    work = _share(one.pace, [other.pace for other in twins])
    shares = (
        ("products a second", work),
        ("MHz", _share(one.clock(), [other.clock() for other in twins])),
        ("W", _share(one.power(), [other.power() for other in twins]) if work < LESS_WORK else 1.0),
    )
    low = ["{:.0f} % of their {}".format(100 * share, name) for name, share in shares]
    low = [words for words, (_, share) in zip(low, shares) if share < TWIN_FLOOR]
    if not low:
        return []
    cause, fix, _ = why_slow("gemm", watch.merged(one.states))
    said = "behind the equal GPUs: {}".format(", ".join(low))
    return [Finding(one.card.index, said, cause, fix)]


def _share(value: Optional[float], all_of_them: Sequence[Optional[float]]) -> float:
    """Of the median; 1 if that is unknown."""
    known = [one for one in all_of_them if one is not None]
    usual = median(known) if len(known) >= 3 else 0.0
    return 1.0 if value is None or not usual else value / usual


CHECKS = (
    Check(
        "health.burn",
        "All GPUs hold under full load together",
        check_burn,
        "full",
        240,
        gauge=True,
        burns=True,
    ),
)
