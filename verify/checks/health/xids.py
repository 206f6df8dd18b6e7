"""The kernel log: the driver's reports about visible GPUs (Xid) and NVSwitches (SXid), and what the
kernel reports about their PCIe links and the host.

An error that NVIDIA's catalogue answers with a repair is a fault until the log or NVML shows the
repair. What it answers with less, or not at all, is reported.
"""

from __future__ import annotations

import bisect
import collections
import re
import time
from dataclasses import dataclass, replace
from typing import Any, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from verify.checks.health.findings import recovery_due
from verify.device import kernel_log
from verify.device.driver_errors import RECOVERY, Meaning
from verify.device.kernel_log import Event, Log
from verify.device.machine import Machine
from verify.device.pci import DRIVER, PciGpu, bus_address
from verify.device.telemetry import GpuState, State
from verify.model.check import NODE, Check, Context, Outcome, Status

Address = Tuple[int, int, int]

STORM, STORM_S = 20, 60.0  # corrected PCIe errors in a minute: a few are normal
RETURNS, RETURNS_S = 3, 30 * 86400.0  # the same fault, each time repaired, within 30 days
BOOT_S = 10.0  # machine checks that the kernel logs so early are from before the start
_HOST, _ELSEWHERE = "the host", "elsewhere"
# What the driver says of a GPU that it cannot take into use: then NVML does not list the GPU.
_NAMELESS = ("GPU lost", "reset required")  # the driver does not say which GPU
_UNUSABLE = ("off the bus", "RmInitAdapter failed", "probe failed", *_NAMELESS)
_SM = re.compile(r"\(?GPC (?P<gpc>[0-9]{1,3}), TPC (?P<tpc>[0-9]{1,3})")
_PID = re.compile(r"\bpid='?(?P<pid>[0-9]{1,10})")


@dataclass(frozen=True)
class Case:
    """An event that concerns this machine's GPUs."""

    event: Event
    where: str
    repaired: bool


@dataclass(frozen=True)
class Scene:
    """The GPUs that the events may be about."""

    gpus: Mapping[Address, GpuState]
    whole: bool  # a lost GPU has no address
    bus: Mapping[Address, PciGpu]
    named: Set[Address]
    ports: Mapping[str, Sequence[Address]]

    def where(self, event: Event) -> Optional[str]:
        """Which GPU an event concerns, as words; None if it concerns none."""
        if event.switch and event.device:
            return "NVSwitch " + _short(event.device)
        if event.device is None or event.place is None:
            return _ELSEWHERE if self.some and event.name in _UNUSABLE else _HOST
        behind = self.behind(event)
        visible = [pci for pci in behind if pci in self.gpus]
        if visible:
            return "GPU {}".format(self.gpus[visible[0]].index)
        if event.pcie and not self.named.intersection(behind):
            return None
        cards = [self.bus[place] for place in behind if place in self.bus]
        # sysfs has the GPUs of other containers, too: one that it lacks has left the bus
        gone = bool(self.bus) and self.bus.keys() >= self.gpus.keys()
        lost = gone or not self.whole or (event.name in _UNUSABLE and not self.some)
        if cards:
            lost = any(not card.closed and card.driver in (None, DRIVER) for card in cards)
        return "GPU at " + _short(event.device) if lost else _ELSEWHERE

    @property
    def some(self) -> bool:
        """Whether this process has some of the host's GPUs on purpose."""
        return any(card.closed for place, card in self.bus.items() if place not in self.gpus)

    def behind(self, event: Event) -> List[Address]:
        """The device that an event names, and what is behind it if it is a port."""
        ports = self.ports.get(event.device, ()) if event.pcie and event.device else ()
        return [*([event.place] if event.place else []), *ports]

    def repaired(self, event: Event, repairs: Repairs) -> bool:
        """Whether a repair after the event, and what NVML reads now, show that it is over."""
        if event.name == "machine check":
            return event.since_start_s is not None and event.since_start_s < BOOT_S
        if event.name == "RmInitAdapter failed" and event.place in self.gpus:
            return self.works(event)  # NVML lists only GPUs that the driver has started since
        if event.name in _NAMELESS:
            return self.calm or repairs.after(event)
        return repairs.after(event) and self.works(event)

    @property
    def calm(self) -> bool:
        """Whether NVML lists every GPU of the driver, and knows that nothing is due on any."""
        ours = {place for place, card in self.bus.items() if card.driver == DRIVER}
        asked = [gpu.recovery is None or recovery_due(gpu) for gpu in self.gpus.values()]
        return self.whole and ours <= self.gpus.keys() and not any(asked)

    def works(self, event: Event) -> bool:
        """Whether NVML lists the event's GPU, and asks for no recovery. If NVML lists none at all,
        the log alone says it.
        """
        if event.place is None or event.switch or not self.gpus:
            return True
        found = [self.gpus[pci] for pci in self.behind(event) if pci in self.gpus]
        return bool(found) and all(
            gpu.failure is None and recovery_due(gpu) is None for gpu in found
        )


class Repairs:
    """Where in the log something was repaired."""

    def __init__(self, history: Sequence[Event]) -> None:
        self._places: Dict[Any, List[int]] = {}
        for event in history:
            key = {"gpu": event.place, "port": event.device}.get(event.repairs, "all")
            if event.repairs:
                self._places.setdefault(key, []).append(event.index)

    def _of(self, event: Event) -> Iterator[List[int]]:
        for key in {"all", event.place, event.device, event.port}:
            yield self._places.get(key, [])

    def after(self, event: Event) -> bool:
        """Whether something that the event is about was repaired later."""
        return any(places and places[-1] > event.index for places in self._of(event))

    def before(self, event: Event) -> int:
        """How often it was repaired until then."""
        return sum(bisect.bisect(places, event.index) for places in self._of(event))


def check_log(context: Context) -> Outcome:
    """Read the kernel's log for the driver's error reports."""
    machine, found = context.machine, context.machine.seen()
    return judge_log(machine.log(), found, _uptime_s(), read_bus(machine, found))


def read_bus(machine: Machine, found: State) -> Tuple[PciGpu, ...]:
    """The GPUs on the bus. Those that NVML does not list are opened: were they given to us?"""
    listed = {bus_address(gpu.bus_id) for gpu in found.gpus if gpu.bus_id}
    return tuple(
        card
        if card.address in listed or not listed
        else replace(card, closed=machine.is_closed(card))
        for card in machine.pci() or ()
    )


def _uptime_s() -> Optional[float]:
    """Seconds since the machine started, by the clock of the log."""
    try:
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    except OSError:
        return None


def judge_log(
    log: Log,
    found: State,
    now_s: Optional[float] = None,
    bus: Sequence[PciGpu] = (),
) -> Outcome:
    """Whether no visible GPU has an error that asks for a repair and was not repaired."""
    if log.error is not None:
        said = "the kernel log cannot be read here ({})".format(log.error)
        fix = "read it on the host: dmesg | grep -E 'NVRM|Xid|AER'"
        return Outcome(Status.SKIP, said, fix=fix)
    history = [event for event in kernel_log.events(log.lines) if not event.meaning.test]
    scene = _scene(log, found, history, bus)
    repairs = Repairs(history)
    near, others = _cases(history, scene, repairs)
    if not near and not others and not found.gpus:
        return Outcome(
            Status.SKIP, "no messages of the driver in the kernel log, and NVML lists no GPU"
        )
    measured = {
        "lines": len(log.lines),
        "source": log.source,
        "xids": _counted(near),
        "repaired": _counted([case for case in near if case.repaired]),
    }
    expected: Dict[str, Any] = {"xids": []}
    returned = _returned(near, repairs)
    bad = [case for case in near if case.event.meaning.faulty and not case.repaired] or returned
    if bad:  # the first is the trouble, the rest is what came of it
        places = dict.fromkeys(case.where for case in bad)
        message = "; ".join(_trouble(place, bad, near, now_s) for place in places)
        cause, fix = _answer(bad[0], scene)
        return Outcome(Status.FAIL, message, cause, fix, measured, expected, NODE)
    clean = "no error that asks for a repair in the kernel log (lines read: {})"
    reports = _reports(near, now_s)
    reports += ["{} on GPUs that are not visible here".format(others)] if others else []
    said = "; ".join((clean.format(len(log.lines)), *reports))
    return Outcome(Status.PASS, said, measured=measured, expected=expected)


def _scene(log: Log, found: State, history: Sequence[Event], bus: Sequence[PciGpu]) -> Scene:
    gpus = {kernel_log.address(gpu.bus_id): gpu for gpu in found.gpus if gpu.bus_id}
    cards = {kernel_log.address(card.address): card for card in bus}
    xids = {event.place for event in history if event.number and not event.switch}
    named = {*cards, *kernel_log.named_gpus(log.lines), *filter(None, xids)}
    behind: Dict[str, List[Address]] = {}
    for place, card in cards.items():
        for port in card.ports:
            behind.setdefault(port, []).append(place)
    for port, (domain, first, last) in kernel_log.bridges(log.lines).items():
        inside = [pci for pci in {*gpus, *named} if pci[0] == domain and first <= pci[1] <= last]
        behind.setdefault(port, []).extend(inside)
    for event in history:
        if event.port and event.place in {*gpus, *named}:
            behind.setdefault(event.port, []).append(event.place)
    whole = bool(gpus) and all(gpu.bus_id for gpu in found.gpus)
    return Scene(gpus, whole, cards, named, behind)


def _cases(history: Sequence[Event], scene: Scene, repairs: Repairs) -> Tuple[List[Case], int]:
    """The events about visible GPUs, and the number of those about others."""
    near, others = [], 0
    for event in history:
        where = None if event.repairs else scene.where(event)
        if where == _ELSEWHERE:
            others += 1
        elif where is not None:
            near.append(Case(event, where, scene.repaired(event, repairs)))
    return _with_storms(near), others


def _with_storms(near: Sequence[Case]) -> List[Case]:
    """The cases, with a storm of corrected PCIe errors as one case of its own."""
    kept: List[Case] = []
    groups: Dict[Tuple[str, Any], List[Case]] = {}
    for case in near:
        if case.event.rule is not None and case.event.rule.storm:
            groups.setdefault((case.where, case.event.rule.pattern), []).append(case)
        else:
            kept.append(case)
    for group in groups.values():
        count, last = _busiest(group)
        if count < STORM:
            kept += group
            continue
        what = "the PCIe link repeats transfers all the time: {} errors in a minute".format(count)
        storm = replace(last.event, name="PCIe error storm", meaning=Meaning(what, "CHECK_LINK"))
        kept.append(replace(last, event=storm))
    return sorted(kept, key=lambda case: case.event.index)


def _busiest(group: Sequence[Case]) -> Tuple[int, Case]:
    """The most cases that were logged within a minute, and the last of these."""
    minute: Deque[float] = collections.deque()
    most, last = 0, group[-1]
    for case in group:
        since = case.event.since_start_s
        if since is None:
            continue
        minute.append(since)
        while since - minute[0] > STORM_S:
            minute.popleft()
        if len(minute) >= most:
            most, last = len(minute), case
    return most, last


def _returned(near: Sequence[Case], repairs: Repairs) -> List[Case]:
    """The last case of each fault that came back again and again, though it was repaired."""
    rounds: Dict[Tuple[str, str], Dict[int, Case]] = {}
    for case in near:
        event = case.event
        own = event.pcie or event.number not in (None, RECOVERY)
        if event.meaning.faulty and own:
            found = rounds.setdefault((case.where, event.name), {})
            found[repairs.before(event)] = case
    return [cases[-1] for cases in map(list, map(dict.values, rounds.values())) if _often(cases)]


def _often(cases: Sequence[Case]) -> bool:
    times = [case.event.since_start_s for case in cases[-RETURNS:]]
    known = [time_s for time_s in times if time_s is not None]
    return len(cases) >= RETURNS and (not known or known[-1] - known[0] <= RETURNS_S)


# Words


def _short(device: str) -> str:
    return "{:04x}:{:02x}:{:02x}".format(*kernel_log.address(device))


def _ago(case: Case, now_s: Optional[float]) -> str:
    since = case.event.since_start_s
    if since is None or now_s is None or now_s < since:
        return ""
    minutes = (now_s - since) / 60
    text = "{:.0f} min".format(minutes) if minutes < 120 else "{:.0f} h".format(minutes / 60)
    return text + " ago"


def _times(count: int) -> str:
    return "" if count == 1 else "{} times".format(count)


def _counted(cases: Sequence[Case]) -> Dict[str, int]:
    found: Dict[str, int] = {}
    for case in cases:
        found[case.event.name] = found.get(case.event.name, 0) + 1
    return found


def _trouble(place: str, bad: Sequence[Case], near: Sequence[Case], now_s: Optional[float]) -> str:
    """A place with all that was logged of it: "GPU 1, 10 min ago: Xid 74, Xid 45 (2 times)"."""
    first = next(case for case in bad if case.where == place)
    names = _counted([case for case in near if case.where == place])
    listed = [name if n == 1 else "{} ({})".format(name, _times(n)) for name, n in names.items()]
    return "{}: {}".format(", ".join(filter(None, (place, _ago(first, now_s)))), ", ".join(listed))


def _answer(case: Case, scene: Scene) -> Tuple[str, str]:
    meaning = case.event.meaning
    cause, fix = "{}: {}".format(case.event.name, meaning.what), meaning.fix
    if case.repaired:
        cause += "; it was repaired and came back {} times or more".format(RETURNS - 1)
        fix = Meaning("", "CONTACT_SUPPORT").fix
    gpu = scene.gpus.get(case.event.place) if case.event.place else None
    name = case.event.device if gpu is None else gpu.index  # nvidia-smi takes either
    return cause, fix.replace(" -i N", "" if name is None else " -i {}".format(name))


def _reports(near: Sequence[Case], now_s: Optional[float]) -> List[str]:
    """What was logged and leaves the GPUs fit, with NVIDIA's step."""
    groups: Dict[Tuple[str, str, bool, Meaning], List[Case]] = {}
    for case in near:
        key = (case.where, case.event.name, case.repaired, case.event.meaning)
        groups.setdefault(key, []).append(case)
    alike: Dict[Tuple[str, str, str], List[Case]] = {}
    for (_, name, repaired, meaning), cases in groups.items():
        over = repaired and meaning.faulty
        step = "" if over else _suspected(cases) or meaning.fix
        ended = "from before the start" if name == "machine check" else "repaired"
        words = "; ".join(filter(None, (meaning.what, step)))
        alike.setdefault((name, ended if over else "", words), []).extend(cases)
    said = []
    for (name, ended, words), cases in alike.items():
        places = ", ".join(dict.fromkeys(case.where for case in cases))
        last = max(cases, key=lambda case: case.event.index)
        facts = ("{}: {}".format(places, name), _times(len(cases)), ended, _ago(last, now_s))
        said.append("{} ({})".format(", ".join(filter(None, facts)), words))
    return said


def _suspected(cases: Sequence[Case]) -> str:
    """Words where different programs raised Xid 13 on one part of the GPU, and on no other."""
    places = [_SM.search(case.event.text) for case in cases]
    pids = {match.group("pid") for match in (_PID.search(c.event.text) for c in cases) if match}
    parts = {match.group("gpc", "tpc") for match in places if match}
    if cases[0].event.number != 13 or len(parts) != 1 or len(pids) < 2:
        return ""
    said = "likely the hardware: {} programs failed on GPC {}, TPC {}, and none elsewhere"
    said += "; test the GPU with dcgmi diag -r 3"
    return said.format(len(pids), *parts.pop())


LOG = Check(
    "health.log",
    "The driver reported no errors (Xid)",
    check_log,
    limit_s=30,
    framework=False,
    shares=True,
    replays=True,
)
