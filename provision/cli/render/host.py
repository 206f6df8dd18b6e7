"""Render host facts as text: one aligned block."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from provision.model.plan import Absent, Engine, Gpu, HostFacts
from provision.output.text import LABEL, row

_UNKNOWN = "unknown"


def describe_host(facts: HostFacts) -> str:
    """Driver, CUDA, GPUs, system, engines, and what could not be read."""
    sources = dict(facts.sources)
    asked = {one.fact for one in facts.absent}
    lines = [
        *row("driver", _driver(facts, sources, asked)),
        *row("libraries", _sourced(facts.user_mode_driver, "user_mode_driver", sources, asked)),
        *row("cuda", _cuda(facts, sources)),
        *row("system", _system(facts)),
        *_gpus(facts.gpus),
        *_engines(facts.engines),
        *_not_read(facts.absent, sources),
    ]
    return "\n".join(lines)


def _cuda(facts: HostFacts, sources: Mapping[str, str]) -> str:
    if facts.driver_cuda is None:
        return "none (no driver)" if _no_driver(facts) else _UNKNOWN
    source = sources.get("driver_cuda")
    return f"up to {facts.driver_cuda} supported by this driver" + (
        f" ({source})" if source else ""
    )


def _driver(facts: HostFacts, sources: Mapping[str, str], asked: Collection[str]) -> str:
    if facts.driver is None and facts.user_mode_driver is not None:
        return "not loaded"
    return _sourced(facts.driver, "driver", sources, asked)


def _no_driver(facts: HostFacts) -> bool:
    """Whether both parts of a driver were looked for and neither was found."""
    looked_for = {one.fact for one in facts.absent} >= {"driver", "user_mode_driver"}
    return looked_for and facts.driver is None and facts.user_mode_driver is None


def _system(facts: HostFacts) -> str:
    system = " ".join(filter(None, (facts.os_id, facts.os_version))) or "OS unknown"
    return ", ".join(
        (
            system + (" on WSL2" if facts.wsl else ""),
            facts.arch or "processor unknown",
            f"glibc {facts.glibc}" if facts.glibc else "glibc unknown",
            f"Python {facts.python}" if facts.python else "Python unknown",
        )
    )


def _gpus(gpus: tuple[Gpu, ...] | None) -> Iterator[str]:
    if not gpus:
        yield from row("GPUs", _UNKNOWN if gpus is None else "none")
        return
    rows = [("#", "name", "CC", "memory", "MIG")]
    rows += [(str(index), *_gpu(gpu)) for index, gpu in enumerate(gpus)]
    widths = [max(len(cells[column]) for cells in rows) for column in range(5)]
    for number, (index, name, capability, memory, mig) in enumerate(rows):
        text = (
            f"{index:>{widths[0]}}  {name:<{widths[1]}}  {capability:>{widths[2]}}  "
            f"{memory:>{widths[3]}}  {mig}"
        )
        yield f"{'GPUs' if number == 0 else '':<{LABEL}}{text}".rstrip()


def _gpu(gpu: Gpu) -> tuple[str, str, str, str]:
    name = gpu.name or _UNKNOWN
    capability = gpu.compute_capability
    return (
        name if len(name) <= 36 else name[:33] + "...",
        f"{capability[0]}.{capability[1]}" if capability else "?",
        f"{gpu.memory_mib} MiB" if gpu.memory_mib is not None else "?",
        {True: "on", False: "off", None: "?"}[gpu.mig],
    )


def _engines(engines: tuple[Engine, ...] | None) -> Iterator[str]:
    if not engines:
        yield from row("engines", _UNKNOWN if engines is None else "none")
        return
    for number, engine in enumerate(engines):
        yield from row("engines" if number == 0 else "", _engine(engine))


def _engine(engine: Engine) -> str:
    parts = [f"{engine.name} {engine.client or '(version unknown)'}"]
    if engine.server and engine.server != engine.client:
        parts.append(f"server {engine.server}")
    if engine.name == "docker":
        parts.append(f"BuildKit: {engine.buildkit or 'none'}")
    if engine.gpu_runtime is not None:
        parts.append("NVIDIA runtime" if engine.gpu_runtime else "no NVIDIA runtime")
    if engine.cdi_devices is not None:
        parts.append(f"CDI devices: {len(engine.cdi_devices)}")
    if engine.problem:
        parts.append(f"not usable: {engine.problem}")
    return ", ".join(parts)


def _not_read(absent: Sequence[Absent], sources: Mapping[str, str]) -> Iterator[str]:
    """One entry for each source and reason, with all the facts it concerns.

    A fact that a later source answered is left out, unless NVML failed, which is always shown.
    """
    absent = [one for one in absent if one.fact not in sources or one.source == "nvml"]
    groups: dict[tuple[str, str], list[str]] = {}
    for one in absent:
        groups.setdefault((one.source, one.reason), []).append(one.fact)
    for number, ((source, reason), facts) in enumerate(groups.items()):
        label = "not read" if number == 0 else ""
        shown = ", ".join(dict.fromkeys(facts))
        yield from row(label, f"{shown}: {source}: {reason}")


def _sourced(
    value: str | None, fact: str, sources: Mapping[str, str], asked: Collection[str]
) -> str:
    """A value and its source; "none found" if it was looked for and does not exist."""
    if value is None:
        return "none found" if fact in asked else _UNKNOWN
    source = sources.get(fact)
    return f"{value} ({source})" if source else value
