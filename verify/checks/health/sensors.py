"""NVML's readings that one GPU refuses with an error, and others of its model give.

A sensor that answers "Unknown Error" is often the sign before a card falls off the bus. Some cards
and drivers answer so for all GPUs of a model, and for a moment: that is no finding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Sequence

from verify.checks.health.findings import RESET, Finding, outcome
from verify.device.machine import Machine
from verify.device.nvml_types import GPU_IS_LOST, NOT_SUPPORTED, RESET_REQUIRED, UNKNOWN
from verify.device.telemetry import GpuState, State
from verify.model.check import Outcome

READINGS, APART_S = 3, 0.3
ERRORS = {UNKNOWN: "unknown error", GPU_IS_LOST: "GPU is lost", RESET_REQUIRED: "reset required"}


def read_sensors(machine: Machine) -> List[State]:
    """NVML's readings; more of them while a sensor fails: only what lasts is a finding."""
    readings = [machine.seen()]
    while sensor_findings(readings) and len(readings) < READINGS:
        machine.pause(APART_S)
        readings.append(machine.state())
    return readings


def judge_sensors(well: Outcome, readings: Sequence[State]) -> Outcome:
    """A failure where a sensor fails in all readings; else `well`, with what only one GPU lacks."""
    findings = sensor_findings(readings)
    if findings:
        return outcome(findings, "", well.measured, well.expected)
    lacks = [words for gpu in readings[-1].gpus for words in _lacking(gpu, readings[-1])]
    return replace(well, message="; ".join((well.message, *lacks)))


def sensor_findings(readings: Sequence[State]) -> List[Finding]:
    """What each GPU refuses in every reading, although an equal GPU answers it; and what it refuses
    as a lost GPU does, which needs no comparison.
    """
    failed = [
        {(gpu.index, *one) for gpu in state.gpus for one in _failing(gpu, state).items()}
        for state in readings
    ]
    found = []
    for gpu in readings[-1].gpus:
        names = sorted(one for one in set.intersection(*failed) if one[0] == gpu.index)
        if names:
            what = "NVML cannot read " + ", ".join(
                "{} ({})".format(_short(name), ERRORS[code]) for _, name, code in names
            )
            cause = "the driver is losing the GPU, or one of its sensors is broken"
            if all(code == RESET_REQUIRED for _, _, code in names):
                cause = "after an error the GPU works only after a reset"
            fix = "look at the host's kernel log; " + RESET.format(gpu.index)
            found.append(Finding(gpu.index, what, cause, fix))
    return found


def _failing(gpu: GpuState, state: State) -> Dict[str, int]:
    answered = _answered_by_twins(gpu, state)
    return {
        name: code
        for name, code in gpu.refused
        if code in (GPU_IS_LOST, RESET_REQUIRED) or (code == UNKNOWN and name in answered)
    }


def _lacking(gpu: GpuState, state: State) -> List[str]:
    answered = _answered_by_twins(gpu, state)
    names = [_short(n) for n, code in gpu.refused if code == NOT_SUPPORTED and n in answered]
    said = "GPU {} does not report {}, others of its model do"
    return [said.format(gpu.index, ", ".join(names))] if names else []


def _answered_by_twins(gpu: GpuState, state: State) -> List[str]:
    """Of what this GPU refuses."""
    twins = [
        dict(other.refused)
        for other in state.gpus
        if other.index != gpu.index
        and not other.failure
        and (other.name, bool(other.mig)) == (gpu.name, bool(gpu.mig))
    ]
    return [name for name, _ in gpu.refused if any(name not in twin for twin in twins)]


def _short(name: str) -> str:
    """ "Temperature" for nvmlDeviceGetTemperature."""
    return name.replace("nvmlDeviceGet", "").replace("nvmlDevice", "")
