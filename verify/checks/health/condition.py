"""Health: memory errors, throttling, heat, and modes, from NVML.

Each check reads everything again in its own child and judges one part of it.
"""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Callable, List, Mapping, Optional, Sequence

from verify.checks.health.fabric import IMEX, check_fabric
from verify.checks.health.findings import (
    RESET,
    Finding,
    judged,
    listed_numbers,
    outcome,
    recovery_due,
    table,
    unread,
)
from verify.checks.health.gpu_memory import check_memory
from verify.checks.health.xids import LOG
from verify.device.machine import Machine
from verify.device.nvml_types import RECOVER_IMEX, RECOVERY
from verify.device.telemetry import GpuState, State
from verify.model.check import CONFIGURATION, Check, Context, Outcome, Status, gpus

LOW_CLOCK = 0.7  # of the highest clock: lower than boost clocks fall under full load
BUSY = 50  # percent; below it a card's clocks do not show what limits them
NEAR_C = 5  # degrees below its limit from which an idle card is reported
READINGS, APART_S = 3, 0.3  # hw_slowdown also shows for a moment when clocks change
SLOWED = {
    "hw_thermal_slowdown": "too hot: the GPU's hardware halves its clocks",
    "sw_thermal_slowdown": "too hot: the driver lowers the clocks",
    "hw_power_brake_slowdown": "the power supply signals a power brake",
    "hw_slowdown": "the card's hardware lowers its clocks: heat, power or a power brake",
}
LICENSE = (
    "in the virtual machine, put the client token of your licence server into "
    "/etc/nvidia/ClientConfigToken and run systemctl restart nvidia-gridd; "
    "journalctl -u nvidia-gridd says why it gets no licence"
)
_COOL = "check fans, airflow and the room's air; clean the card's heatsink"
_POWER = "check the power supply, its cables and the chassis' power limit"


# Memory


# Clocks


def check_clocks(context: Context) -> Outcome:
    """Read once, and again if a card is slowed down: only a lasting slowdown is a finding."""
    readings = while_slowed(context.machine)
    return judged(readings[-1], lambda _: judge_clocks(readings))


def while_slowed(machine: Machine) -> List[State]:
    """One reading; a few if a card is slowed down in each."""
    readings = [machine.state()]
    while _slowed(readings[-1].gpus) and len(readings) < READINGS:
        machine.pause(APART_S)
        readings.append(machine.state())
    return readings


def _slowed(rows: Sequence[GpuState]) -> bool:
    return any(set(gpu.throttle_reasons or ()) & set(SLOWED) for gpu in rows)


def judge_clocks(readings: Sequence[State]) -> Outcome:
    """Whether no GPU is slowed down by heat or its power supply in every reading."""
    rows = readings[-1].gpus
    columns = ("index", "clock_sm_mhz", "clock_sm_max_mhz", "clock_memory_mhz", "throttle_reasons")
    measured = table("Clocks", columns, rows)
    if all(gpu.throttle_reasons is None for gpu in rows):
        return unread(readings[-1], rows, "what limits its clocks")
    findings = [f for gpu in rows for f in clock_findings(gpu, readings)]
    said = ["no throttling on {}".format(gpus(len(rows)))]
    said += ["GPU {}: {}".format(gpu.index, words) for gpu in rows for words in _clock_words(gpu)]
    return outcome(findings, "; ".join(said), measured, {"slowed_by": []})


def clock_findings(gpu: GpuState, readings: Sequence[State]) -> List[Finding]:
    """What slows a GPU down in every reading, unless that is by design."""
    lasting = set(SLOWED)
    for reading in readings:
        lasting &= {
            r for g in reading.gpus if g.index == gpu.index for r in g.throttle_reasons or ()
        }
    reason = next((reason for reason in SLOWED if reason in lasting), None)
    if reason is None or _as_designed(gpu, reason):
        return []
    what = "slowed down ({}), {}".format(reason, _clock(gpu))
    fix = _COOL if "thermal" in reason else _POWER if "brake" in reason else _COOL + "; " + _POWER
    return [Finding(gpu.index, what, SLOWED[reason], fix)]


def _as_designed(gpu: GpuState, reason: str) -> bool:
    """Whether the slowdown is by design: a laptop's GPU slows down on battery and when it is hot,
    an idle card lowers its clocks anyway, and any card's driver lowers clocks a little near its
    target temperature. A power brake comes from outside the card, also while it is idle.
    """
    idle = "gpu_idle" in (gpu.throttle_reasons or ())
    if is_laptop(gpu) or (idle and reason != "hw_power_brake_slowdown"):
        return True
    near = (gpu.clock_sm_mhz or 0) >= LOW_CLOCK * (gpu.clock_sm_max_mhz or 0)
    return reason == "sw_thermal_slowdown" and (near or (gpu.utilization_percent or 0) < BUSY)


def is_laptop(gpu: GpuState) -> bool:
    """From its name: GeForce RTX 4090 Laptop GPU, Quadro T2000 Mobile, Max-Q, GeForce MX330."""
    return re.search(r"Laptop|Mobile|with Max-Q|GeForce MX\d|\dM\b", gpu.name or "") is not None


def _clock(gpu: GpuState) -> str:
    if None in (gpu.clock_sm_mhz, gpu.clock_sm_max_mhz):
        return "SM clock not reported"
    return "SM clock {} of {} MHz".format(gpu.clock_sm_mhz, gpu.clock_sm_max_mhz)


def _clock_words(gpu: GpuState) -> List[str]:
    reasons = set(gpu.throttle_reasons or ())
    words = {
        "sw_power_cap": "at its power limit",
        "applications_clocks_setting": "clocks set by the user",
        **{reason: "slowed down ({})".format(reason) for reason in SLOWED},
    }
    told = [word for reason, word in words.items() if reason in reasons]
    return ["{}, {}".format(", ".join(told), _clock(gpu))] if told else []


# Temperature


def check_temperature(context: Context) -> Outcome:
    """Read each GPU's temperature, and at which one it slows itself down."""
    return judged(context.machine.seen(), judge_temperature)


def judge_temperature(found: State) -> Outcome:
    """Whether every GPU is below the temperature at which it slows down."""
    measured = table(
        "Heat",
        ("index", "temperature_c", "slowdown_c", "slowdown_margin_c", "fans_percent"),
        found.gpus,
    )
    left = {gpu.index: degrees_left(gpu) for gpu in found.gpus}
    if all(value is None for value in left.values()):
        return unread(found, found.gpus, "the temperature at which it slows down")
    findings = []
    for gpu in found.gpus:
        degrees = left[gpu.index]
        if degrees is not None and degrees <= 0 and not is_laptop(gpu):
            fans = ", fans at {} %".format(", ".join(map(str, gpu.fans_percent or ())))
            what = "{} C, {} C over the limit at which it slows down{}".format(
                gpu.temperature_c, -degrees, fans if gpu.fans_percent else ""
            )
            findings.append(Finding(gpu.index, what, "the card is not cooled well enough", _COOL))
    said = "; ".join(_heat(gpu, left[gpu.index]) for gpu in found.gpus)
    return outcome(findings, said, measured, {"degrees_left": "> 0"})


def degrees_left(gpu: GpuState) -> Optional[int]:
    """Degrees until the card slows down: as it reports (Ada and later), or from its limit."""
    if gpu.slowdown_margin_c is not None:
        return gpu.slowdown_margin_c
    if gpu.temperature_c is None or not gpu.slowdown_c:
        return None
    return gpu.slowdown_c - gpu.temperature_c


def _heat(gpu: GpuState, left: Optional[int]) -> str:
    if left is None:
        return "GPU {}: {} C, its limit is not known".format(gpu.index, gpu.temperature_c)
    near = ", so it will throttle under load" if left <= NEAR_C else ""
    return "GPU {}: {} C, {} C left{}".format(gpu.index, gpu.temperature_c, left, near)


# Modes


def check_mode(context: Context) -> Outcome:
    """Read each GPU's compute mode."""
    return judged(context.machine.seen(), lambda found: judge_mode(found, mps=_mps()))


def _mps() -> bool:
    """Whether CUDA programs here go through NVIDIA's Multi-Process Service."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"  # noqa: S108
    return bool(glob.glob(os.path.join(folder, "control")))


def judge_mode(found: State, *, mps: bool = False) -> Outcome:
    """Whether CUDA programs may start on every GPU."""
    columns = ["index", "compute_mode", "persistence", "mig", "recovery", "inforom_corrupt"]
    columns += ["license"] if any(gpu.license for gpu in found.gpus) else []
    measured = {**table("Modes", columns, found.gpus), "mps": mps}
    findings = [f for gpu in found.gpus for f in _mode_findings(gpu)]
    if all(gpu.compute_mode is None and gpu.mig is None for gpu in found.gpus) and not findings:
        return unread(found, found.gpus, "its modes")
    said = ["CUDA programs can start on {}".format(gpus(len(found.gpus)))]
    single = [gpu for gpu in found.gpus if "exclusive" in (gpu.compute_mode or "")]
    taken = [] if mps else [gpu for gpu in single if gpu.processes]
    if taken and not findings:
        return _taken(taken, measured)
    idle = [gpu for gpu in found.gpus if gpu.persistence is False]
    said += (
        ["GPU {} accepts one process at a time".format(listed_numbers(single))] if single else []
    )
    said += ["persistence mode is off: the first call takes longer"] if idle else []
    free = [gpu for gpu in found.gpus if gpu.license == "unlicensed (unrestricted)"]
    said += ["GPU {} has no licence, and no limit yet".format(listed_numbers(free))] if free else []
    damaged = [gpu for gpu in found.gpus if gpu.inforom_corrupt]
    said += ["the infoROM of GPU {} is damaged".format(listed_numbers(damaged))] if damaged else []
    return outcome(findings, "; ".join(said), measured, {"compute_mode": "default"})


def _taken(taken: Sequence[GpuState], measured: Mapping[str, Any]) -> Outcome:
    """The skip for GPUs that admit one process and have one: in use, and not faulty."""
    said = [
        "GPU {} accepts one process at a time, and process {} uses it".format(
            gpu.index, ", ".join(str(process.pid) for process in gpu.processes or ())
        )
        for gpu in taken
    ]
    cause = "compute mode {}".format(taken[0].compute_mode)
    fix = (
        "end that process, or as root: nvidia-smi -i {} -c DEFAULT; with MPS, share its pipe folder"
    )
    return Outcome(
        Status.SKIP, "; ".join(said), cause, fix.format(taken[0].index), measured=measured
    )


def _mode_findings(gpu: GpuState) -> List[Finding]:
    default = "as root, run nvidia-smi -i {} -c DEFAULT".format(gpu.index)
    found = []
    if gpu.compute_mode == "prohibited":
        cause = "compute mode PROHIBITED allows no CUDA program"
        found.append(Finding(gpu.index, "closed to CUDA programs", cause, default))
    due = recovery_due(gpu)
    if due:
        cause = "after an error, the driver asks to {}".format(due)
        fix = "reboot the host" if due.startswith("reboot") else RESET.format(gpu.index)
        fix = IMEX if gpu.recovery == RECOVERY[RECOVER_IMEX] else fix
        found.append(Finding(gpu.index, "recovery action due", cause, fix))
    if gpu.license == "unlicensed" and gpu.virtualization == "vgpu":
        cause = "without a licence, a virtual GPU slows down to nothing after 20 minutes"
        found.append(Finding(gpu.index, "virtual GPU without a licence", cause, LICENSE))
    if gpu.mig and gpu.mig_devices == ():
        cause = "MIG mode is on, but there is no MIG device, or this container has none"
        fix = "create one (nvidia-smi mig -i {0} -cgi 0 -C), or run nvidia-smi -i {0} -mig 0"
        fix, what = fix.format(gpu.index), "no MIG device to run on"
        found.append(Finding(gpu.index, what, cause, fix, CONFIGURATION))
    return found


def _check(name: str, title: str, run: Callable[[Context], Outcome]) -> Check:
    return Check(
        "health." + name, title, run, limit_s=30, framework=False, shares=True, replays=True
    )


CHECKS = (
    _check("memory", "Memory has no errors", check_memory),
    _check("clocks", "Nothing slows the GPUs down", check_clocks),
    _check("temperature", "No GPU is too hot", check_temperature),
    _check("mode", "Every GPU accepts CUDA programs", check_mode),
    _check("fabric", "The NVSwitch fabric is up", check_fabric),
    LOG,
)
