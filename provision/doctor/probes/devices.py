"""Device nodes of the driver below /dev."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.doctor.probes.fact import Found, fact
from provision.host.machine import ProbedMachine

# NVIDIA's character major number (Documentation/admin-guide/devices.txt of the kernel).
_MAJOR = "195"


def probe_devices(machine: ProbedMachine) -> Iterator[Found]:
    names = machine.names("/dev")
    if names is None:
        return
    gpus = [name for name in names if re.fullmatch(r"nvidia\d+", name)]
    yield from fact("device.gpus", len(gpus), "/dev")
    for name, node in (
        ("device.uvm", "nvidia-uvm"),
        ("device.dxg", "dxg"),
    ):
        yield from fact(name, node in names, f"/dev/{node}")
    if gpus:
        yield from _first(machine, f"/dev/{gpus[0]}")
        nodes = [f"/dev/{name}" for name in (*gpus, *({"nvidiactl"} & set(names)))]
        known = [answer for node in nodes if (answer := machine.usable(node)) is not None]
        yield from fact("device.readable", all(known) if known else None, nodes[0])


def has_char_links(machine: ProbedMachine) -> bool | None:
    """Whether /dev/char has an entry of NVIDIA's major number; None: there is no such directory."""
    names = machine.names("/dev/char")
    return None if names is None else any(name.startswith(f"{_MAJOR}:") for name in names)


def _first(machine: ProbedMachine, node: str) -> Iterator[Found]:
    status = machine.status(node)
    if status is not None:
        yield from fact("device.mode", f"{status.mode:04o}", node)
