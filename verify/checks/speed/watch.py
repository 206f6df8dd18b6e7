"""Reads a card's state before and during work; its rates are judged with these readings.

A state read after the work is useless: a card is idle within milliseconds. So a thread reads NVML
(ctypes lets other threads run) while this one keeps the card busy.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar

from verify.device.machine import Machine
from verify.device.telemetry import GpuState, State
from verify.model.measures import median
from verify.running.children import SIGNALS, Child

LOAD_S, EVERY_S = 1.0, 0.1  # how long a card is watched, and the pause between readings
READ_S, MOST_READ = 1.0, 1800  # the pause between readings for minutes or hours, and how many
QUEUED_S = 0.05  # of work between two looks at the clock
SETTLE_S = 1.5  # what NVML averages a load over, and some
IDLE = "gpu_idle"
BUSY_PERCENT = 10  # a card at rest says 0 to a few percent, with a desktop on it too
END_USERS = "end what runs on the GPU (nvidia-smi lists it), and run again"

_MOVING = (
    "clock_sm_mhz",
    "clock_memory_mhz",
    "power_w",
    "power_limit_w",
    "temperature_c",
    "throttle_reasons",
    "utilization_percent",
)

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


class LoadSampler:
    """A process that reads the GPUs each second, but in hours no more often than their readings can
    be kept. It is forked before this one uses CUDA, and begins with `start`.
    """

    def __init__(self, machine: Machine, seconds: float) -> None:
        source, self._sink = os.pipe()
        self._every_s = max(READ_S, seconds / MOST_READ)
        self._child = Child(lambda: self._work(source, machine))
        os.close(source)
        self._rows: Sequence[Dict[str, Any]] = ()

    def _work(self, source: int, machine: Machine) -> List[Dict[str, Any]]:
        for number in SIGNALS:  # `stop` ends it, and takes its readings
            signal.signal(number, signal.SIG_IGN)
        os.close(self._sink)
        rows: List[Dict[str, Any]] = []
        if not os.read(source, 1):
            return rows
        live = machine.live()
        while not select.select([source], [], [], self._every_s if rows else 0)[0]:
            for gpu in live.gpus():
                kept = {name: getattr(gpu, name) for name in _MOVING}
                rows.append({"index": gpu.index, **kept})
            if not rows:
                break
        return rows

    def start(self) -> None:
        os.write(self._sink, b"g")

    def stop(self, limit_s: float) -> None:
        os.close(self._sink)
        self._sink = -1
        ending = self._child.wait(limit_s)
        self._rows = ending.value if ending.returned else ()

    def of(self, state: Optional[GpuState]) -> List[GpuState]:
        """The readings of one GPU."""
        rows = [row for row in self._rows if state is not None and row["index"] == state.index]
        return [replace(state, **_restored(row)) for row in rows if state is not None]

    def kill(self) -> None:
        if self._sink >= 0:
            os.close(self._sink)
        self._child.kill()


def _restored(row: Dict[str, Any]) -> Dict[str, Any]:
    reasons = row["throttle_reasons"]
    return {**row, "throttle_reasons": None if reasons is None else tuple(reasons)}


def merged(readings: Sequence[GpuState], share: float = 0.5) -> Optional[GpuState]:
    """One card's state under load, out of several readings.

    Idle readings are left out if there are others. A throttle reason counts if it is in this share
    of them: reasons also appear for a moment when clocks change.
    """
    if not readings:
        return None
    working = [one for one in readings if IDLE not in (one.throttle_reasons or ())] or readings
    known = [one.throttle_reasons for one in working if one.throttle_reasons is not None]
    names = dict.fromkeys(name for reasons in known for name in reasons)
    least = share * len(known)
    lasting = tuple(n for n in names if sum(n in reasons for reasons in known) >= least)
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
