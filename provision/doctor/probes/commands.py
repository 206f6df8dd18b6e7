"""All programs that probes run: started together, each with a time limit.

A program that hangs costs its own limit once, however many probes use it, and no program is started
twice. None of them changes anything on the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from provision.host.machine import ProbedMachine
from provision.host.runner import ProgramResult
from provision.host.smi import PLACES as SMI_PLACES

LIMIT_S = 4.0

_JSON = ("--format", "{{json .}}")
_DPKG_FORMAT = "${db:Status-Abbrev}\\t${Package}\\t${Version}\\n"
_PACKAGES = (
    "*nvidia*",
    "libcuda1*",
    "cuda-drivers*",
    "cuda-compat*",
    "*cudnn*",
    "libnccl*",
    "docker*",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCommand:
    """A program and its arguments; `program` is looked for on PATH and in the usual places."""

    program: str
    arguments: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


DOCKER_INFO = ProbeCommand(program="docker", arguments=("info", *_JSON))
DOCKER_BUILDX = ProbeCommand(program="docker", arguments=("buildx", "version"))
PODMAN_INFO = ProbeCommand(program="podman", arguments=("info", "--format", "json"))
SMI = ProbeCommand(
    program="nvidia-smi",
    arguments=("-q", "-x"),
    places=SMI_PLACES,
)
UNAME = ProbeCommand(program="uname", arguments=("-m",))
VIRT = ProbeCommand(program="systemd-detect-virt", arguments=("--vm",))
SECURE_BOOT = ProbeCommand(program="mokutil", arguments=("--sb-state",))
DKMS = ProbeCommand(program="dkms", arguments=("status",))
MODINFO = ProbeCommand(program="modinfo", arguments=("nvidia",))
LSPCI = ProbeCommand(program="lspci", arguments=("-nn", "-d", "10de:"))
DPKG = ProbeCommand(program="dpkg-query", arguments=("-W", "-f", _DPKG_FORMAT, *_PACKAGES))
RPM = ProbeCommand(
    program="rpm", arguments=("-qa", "--qf", "%{NAME}\\t%{VERSION}-%{RELEASE}\\n", *_PACKAGES)
)
FABRIC = ProbeCommand(program="nv-fabricmanager", arguments=("--version",))
FABRIC_UNIT = ProbeCommand(program="systemctl", arguments=("is-active", "nvidia-fabricmanager"))
PERSISTENCE_UNIT = ProbeCommand(program="systemctl", arguments=("is-active", "nvidia-persistenced"))
CTK = ProbeCommand(program="nvidia-ctk", arguments=("--version",))
NVCC = ProbeCommand(program="nvcc", arguments=("--version",))
GCC = ProbeCommand(program="gcc", arguments=("-dumpfullversion", "-dumpversion"))
PYTHON = ProbeCommand(program="python3", arguments=("--version",))
DMESG = ProbeCommand(program="dmesg")

ALL = (
    DOCKER_INFO,
    DOCKER_BUILDX,
    PODMAN_INFO,
    SMI,
    UNAME,
    VIRT,
    SECURE_BOOT,
    DKMS,
    MODINFO,
    LSPCI,
    DPKG,
    RPM,
    FABRIC,
    FABRIC_UNIT,
    PERSISTENCE_UNIT,
    CTK,
    NVCC,
    GCC,
    PYTHON,
)


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


def start_all(machine: ProbedMachine, commands: Sequence[ProbeCommand] = ALL) -> None:
    """Start every program now; a probe that needs one later waits for the rest of its time
    limit.
    """
    for command in commands:
        threading.Thread(target=ask, args=(machine, command), daemon=True).start()
