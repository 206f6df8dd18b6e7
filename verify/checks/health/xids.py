"""The kernel log: the driver's reports about visible GPUs (Xid) and NVSwitches (SXid)."""

from __future__ import annotations

import time
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from verify.device import kernel_log
from verify.device.kernel_log import Event, Log, Meaning
from verify.device.telemetry import State
from verify.model.check import NODE, Check, Context, Outcome, Status

_Gpus = Mapping[Tuple[int, int, int], int]  # the number of the GPU at a PCI address


def check_log(context: Context) -> Outcome:
    """Read the kernel's log for the driver's error reports."""
    return judge_log(context.machine.log(), context.machine.seen(), _uptime_s())


def _uptime_s() -> Optional[float]:
    """Seconds since the machine started, by the clock of the log."""
    try:
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    except OSError:
        return None


def judge_log(log: Log, found: State, now_s: Optional[float] = None) -> Outcome:
    """Whether no visible GPU has an Xid that is the card's, the link's or the driver's fault."""
    if log.error is not None:
        said = "the kernel log cannot be read here ({})".format(log.error)
        fix = "read it on the host: dmesg | grep -E 'S?Xid'"
        return Outcome(Status.SKIP, said, fix=fix)
    ours = {kernel_log.address(gpu.bus_id): gpu.index for gpu in found.gpus if gpu.bus_id}
    events = kernel_log.events(log.lines)
    if not events and not found.gpus:
        return Outcome(
            Status.SKIP, "no messages of the driver in the kernel log, and NVML lists no GPU"
        )
    whole = bool(ours) and all(gpu.bus_id for gpu in found.gpus)  # a lost GPU has no bus id
    near = [event for event in events if event.switch or event.pci in ours or not whole]
    bad = [event for event in near if not kernel_log.meaning(event).told]
    measured = {"lines": len(log.lines), "source": log.source, "xids": _counted(near)}
    expected: Dict[str, Any] = {"xids": []}
    if bad:  # the first is the trouble, the rest is what came of it
        first, known = bad[0], kernel_log.meaning(bad[0])
        message = "{}{}: {}".format(_where(first, ours), _age(first, now_s), _list(near))
        cause = "{}: {}".format(first.name, known.what)
        fix = _fix(known, first, ours)
        return Outcome(Status.FAIL, message, cause, fix, measured, expected, NODE)
    said = "no Xid caused by the hardware in the kernel log (lines read: {})".format(len(log.lines))
    told = ["{} ({})".format(e.name, kernel_log.meaning(e).what) for e in near]
    others = len(events) - len(near)
    told += ["{} on GPUs that are not visible here".format(others)] if others else []
    said = "; ".join((said, *dict.fromkeys(told)))
    return Outcome(Status.PASS, said, measured=measured, expected=expected)


def _where(event: Event, ours: _Gpus) -> str:
    if event.switch:
        return "NVSwitch {:04x}:{:02x}:{:02x}".format(*event.pci)
    index = ours.get(event.pci)
    return "GPU {}".format(
        index if index is not None else "at {:04x}:{:02x}:{:02x}".format(*event.pci)
    )


def _age(event: Event, now_s: Optional[float]) -> str:
    if event.since_start_s is None or now_s is None or now_s < event.since_start_s:
        return ""
    minutes = (now_s - event.since_start_s) / 60
    text = "{:.0f} min".format(minutes) if minutes < 120 else "{:.0f} h".format(minutes / 60)
    return ", {} ago".format(text)


def _list(events: Sequence[Event]) -> str:
    counts = _counted(events)
    return ", ".join(
        name if n == 1 else "{} ({} times)".format(name, n) for name, n in counts.items()
    )


def _counted(events: Sequence[Event]) -> Dict[str, int]:
    found: Dict[str, int] = {}
    for event in events:
        found[event.name] = found.get(event.name, 0) + 1
    return found


def _fix(known: Meaning, event: Event, ours: _Gpus) -> str:
    index = ours.get(event.pci)
    return known.fix if index is None else known.fix.replace("-i N", "-i {}".format(index))


LOG = Check(
    "health.log",
    "The driver reported no errors (Xid)",
    check_log,
    limit_s=30,
    framework=False,
    shares=True,
    replays=True,
)
