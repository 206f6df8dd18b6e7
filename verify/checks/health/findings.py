"""Combines findings about GPUs into one outcome, with their messages and a table of readings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from verify.backends.sight import START_WITH_GPUS
from verify.device.nvml_types import DRAIN_AND_RESET, RECOVERY
from verify.device.telemetry import GpuState, State
from verify.model.check import NODE, Outcome, Status, gpus
from verify.model.measures import Table, pack

RESET = "end what runs on the GPU and reset it (nvidia-smi --gpu-reset -i {}), or reboot the host"


@dataclass(frozen=True)
class Finding:
    """One thing wrong with one GPU."""

    gpu: int
    what: str
    cause: str
    fix: str
    at_fault: str = NODE


def judged(found: State, judge: Callable[[State], Outcome]) -> Outcome:
    """The judgement of NVML's readings, or a skip if there are none."""
    if found.error or not found.gpus:
        reason = "no NVIDIA driver library here" if not found.found else ""
        reason = reason or ("NVML fails: " + found.error if found.error else "NVML sees no GPU")
        return Outcome(Status.SKIP, reason, fix=START_WITH_GPUS)
    return judge(found)


def outcome(
    findings: Sequence[Finding], well: str, measured: Mapping[str, Any], expected: Mapping[str, Any]
) -> Outcome:
    """A failure that names every finding, or a pass."""
    if not findings:
        return Outcome(Status.PASS, well, measured=measured, expected=expected)
    same: Dict[str, List[int]] = {}
    for finding in findings:
        same.setdefault(finding.what, []).append(finding.gpu)
    message = "; ".join("GPU {}: {}".format(spans(on), what) for what, on in same.items())
    cause = "; ".join(dict.fromkeys(finding.cause for finding in findings))
    fix = "; ".join(dict.fromkeys(finding.fix for finding in findings))
    whose = {finding.at_fault for finding in findings}
    at_fault = NODE if NODE in whose else findings[0].at_fault
    return Outcome(Status.FAIL, message, cause, fix, measured, expected, at_fault)


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges: "0-3, 6"."""
    found: List[List[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(
        str(first) if first == last else "{}-{}".format(first, last) for first, last in found
    )


def table(title: str, columns: Sequence[str], gpus: Sequence[GpuState]) -> Dict[str, Any]:
    """A row per GPU; the columns are fields of its state."""
    rows = tuple(tuple(_cell(getattr(gpu, column)) for column in columns) for gpu in gpus)
    return pack(tables=[Table(title, tuple(columns), rows)])


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else value


def recovery_due(gpu: GpuState) -> Optional[str]:
    """What the driver asks for after an error. Not for a row that waits for remapping: the GPU may
    be used until then, and health.memory reports it.
    """
    remaps = gpu.remap_pending and gpu.recovery == RECOVERY[DRAIN_AND_RESET]
    return None if remaps or gpu.recovery == "none" else gpu.recovery


def listed_numbers(rows: Sequence[GpuState]) -> str:
    return spans([gpu.index for gpu in rows])


def unread(found: State, rows: Sequence[GpuState], what: str) -> Outcome:
    """The skip of a check if no GPU reports its values."""
    why = "; NVML refuses: " + "; ".join(found.problems[:2]) if found.problems else ""
    verb = "does" if len(rows) == 1 else "do"
    return Outcome(Status.SKIP, "{} {} not report {}{}".format(gpus(len(rows)), verb, what, why))
