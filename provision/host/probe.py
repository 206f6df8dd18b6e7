"""All of a host's facts, each from the first source that answers.

The order, fact by fact:

- `driver`, the kernel module's version: PROVISION_DRIVER, /sys/module/nvidia/version,
  /proc/driver/nvidia/version, NVML, nvidia-smi.
- `user_mode_driver`, that of libcuda and libnvidia-ml: NVML, then the name of the file that
  libnvidia-ml.so.1 (or libcuda.so.1) resolves to.
- `driver_cuda`, the newest CUDA that the driver says it supports: NVML, nvidia-smi's header.
- `gpus`: NVML, nvidia-smi, /proc/driver/nvidia/gpus, then the PCI bus, which can only say "none".

nvidia-smi is slow and reports no more than NVML, so it runs only if NVML did not answer. A source
that was queried and had nothing is a row in `absent`; contradicting sources are one, too (fact
"driver agreement"), and the first one's value is kept. Nothing here raises, except for an invalid
PROVISION_DRIVER.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from provision.errors import BadInputError
from provision.host import engines, nvml, proc, smi, system
from provision.host.machine import ProbedMachine, Remembering
from provision.host.nvml import NvmlLoader, load_nvml
from provision.host.runner import ProgramRunner, local_runner
from provision.host.source_facts import Fact, SourceFacts, one_line, version_or_none
from provision.host.tree import tree_source
from provision.model.plan import Absent, HostFacts

OVERRIDE = "PROVISION_DRIVER"
AGREEMENT = "driver agreement"

_log = logging.getLogger(__name__)

T = TypeVar("T")


def detect(
    *,
    root: Path = Path("/"),
    env: Mapping[str, str] | None = None,
    run: ProgramRunner | None = None,
    nvml_loader: NvmlLoader = load_nvml,
) -> HostFacts:
    """Read this machine. Everything external is a parameter; the defaults are the real ones."""
    env = os.environ if env is None else env
    run = local_runner(env) if run is None else run
    machine = ProbedMachine(env=env, source=Remembering(tree_source(root, run, env)))
    override = read_override(env)
    with ThreadPoolExecutor(max_workers=1) as pool:
        engines_found = pool.submit(engines.find_engines, machine)
        readings = read_driver(machine, load=nvml_loader)
        found = engines_found.result()
    wsl = proc.read_wsl(machine)
    facts = merge([*override, *readings])
    os_id, os_version, os_source, os_why = system.read_os(machine)
    glibc, glibc_why = system.read_glibc()
    rows = [
        Absent(fact=fact, source=source, reason=why)
        for fact, source, why in (("os", os_source, os_why), ("glibc", "confstr", glibc_why))
        if why
    ]
    sources = [("arch", "uname"), ("python", "this interpreter")]
    sources += [("os", os_source)] if os_id else []
    sources += [("glibc", "confstr")] if glibc else []
    sources += [("wsl", "/proc/version")] if wsl is not None else []
    result = HostFacts(
        driver=facts.driver,
        user_mode_driver=facts.user_mode_driver,
        driver_cuda=facts.driver_cuda,
        arch=system.read_arch(),
        glibc=glibc,
        os_id=os_id,
        os_version=os_version,
        python=system.read_python(),
        wsl=wsl,
        gpus=facts.gpus,
        engines=found.engines,
        sources=(*facts.sources, *sources, *found.sources),
        absent=(*facts.absent, *disagreements(readings, wsl=wsl), *rows, *found.absent),
    )
    for fact, source in result.sources:
        _log.debug("%s: from %s", fact, source)
    for row in result.absent:
        _log.debug("%s: not from %s: %s", row.fact, row.source, row.reason)
    return result


def read_override(env: Mapping[str, str]) -> list[SourceFacts]:
    """The driver version that the user states, which overrides everything that can be read."""
    stated = env.get(OVERRIDE, "").strip()
    if not stated:
        return []
    version = version_or_none(stated)
    if version is None:
        raise BadInputError(
            f"{OVERRIDE} must be a driver version, got {one_line(stated, limit=60)!r}.",
            fix=f'Give it as nvidia-smi prints it, {OVERRIDE}="515.65.01", or unset {OVERRIDE}.',
        )
    return [SourceFacts(source=OVERRIDE, gives=("driver",), driver=version)]


def read_driver(machine: ProbedMachine, *, load: NvmlLoader) -> list[SourceFacts]:
    """The driver's sources in their order; those that add nothing are not queried."""
    readings = [proc.read_sys_version(machine)]
    if readings[0].driver is None:
        readings.append(proc.read_proc_version(machine))
    readings.append(nvml.read_nvml(load))
    if readings[-1].driver is None or readings[-1].gpus is None:
        readings.append(smi.read_smi(machine))
    readings.append(system.read_libraries(machine))
    if not any(reading.gpus for reading in readings):
        readings.append(proc.read_proc_gpus(machine))
        readings.append(proc.read_bus(machine))
    return readings


def merge(readings: Sequence[SourceFacts]) -> HostFacts:
    """The first answer to each fact, and a row for every source that was queried before it."""
    sources: list[tuple[str, str]] = []
    absent: list[Absent] = []

    def first(fact: Fact, get: Callable[[SourceFacts], T | None]) -> T | None:
        for reading in readings:
            if fact not in reading.gives:
                continue
            value = get(reading)
            if value is not None:
                sources.append((fact, reading.source))
                return value
            if reading.failed:
                absent.append(Absent(fact=fact, source=reading.source, reason=reading.failed))
        return None

    driver = first("driver", lambda r: r.driver)
    user_mode_driver = first("user_mode_driver", lambda r: r.user_mode_driver)
    driver_cuda = first("driver_cuda", lambda r: r.driver_cuda)
    gpus = first("gpus", lambda r: r.gpus)
    details = [row for reading in readings for row in reading.absent]
    return HostFacts(
        driver=driver,
        user_mode_driver=user_mode_driver,
        driver_cuda=driver_cuda,
        gpus=gpus,
        sources=tuple(sources),
        absent=(*absent, *details),
    )


def disagreements(readings: Sequence[SourceFacts], *, wsl: bool | None) -> tuple[Absent, ...]:
    """Where two sources state different drivers: the sign of an upgrade without a reboot.

    On WSL2 the kernel half is Windows' and has another number, so only drivers are compared.
    """
    told = [(r.source, r.driver) for r in readings if r.driver]
    rows = [
        Absent(
            fact=AGREEMENT,
            source=source,
            reason=f"{told[0][0]} says {told[0][1]}, {source} says {version}: "
            "reboot, or reload the nvidia kernel modules",
        )
        for source, version in told[1:]
        if version != told[0][1]
    ]
    user = next(((r.source, r.user_mode_driver) for r in readings if r.user_mode_driver), None)
    if user and told and not wsl and user[1] != told[0][1] and not rows:
        rows.append(
            Absent(
                fact=AGREEMENT,
                source=user[0],
                reason=f"the kernel module is {told[0][1]}, the libraries are {user[1]}: "
                "reboot, or reload the nvidia kernel modules",
            )
        )
    return tuple(rows)
