"""Fabric Manager, which machines with NVSwitches need."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.doctor.probes import commands
from provision.doctor.probes.driver import versions_differ
from provision.doctor.probes.fact import Found, fact
from provision.doctor.probes.gpus import read_bus
from provision.doctor.probes.packages import read_packages
from provision.host.machine import ProbedMachine
from provision.host.proc import PCI_DEVICES, loaded_version

_PROGRAM = "nv-fabricmanager"
_PACKAGE = r"nvidia-fabric-?manager(?:-\d+)?|cuda-fabric-?manager-\d+"


def probe_fabric(machine: ProbedMachine) -> Iterator[Found]:
    bus = read_bus(machine)
    if bus is not None:
        needed = any(d.is_switch for d in bus) and any(d.is_gpu for d in bus)
        yield from fact("fabric.needed", needed, PCI_DEVICES)
    packages = read_packages(machine)
    packaged = packages.version(_PACKAGE) if packages else None
    program = machine.which(_PROGRAM)
    yield from _running(machine)
    version, where = packaged, packages.where if packages else ""
    if version is None and program:
        done = commands.ask(machine, commands.FABRIC)
        version, where = parse_version(done.out) if done else None, commands.words(commands.FABRIC)
    loaded, _ = loaded_version(machine)
    yield from fact("fabric.version_differs", versions_differ(loaded, version), where)


def parse_version(text: str) -> str | None:
    """ "Fabric Manager version is : 570.86.15"."""
    found = re.search(r"version is\s*:\s*(\d+(?:\.\d+)+)", text)
    return found[1] if found else None


def _running(machine: ProbedMachine) -> Iterator[Found]:
    found = machine.processes(_PROGRAM)
    if found is not None:
        yield from fact("fabric.running", bool(found), "/proc")
        return
    done = commands.ask(machine, commands.FABRIC_UNIT)
    if done is not None and done.problem is None:
        yield from fact("fabric.running", done.out.strip() == "active", "systemctl is-active")
