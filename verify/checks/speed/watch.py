"""Reads a card's state before and during work; its rates are judged with these readings.

A state read after the work is useless: a card is idle within milliseconds. So a thread reads NVML
(ctypes lets other threads run) while this one keeps the card busy.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from typing import Callable, List, Optional, Sequence, TypeVar

from verify.device.machine import Machine
from verify.device.telemetry import GpuState, State
from verify.model.measures import median

LOAD_S, EVERY_S = 1.0, 0.1  # how long a card is watched, and the pause between readings
QUEUED_S = 0.05  # of work between two looks at the clock
SETTLE_S = 1.5  # what NVML averages a load over, and some
IDLE = "gpu_idle"
BUSY_PERCENT = 10  # a card at rest says 0 to a few percent, with a desktop on it too
END_USERS = "end what runs on the GPU (nvidia-smi lists it), and run again"

T = TypeVar("T")


def under(
    work: Callable[[], object], finish: Callable[[], object], each_s: float, read: Callable[[], T]
) -> List[T]:
    """Readings, at least one, taken while `work` runs repeatedly; one call takes `each_s`, and
    `finish` waits for it.
    """
    readings: List[T] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_S):
            readings.append(read())

    thread = threading.Thread(target=watch, daemon=True)
    calls = min(5000, max(1, math.ceil(QUEUED_S / max(each_s, 1e-6))))
    end = time.monotonic() + LOAD_S
    thread.start()
    try:
        while time.monotonic() < end or not readings:
            for _ in range(calls):
                work()
            finish()
            if not thread.is_alive():  # the reader has failed
                break
    finally:
        over.set()
        thread.join()
    return readings


def merged(readings: Sequence[GpuState]) -> Optional[GpuState]:
    """One card's state under load, out of several readings.

    Idle readings are left out if there are others. A throttle reason counts if it is in half of
    them: reasons also appear for a moment when clocks change.
    """
    if not readings:
        return None
    working = [one for one in readings if IDLE not in (one.throttle_reasons or ())] or readings
    known = [one.throttle_reasons for one in working if one.throttle_reasons is not None]
    names = dict.fromkeys(name for reasons in known for name in reasons)
    lasting = tuple(n for n in names if 2 * sum(n in reasons for reasons in known) >= len(known))
    return replace(
        working[-1],
        throttle_reasons=lasting if known else None,
        clock_sm_mhz=_middle([one.clock_sm_mhz for one in working]),
        clock_memory_mhz=_middle([one.clock_memory_mhz for one in working]),
        pcie_generation=max((one.pcie_generation or 0 for one in working), default=0) or None,
        temperature_c=max((one.temperature_c or 0 for one in working), default=0) or None,
    )


def _middle(values: Sequence[Optional[int]]) -> Optional[int]:
    known = [float(value) for value in values if value is not None]
    return int(median(known)) if known else None


def before(machine: Machine) -> State:
    """The machine before this process uses it. NVML's load is the last second's, which may have
    been this suite's own, so a loaded card without a process is read again.
    """
    seen = machine.state()
    if any(
        (gpu.utilization_percent or 0) >= BUSY_PERCENT and not gpu.processes for gpu in seen.gpus
    ):
        machine.pause(SETTLE_S)
        seen = machine.state()
    return seen


def in_use(seen: State) -> Optional[str]:
    """The first GPU that is in use, and who uses it, in words."""
    found = ((gpu.index, busy(gpu)) for gpu in seen.gpus)
    return next(("GPU {}: {}".format(index, who) for index, who in found if who), None)


def busy(gpu: Optional[GpuState]) -> Optional[str]:
    """Who used a card before this process, in words; None if it was free.

    A desktop draws on a card without being in its list of compute processes, and hardly loads it.
    """
    if gpu is None:
        return None
    load = gpu.utilization_percent or 0
    who = ["{}{}".format(p.pid, _name(p.pid)) for p in gpu.processes or ()]
    if not who and load < BUSY_PERCENT:
        return None
    said = "process " + ", ".join(who[:4]) if who else "no process that NVML lists"
    return "{}, {} % load".format(said, load)


def _name(pid: int) -> str:
    """The program's name where this is the namespace that NVML counts in."""
    try:
        with open("/proc/{}/comm".format(pid), encoding="utf-8", errors="replace") as file:
            return " ({})".format(file.read().strip())
    except OSError:
        return ""
