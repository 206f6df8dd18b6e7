"""Health after the load: what the GPUs' counters and the kernel log gained during the run.

A counter that is missing in one of the two readings is unknown, and judges nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.checks.health.condition import SLOWED, clock_findings, is_laptop, while_slowed
from verify.checks.health.findings import RESET, Finding, judged, outcome, spans
from verify.checks.health.xids import judge_log, read_bus
from verify.device import kernel_log
from verify.device.baseline import Baseline
from verify.device.kernel_log import Log
from verify.device.pci import PciGpu
from verify.device.telemetry import GpuState, State
from verify.model.check import Check, Context, Outcome, Status, gpus
from verify.model.measures import Table, pack

# PCIe allows a link one wrong bit in 10^12. At full load that is 30 repeated packets a minute with
# 16 lanes of generation 5; healthy links are far better.
REPEATS_A_MINUTE = 100
_SEAT = "reseat the card; check riser and slot"
_REPLACE = "; run again, and have the card replaced if it recurs"
# Counters that must not grow: field, what it counts, what that means.
_COUNTERS = (
    (
        "ecc_uncorrected",
        "uncorrected ECC errors",
        "its memory lost data that ECC could not restore",
    ),
    ("sram_uncorrected", "uncorrected errors in its SRAM", "a cache or register lost data"),
    ("remapped_rows", "remapped rows of memory", "a row of its memory is damaged"),
    ("retired_pages", "retired pages of memory", "a page of its memory is damaged"),
)
# What must not become true.
_FLAGS = (
    ("remap_pending", "a damaged row of memory waits for remapping", "it is replaced at a reset"),
    ("retired_pending", "a damaged page of memory waits for retirement", "it is left at a reset"),
    ("remap_failed", "a damaged row of memory could not be remapped", "no spare row is left"),
    ("sram_threshold_exceeded", "more SRAM errors than NVIDIA allows for", "it is wearing out"),
)
_REPORTED = (("ecc_corrected", "corrected ECC errors"), ("pcie_replays", "PCIe replays"))
_COLUMNS = (*(name for name, _, _ in _COUNTERS), *(name for name, _ in _REPORTED))


@dataclass(frozen=True)
class Span:
    """One GPU at the start and at the end of the run; `end` is None if it is gone."""

    start: GpuState
    end: Optional[GpuState]
    minutes: float

    def grown(self, field: str) -> Optional[int]:
        """By how much a counter grew; None if one of the readings is missing."""
        old, new = getattr(self.start, field), getattr(self.end, field, None)
        return None if old is None or new is None else int(new) - int(old)

    def links(self) -> int:
        """By how much the errors of the NVLink with the most new ones grew."""
        old = {one.link: one.errors for one in self.start.nvlinks}
        new = self.end.nvlinks if self.end else ()
        pairs = [(old.get(one.link), one.errors) for one in new]
        return max((n - o for o, n in pairs if o is not None and n is not None), default=0)


def check_after(context: Context) -> Outcome:
    """Read again what was read before the run."""
    machine, before = context.machine, context.before
    readings = while_slowed(machine)
    if before is None or not before.state.gpus:
        said = "there is no reading from before the run"
        return judged(readings[-1], lambda _: Outcome(Status.SKIP, said))
    minutes = (time.monotonic() - before.at_s) / 60
    bus = read_bus(machine, readings[-1])
    return judge_after(before, readings, machine.log(), minutes, bus)


def judge_after(
    before: Baseline,
    readings: Sequence[State],
    log: Log,
    minutes: float = 0.0,
    bus: Sequence[PciGpu] = (),
) -> Outcome:
    """Whether the GPUs are as well as before the run. `readings` are the last ones: more than one
    if a GPU is slowed down.
    """
    after = readings[-1]
    spans_ = _spans(before.state, after, minutes)
    if after.error:
        cause = "the driver stopped working during the run: {}".format(after.error)
        fix = "look at the kernel log (dmesg) on the host, and reboot it"
        said = "NVML listed {} before the run, and fails now".format(gpus(len(spans_)))
        return outcome([Finding(span.start.index, said, cause, fix) for span in spans_], "", {}, {})
    findings = [found for span in spans_ for found in _findings(span)]
    findings += [found for span in spans_ for found in _slowed(span, readings)]
    logged, unread = _logged(before, after, log, bus)
    gained = [[span.grown(name) for name in _COLUMNS] for span in spans_]
    if not findings and logged is None and all(one is None for row in gained for one in row):
        return Outcome(Status.SKIP, "the driver reports no counters" + unread)
    rows = tuple((s.start.index, *row, s.links()) for s, row in zip(spans_, gained))
    measured = pack(tables=[Table("Gained during the run", ("GPU", *_COLUMNS, "nvlink"), rows)])
    well = "no new errors on {}".format(gpus(len(spans_))) + unread
    found = outcome(findings, "; ".join([well, *_reports(spans_)]), measured, {"grown": 0})
    return _with_log(found, logged)


def grown(before: State, after: State, minutes: float) -> List[Finding]:
    """What the GPUs' counters gained between two readings, and which GPUs were lost."""
    return [found for span in _spans(before, after, minutes) for found in _findings(span)]


def _spans(before: State, after: State, minutes: float) -> List[Span]:
    return [Span(gpu, _same(gpu, after), max(1.0, minutes)) for gpu in before.gpus]


def _same(gpu: GpuState, after: State) -> Optional[GpuState]:
    """The same GPU now. Indices move up if one is lost."""
    key = next((name for name in ("uuid", "bus_id") if getattr(gpu, name)), "index")
    return next((one for one in after.gpus if getattr(one, key) == getattr(gpu, key)), None)


def _findings(span: Span) -> List[Finding]:
    start, end = span.start, span.end
    if end is None or (end.failure and not start.failure):
        what = "it answered before the run, and no longer does"
        cause = "the GPU was lost during the run" + (": {}".format(end.failure) if end else "")
        fix = "look at the kernel log (dmesg); check its seat, power cables and cooling; reboot"
        return [Finding(start.index, what, cause, fix)]
    found = [*_memory(span, end), *_repeats(span)]
    if start.recovery == "none" and end.recovery not in (None, "none"):
        cause = "after an error during the run, the driver asks to {}".format(end.recovery)
        fix = RESET.format(start.index) + _REPLACE
        found.append(Finding(start.index, "recovery action due", cause, fix))
    if end.pcie_width and end.pcie_width < (start.pcie_width or 0) and not is_laptop(start):
        what = "its PCIe link went from x{} to x{} during the run"
        what, cause = what.format(start.pcie_width, end.pcie_width), "lanes failed under load"
        found.append(Finding(start.index, what, cause, _SEAT))
    dark = [
        one.link
        for one, old in zip(end.nvlinks, start.nvlinks)
        if (old.active, one.active) == (True, False)
    ]
    if dark:
        what = "NVLink {} went down during the run".format(spans(dark))
        fix = "look at nvidia-smi nvlink -s on the host; check bridge, cable and switch"
        found.append(Finding(start.index, what, "the link failed under load", fix))
    if start.fabric_state == "completed" and end.fabric_state not in (None, "completed"):
        what = "it left the NVSwitch fabric during the run: {}".format(end.fabric_state)
        fix = "look at journalctl -u nvidia-fabricmanager on the host"
        found.append(Finding(start.index, what, "the fabric failed under load", fix))
    return found


def _slowed(span: Span, readings: Sequence[State]) -> List[Finding]:
    """What slows it down now, and did not before the run."""
    already = set(span.start.throttle_reasons or ()) & set(SLOWED)
    return [] if span.end is None or already else clock_findings(span.end, readings)


def _memory(span: Span, end: GpuState) -> List[Finding]:
    fix = RESET.format(span.start.index) + _REPLACE
    found = []
    for name, what, cause in _COUNTERS:
        more = span.grown(name) or 0
        if more > 0:
            said = "{} more {} since the run began".format(more, what)
            found.append(Finding(span.start.index, said, cause, fix))
    for name, what, cause in _FLAGS:
        if (getattr(span.start, name), getattr(end, name)) == (False, True):
            found.append(Finding(span.start.index, what + " since the run", cause, fix))
    return found


def _repeats(span: Span) -> List[Finding]:
    """Links that repeat more than healthy ones do."""
    cause = "data is damaged on the way and sent again: dirt, a loose card or bridge, or wear"
    links = (
        ("PCIe replays", span.grown("pcie_replays") or 0, _SEAT),
        ("errors of an NVLink", span.links(), "look at nvidia-smi nvlink -e; reseat the bridge"),
    )
    said = "{} more {} since the run began"
    return [
        Finding(span.start.index, said.format(more, what), cause, fix)
        for what, more, fix in links
        if more >= REPEATS_A_MINUTE * span.minutes
    ]


def _reports(found: Sequence[Span]) -> List[str]:
    said = "GPU {}: {} more {}"
    return [
        said.format(span.start.index, span.grown(name), what)
        for span in found
        for name, what in _REPORTED
        if (span.grown(name) or 0) > 0
    ]


def _logged(
    before: Baseline, after: State, log: Log, bus: Sequence[PciGpu]
) -> Tuple[Optional[Outcome], str]:
    """The judgement of what was logged since the run began, or why there is none, in words."""
    since = before.log_s
    if log.error or since is None:
        return None, "; the kernel log cannot be read here"
    lines = tuple(line for line in log.lines if (line.since_start_s or 0.0) > since)
    new = replace(log, lines=lines)
    clean = Outcome(Status.PASS, "")
    return (judge_log(new, after, bus=bus) if kernel_log.events(lines) else clean), ""


def _with_log(found: Outcome, logged: Optional[Outcome]) -> Outcome:
    """One outcome of the counters' and the log's."""
    if logged is None or not logged.message:
        return found
    message = "logged since the run began: " + logged.message
    if logged.status is not Status.FAIL:
        return replace(found, message="{}; {}".format(found.message, message))
    if found.status is not Status.FAIL:
        return replace(logged, message=message, measured=found.measured)
    both: Dict[str, Any] = {
        name: "; ".join(filter(None, (getattr(found, name), getattr(logged, name))))
        for name in ("cause", "fix")
    }
    return replace(found, message="{}; {}".format(found.message, message), **both)


CHECKS = (
    Check(
        "health.after",
        "Nothing broke during the run",
        check_after,
        "standard",
        30,
        framework=False,
        replays=True,
        closes=True,
    ),
)
