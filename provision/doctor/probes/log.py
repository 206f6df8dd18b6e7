"""The kernel's log: its messages explain errors of which a program only shows the symptom."""

from __future__ import annotations

from provision.doctor.probes import commands
from provision.host.machine import ProbedMachine

LIMIT_BYTES = 4 << 20

_FILES = ("/var/log/kern.log", "/var/log/messages", "/var/log/dmesg")


def kernel_log(machine: ProbedMachine) -> tuple[str, bytes] | None:
    """Its name as evidence ("dmesg", "/var/log/kern.log") and its last few MiB. None: it may not be
    read here, or does not exist.
    """
    done = commands.ask(machine, commands.DMESG)
    if done is not None and done.ok and done.out:
        return "dmesg", done.out.encode("utf-8", "replace")[-LIMIT_BYTES:]
    for path in _FILES:
        data = machine.tail(path, LIMIT_BYTES)
        if data:
            return path, data
    return None
