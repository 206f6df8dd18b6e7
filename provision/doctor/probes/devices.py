"""Device nodes of the driver below /dev."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.doctor.probes.found import Found, fact
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
        ("device.ctl", "nvidiactl"),
        ("device.uvm", "nvidia-uvm"),
        ("device.caps", "nvidia-caps"),
        ("device.dxg", "dxg"),
    ):
        yield from fact(name, node in names, f"/dev/{node}")
    if gpus:
        yield from _first(machine, f"/dev/{gpus[0]}")
        nodes = [f"/dev/{name}" for name in (*gpus, *({"nvidiactl"} & set(names)))]
        known = [answer for node in nodes if (answer := machine.usable(node)) is not None]
        yield from fact("device.readable", all(known) if known else None, nodes[0])
        yield from fact("device.char_links", has_char_links(machine), "/dev/char")


def has_char_links(machine: ProbedMachine) -> bool | None:
    """Whether /dev/char has an entry of NVIDIA's major number; None: there is no such directory."""
    names = machine.names("/dev/char")
    return None if names is None else any(name.startswith(f"{_MAJOR}:") for name in names)


def group_name(machine: ProbedMachine, gid: int) -> str | None:
    for line in machine.lines("/etc/group", f":{gid}:") or ():
        parts = line.split(":")
        if len(parts) > 2 and parts[2] == str(gid):
            return parts[0]
    return None


def _first(machine: ProbedMachine, node: str) -> Iterator[Found]:
    status = machine.status(node)
    if status is not None:
        name = "root" if status.gid == 0 else group_name(machine, status.gid)
        yield from fact("device.group", name, node)
        yield from fact("device.mode", f"{status.mode:04o}", node)
