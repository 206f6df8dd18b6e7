"""Facts of a machine, each with its source.

What cannot be read is absent, never guessed. A probe is a function from a `ProbedMachine` to names
and facts; it reads only through the machine's methods. All run in parallel under one time limit: a
program or a file that hangs costs only the facts of its own probe.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from provision.doctor.model import Fact
from provision.doctor.probes import (
    cdi,
    cgroup,
    commands,
    devices,
    docker,
    driver,
    environment,
    fabric,
    gpus,
    libraries,
    network,
    podman,
    python,
    system,
    toolkit,
)
from provision.doctor.probes.commands import kernel_log
from provision.doctor.probes.fact import Found
from provision.host.machine import Answer, ProbedMachine, Question, Remembering, Source
from provision.host.nvml import NvmlLoader, ask_nvml, load_nvml
from provision.host.tree import tree_source

__all__ = ["INSIDE", "LIMIT_S", "PROBES", "ProbedMachine", "kernel_log", "read_facts", "source_of"]

LIMIT_S = 6.0
NVML_LIMIT_S = 4.0

Probe: TypeAlias = Callable[[ProbedMachine], Iterable[Found]]

# Inside a container the engine, its toolkit and the kernel's own state belong to the host.
INSIDE: tuple[Probe, ...] = (
    system.probe_os,
    system.probe_kinds,
    gpus.probe_names,
    gpus.probe_state,
    driver.probe_module,
    driver.probe_libraries,
    driver.probe_answers,
    devices.probe_devices,
    libraries.probe_path,
    libraries.probe_libcuda,
    libraries.probe_cudnn_and_nccl,
    libraries.probe_toolkits,
    python.probe_python,
    python.probe_frameworks,
    environment.probe_environment,
    environment.probe_limits,
    environment.probe_memory,
    environment.probe_disks,
    network.probe_proxy,
    network.probe_index,
)

PROBES: tuple[Probe, ...] = (
    *INSIDE,
    system.probe_kernel,
    gpus.probe_bus,
    gpus.probe_acs,
    driver.probe_settings,
    driver.probe_on_disk,
    driver.probe_flavour,
    fabric.probe_fabric,
    docker.probe_docker,
    podman.probe_podman,
    podman.probe_containerd,
    toolkit.probe_toolkit,
    cdi.probe_cdi,
    cgroup.probe_cgroup,
    cgroup.probe_security,
    network.probe_interfaces,
    network.probe_infiniband,
)


def read_facts(
    machine: ProbedMachine,
    *,
    nvml_loader: NvmlLoader = load_nvml,
    limit_s: float = LIMIT_S,
    probes: Sequence[Probe] = PROBES,
) -> dict[str, Fact]:
    """All facts that can be read within the limit, in the order of the probes."""
    asked = ProbedMachine(
        root=machine.root,
        env=machine.env,
        source=Remembering(source_of(machine, nvml_loader)),
    )
    deadline = time.monotonic() + limit_s
    commands.start_all(asked)
    found: list[dict[str, Fact]] = [{} for _ in probes]
    threads = [
        threading.Thread(target=_probe, args=(probe, asked, kept), daemon=True)
        for probe, kept in zip(probes, found, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {name: value for kept in found for name, value in list(kept.items())}


def source_of(machine: ProbedMachine, nvml_loader: NvmlLoader) -> Source:
    """The machine's source; NVML is queried only if programs may be run, and only for this
    machine.
    """
    if machine.source is not None:
        return machine.source
    source = tree_source(machine.root, machine.run, machine.env)
    is_here = machine.run is not None and machine.root == Path("/")
    return _with_nvml(source, nvml_loader) if is_here else source


def _with_nvml(source: Source, load: NvmlLoader) -> Source:
    def ask(question: Question) -> Answer:
        if question == ("nvml",):
            return ask_nvml(load, timeout_s=NVML_LIMIT_S)
        return source(question)

    return ask


def _probe(probe: Probe, machine: ProbedMachine, kept: dict[str, Fact]) -> None:
    """One probe's facts, as they arrive: facts found before it fails or hangs are kept."""
    try:
        for name, value in probe(machine):
            kept.setdefault(name, value)
    except Exception:  # a file of another machine may break any reader
        logging.getLogger(__name__).debug("%s failed", probe.__qualname__, exc_info=True)
