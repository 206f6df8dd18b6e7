"""What a machine read before the run, to be compared with what it reads at the end."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Dict, Mapping, Optional

from verify.device.kernel_log import Log
from verify.device.machine import Machine
from verify.device.telemetry import GpuProcess, GpuState, Mig, NvLink, Pair, State

_PARTS = {"mig_devices": Mig, "processes": GpuProcess, "nvlinks": NvLink}


@dataclass(frozen=True)
class Baseline:
    """All that NVML measured, and how far the kernel log went.

    Times of the log are compared with each other only: its clock drifts from the system's.
    """

    state: State
    log_s: Optional[float] = None  # the time of the newest line; None if unknown
    at_s: float = 0.0  # by the monotonic clock

    def as_dict(self) -> Dict[str, Any]:
        """For the pipe between processes."""
        return asdict(self)


def take(machine: Machine, state: Optional[State] = None) -> Baseline:
    """Read it now; `state` is what NVML measured, if that was just read."""
    return Baseline(state or machine.state(), _end(machine.log()), time.monotonic())


def _end(log: Log) -> Optional[float]:
    times = [line.since_start_s for line in log.lines if line.since_start_s is not None]
    return None if log.error or (log.lines and not times) else max(times, default=0.0)


def from_dict(row: Mapping[str, Any]) -> Baseline:
    """The inverse of `as_dict`."""
    state = row["state"]
    parts = {"gpus": tuple(map(_gpu, state["gpus"])), "problems": tuple(state["problems"])}
    pairs = tuple(Pair(**pair) for pair in state["pairs"])
    return Baseline(State(**{**state, **parts, "pairs": pairs}), row["log_s"], row["at_s"])


def _gpu(row: Mapping[str, Any]) -> GpuState:
    """JSON has lists where a state has tuples, of values of their own types in `_PARTS`."""

    def restored(name: str, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return tuple(_PARTS[name](**one) if name in _PARTS else one for one in value)

    return GpuState(**{name: restored(name, value) for name, value in row.items()})
