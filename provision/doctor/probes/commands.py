"""All programs that probes run: started together, each with a time limit.

A program that hangs costs its own limit once, however many probes use it, and no program is started
twice. None of them changes anything on the machine.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from provision.host.machine import ProbedMachine
from provision.host.runner import ProgramResult
from provision.host.smi import PLACES as SMI_PLACES

LIMIT_S = 4.0
_LOG_BYTES = 4 << 20
_LOGS = ("/var/log/kern.log", "/var/log/messages", "/var/log/dmesg")

_JSON = ("--format", "{{json .}}")
_DPKG_FORMAT = "${db:Status-Abbrev}\\t${Package}\\t${Version}\\n"
_PACKAGES = (
    *("*nvidia*", "libcuda1*", "cuda-drivers*", "cuda-compat*", "*cudnn*", "libnccl*", "docker*"),
)


@dataclass(frozen=True, slots=True)
class ProbeCommand:
    """A program and its arguments; `program` is looked for on PATH and in the usual places."""

    program: str
    arguments: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


DOCKER_INFO = ProbeCommand("docker", ("info", *_JSON))
DOCKER_BUILDX = ProbeCommand("docker", ("buildx", "version"))
PODMAN_INFO = ProbeCommand("podman", ("info", "--format", "json"))
SMI = ProbeCommand("nvidia-smi", ("-q", "-x"), SMI_PLACES)
UNAME = ProbeCommand("uname", ("-m",))
VIRT = ProbeCommand("systemd-detect-virt", ("--vm",))
SECURE_BOOT = ProbeCommand("mokutil", ("--sb-state",))
DKMS = ProbeCommand("dkms", ("status",))
MODINFO = ProbeCommand("modinfo", ("nvidia",))
LSPCI = ProbeCommand("lspci", ("-nn", "-d", "10de:"))
DPKG = ProbeCommand("dpkg-query", ("-W", "-f", _DPKG_FORMAT, *_PACKAGES))
RPM = ProbeCommand("rpm", ("-qa", "--qf", "%{NAME}\\t%{VERSION}-%{RELEASE}\\n", *_PACKAGES))
FABRIC = ProbeCommand("nv-fabricmanager", ("--version",))
FABRIC_UNIT = ProbeCommand("systemctl", ("is-active", "nvidia-fabricmanager"))
CTK = ProbeCommand("nvidia-ctk", ("--version",))
NVCC = ProbeCommand("nvcc", ("--version",))
GCC = ProbeCommand("gcc", ("-dumpfullversion", "-dumpversion"))
PYTHON = ProbeCommand("python3", ("--version",))
DMESG = ProbeCommand("dmesg")

_STARTED = (
    *(DOCKER_INFO, DOCKER_BUILDX, PODMAN_INFO, SMI, UNAME, VIRT, SECURE_BOOT, DKMS, MODINFO),
    *(LSPCI, DPKG, RPM, FABRIC, FABRIC_UNIT, CTK, NVCC, GCC, PYTHON),
)
"""All but the kernel's log, which is only read for texts."""


def ask(machine: ProbedMachine, command: ProbeCommand) -> ProgramResult | None:
    """What it printed; None if it is not installed or may not be run."""
    path = find(machine, command)
    return None if path is None else machine.command((path, *command.arguments), LIMIT_S)


def find(machine: ProbedMachine, command: ProbeCommand) -> str | None:
    """Its path on the machine."""
    return machine.which(command.program, command.places)


def words(command: ProbeCommand) -> str:
    """For `Fact.where`: "docker info"."""
    shown = [word for word in command.arguments if word.isprintable() and "{" not in word]
    return " ".join((command.program, *shown[:2])).removesuffix(" --format")


def start_all(machine: ProbedMachine) -> None:
    """Start every program now; a probe that needs one later waits for the rest of its time
    limit.
    """
    for command in _STARTED:
        threading.Thread(target=ask, args=(machine, command), daemon=True).start()


def kernel_log(machine: ProbedMachine) -> tuple[str, bytes] | None:
    """Its name as evidence ("dmesg", "/var/log/kern.log") and its last few MiB: it explains errors
    of which a program only shows the symptom. None: it may not be read here, or does not exist.
    """
    done = ask(machine, DMESG)
    if done is not None and done.ok and done.out:
        return "dmesg", done.out.encode("utf-8", "replace")[-_LOG_BYTES:]
    tails = ((path, machine.tail(path, _LOG_BYTES)) for path in _LOGS)
    return next(((path, data) for path, data in tails if data), None)
