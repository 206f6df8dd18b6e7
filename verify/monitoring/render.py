"""Formats a run as text, 80 columns wide, and as JSON."""

from __future__ import annotations

import textwrap
from typing import Any, Dict, List, Optional

from verify.monitoring.summary import Bottleneck, GpuRun, Run, Totals

WIDTH = 80
_LEAST_SHARE = 0.005  # of the samples: what rounds to 0 % is left out
_SLOW_NAMES = {
    "sw_power_cap": "power limit",
    "hw_thermal_slowdown": "heat (hardware)",
    "sw_thermal_slowdown": "heat (driver)",
    "hw_power_brake_slowdown": "power brake",
    "hw_slowdown": "hardware slowdown",
}
TITLES = {
    "data": "data: the GPU waits for data",
    "host": "host: the GPU waits for the program on the CPU",
    "memory": "GPU memory",
    "compute": "compute: the GPU works all the time",
    "power": "power",
    "heat": "heat",
    "unused": "none: the GPUs did nothing",
    "unknown": "unknown",
}


def page(run: Run, found: Bottleneck, head: str, notes: "List[str]") -> str:
    """The summary for people."""
    lines = _wrap("", head)
    lines += _wrap("  CPU    ", "; ".join(_host_words(run)) or "not measured")
    for gpu in run.gpus.values():
        lines += _wrap("  GPU {:<2} ".format(gpu.index), "; ".join(_gpu_words(gpu)))
    lines += _wrap("  Likely bottleneck: ", TITLES[found.kind], 9)
    lines += [line for text in found.evidence for line in _wrap("         ", text)]
    lines += _wrap("         to try: ", found.advice, 9) if found.advice else []
    lines += [line for note in notes for line in _wrap("  Note: ", note)]
    return "\n".join(lines) + "\n"


def _wrap(head: str, text: str, indent: Optional[int] = None) -> List[str]:
    left = " " * (len(head) if indent is None else indent)
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=left)


def _host_words(run: Run) -> List[str]:
    host, words = run.host, []
    cores, machine, rss = host.mean("cores"), host.mean("machine"), host.peak("rss")
    if cores is not None:
        words.append("mean {:.1f} of {} cores".format(cores, run.cpus))
    if machine is not None:
        words.append("machine {:.0f} % busy".format(machine))
    if rss is not None:
        words.append("peak memory " + size(rss))
    if host.mean("read") is not None:
        words.append("{} read from storage".format(size(run.read_bytes)))
    return words


def _gpu_words(gpu: GpuRun) -> List[str]:
    whole, words = gpu.whole, [gpu.name] if gpu.name else []
    busy, most = whole.mean("utilization"), whole.peak("utilization")
    if busy is not None and most is not None:
        words.append("mean {:.0f} % busy, peak {:.0f} %".format(busy, most))
    memory, total = whole.peak("memory"), gpu.memory_total_bytes
    if memory is not None:
        of = " of {}".format(size(total)) if total else ""
        words.append("peak memory {}{}".format(size(memory), of))
    power, heat = whole.mean("power"), whole.peak("temperature")
    if gpu.energy_wh is not None and power is not None:
        words.append("mean {:.0f} W, {}".format(power, energy(gpu.energy_wh)))
    if heat is not None:
        words.append("at most {:.0f} C".format(heat))
    slowed = _slowed_words(whole)
    return [*words, "slowed by " + slowed] if slowed else words


def _slowed_words(whole: Totals) -> str:
    shares = {name: whole.share((reason,)) for reason, name in _SLOW_NAMES.items()}
    told = ["{} {:.0f} %".format(n, 100 * s) for n, s in shares.items() if s >= _LEAST_SHARE]
    return ", ".join(told) + " of the time" if told else ""


def size(count: float) -> str:
    """Bytes with a unit, in powers of 1024 as memory is sold."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return "{:.{}f} {}".format(count, 0 if unit == "B" or count >= 100 else 1, unit)
        count /= 1024
    return "{:.1f} TiB".format(count)


def energy(wh: float) -> str:
    """Watt hours, with enough digits for a short run."""
    return "{:.2f} kWh".format(wh / 1000) if wh >= 1000 else "{:.3g} Wh".format(wh)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds; a short time with tenths."""
    if seconds < 60:
        return "{:.1f} s".format(seconds)
    minutes, rest = divmod(round(seconds), 60)
    return "{}:{:02d}:{:02d}".format(*divmod(minutes, 60), rest)


def as_dict(run: Run, found: Bottleneck) -> Dict[str, Any]:
    """The summary for machines; units are in the names."""
    host = run.host
    return {
        "seconds": round(run.seconds, 3),
        "samples": run.samples,
        "bottleneck": {
            "kind": found.kind,
            "evidence": list(found.evidence),
            "advice": found.advice,
        },
        "host": {
            "cpus": run.cpus,
            "cores_mean": host.mean("cores"),
            "machine_percent_mean": host.mean("machine"),
            "rss_bytes_peak": host.peak("rss"),
            "read_bytes": round(run.read_bytes) if host.mean("read") is not None else None,
        },
        "gpus": [_gpu_dict(gpu) for gpu in run.gpus.values()],
    }


def _gpu_dict(gpu: GpuRun) -> Dict[str, Any]:
    whole = gpu.whole
    shares = {reason: whole.share((reason,)) for reason in sorted(whole.slowed)}
    return {
        "index": gpu.index,
        "name": gpu.name,
        "utilization_percent_mean": whole.mean("utilization"),
        "utilization_percent_peak": whole.peak("utilization"),
        "memory_utilization_percent_mean": whole.mean("memory_utilization"),
        "memory_bytes_peak": whole.peak("memory"),
        "memory_total_bytes": gpu.memory_total_bytes,
        "power_w_mean": whole.mean("power"),
        "power_w_peak": whole.peak("power"),
        "power_limit_w": gpu.power_limit_w,
        "energy_wh": gpu.energy_wh,
        "temperature_c_peak": whole.peak("temperature"),
        "clock_share_mean": whole.mean("clock"),
        "throttle_shares": shares,
    }
