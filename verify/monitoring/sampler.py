"""Takes samples in a thread, so that a driver that hangs does not hold up the command."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from verify.device import state
from verify.device.telemetry import GpuState, State
from verify.monitoring.processes import Tree
from verify.monitoring.samples import Sample


class Sampler:
    """Passes samples to `take` every `interval_s`, counted from the command's start.

    The times are multiples of the interval, however long a sample takes; missed ones are skipped.
    `say` is called with messages that the user should see at once.
    """

    def __init__(
        self,
        pid: int,
        started: float,
        interval_s: float,
        asked: Optional[Sequence[int]],
        take: Callable[[Sample], None],
        say: Callable[[str], None],
        open_nvml: Callable[[], Any] = state.Live,
    ) -> None:
        self._thread = threading.Thread(target=self._work, daemon=True, name="verify-monitor")
        self._tree = Tree(pid)
        self._started, self._interval_s, self._asked = started, interval_s, asked
        self._take, self._say, self._open_nvml = take, say, open_nvml
        self._ended = threading.Event()
        self.failed: Optional[str] = None

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def _work(self) -> None:
        try:
            self._run()
        except Exception as error:  # the command goes on, and its summary says so
            self.failed = "{}: {}".format(type(error).__name__, error)

    def _run(self) -> None:
        nvml = self._open_nvml()
        chosen = self._choose(nvml)
        while True:
            now = time.monotonic() - self._started
            gpus = nvml.gpus(chosen)
            self._take(Sample(now, gpus, self._tree.sample(now)))
            now = time.monotonic() - self._started
            if self._ended.wait(next_time(now, self._interval_s) - now):
                break
        nvml.close()

    def _choose(self, nvml: Any) -> Tuple[int, ...]:
        gpus = nvml.gpus()
        if not gpus:
            self._say(why_none(nvml.failed))
        chosen, missing = choose(gpus, self._asked, os.environ)
        if missing and gpus:
            said = "GPU {} does not exist; watching {}"
            words = [", ".join(map(str, numbers)) or "none" for numbers in (missing, chosen)]
            self._say(said.format(*words))
        return chosen

    def stop(self, limit_s: float) -> bool:
        """Stop, and return whether the thread ended in time; with a hanging driver it does not."""
        self._ended.set()
        self._thread.join(limit_s)
        return not self._thread.is_alive()


def next_time(now: float, interval_s: float) -> float:
    """The first multiple of the interval after now, so that delays do not add up."""
    tick = math.floor(now / interval_s) + 1
    return tick * interval_s if tick * interval_s > now else (tick + 1) * interval_s


def why_none(failed: State) -> str:
    """Why there are no GPUs to watch."""
    if not failed.found and failed.error:
        return "no NVIDIA driver library here: only the CPU is measured"
    if failed.error:
        return "NVML fails ({}): only the CPU is measured".format(failed.error)
    return "NVML sees no GPU: only the CPU is measured"


def choose(
    gpus: Sequence[GpuState], asked: Optional[Sequence[int]], environ: Mapping[str, str]
) -> Tuple[Tuple[int, ...], List[int]]:
    """The GPUs to watch, and the requested ones that do not exist.

    Without --gpu: those that CUDA_VISIBLE_DEVICES shows, or all if that is not certain.
    """
    there = tuple(gpu.index for gpu in gpus)
    if asked is not None:
        known = tuple(i for i in dict.fromkeys(asked) if i in there)
        return known, [i for i in asked if i not in there]
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None or not gpus:
        return there, []
    from verify.checks.devices import visible

    shown = visible.select(value, visible.cards_of(State(gpus=tuple(gpus)))).shown
    alike = len({gpu.name for gpu in gpus}) == 1
    by_bus = value.startswith("GPU-") or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return (tuple(sorted(shown)) if shown and (alike or by_bus) else there), []
