"""The programs that probes ask, all of them: started together, each with a time limit.

A program that hangs costs its own limit once, whoever asks it, and no program is started twice.
None of them changes anything on the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from provision.doctor.probes.machine import Answer, Machine, Question, Source
from provision.host.runner import Completed

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
class Command:
    """A program and its arguments; `program` is looked for on PATH and in the usual places."""

    program: str
    arguments: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


DOCKER_INFO = Command(program="docker", arguments=("info", *_JSON))
DOCKER_BUILDX = Command(program="docker", arguments=("buildx", "version"))
PODMAN_INFO = Command(program="podman", arguments=("info", "--format", "json"))
SMI = Command(
    program="nvidia-smi",
    arguments=("-q", "-x"),
    # where it is when PATH does not say: WSL under sudo, hosts like GKE's
    places=("/usr/lib/wsl/lib/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi"),
)
UNAME = Command(program="uname", arguments=("-m",))
VIRT = Command(program="systemd-detect-virt", arguments=("--vm",))
SECURE_BOOT = Command(program="mokutil", arguments=("--sb-state",))
DKMS = Command(program="dkms", arguments=("status",))
MODINFO = Command(program="modinfo", arguments=("nvidia",))
LSPCI = Command(program="lspci", arguments=("-nn", "-d", "10de:"))
DPKG = Command(program="dpkg-query", arguments=("-W", "-f", _DPKG_FORMAT, *_PACKAGES))
RPM = Command(
    program="rpm", arguments=("-qa", "--qf", "%{NAME}\\t%{VERSION}-%{RELEASE}\\n", *_PACKAGES)
)
FABRIC = Command(program="nv-fabricmanager", arguments=("--version",))
FABRIC_UNIT = Command(program="systemctl", arguments=("is-active", "nvidia-fabricmanager"))
PERSISTENCE_UNIT = Command(program="systemctl", arguments=("is-active", "nvidia-persistenced"))
CTK = Command(program="nvidia-ctk", arguments=("--version",))
NVCC = Command(program="nvcc", arguments=("--version",))
GCC = Command(program="gcc", arguments=("-dumpfullversion", "-dumpversion"))
PYTHON = Command(program="python3", arguments=("--version",))
DMESG = Command(program="dmesg")

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


def ask(machine: Machine, command: Command) -> Completed | None:
    """What it printed; None where it is not installed or may not be run."""
    path = find(machine, command)
    return None if path is None else machine.command((path, *command.arguments), LIMIT_S)


def find(machine: Machine, command: Command) -> str | None:
    """Its path on the machine."""
    return machine.which(command.program) or next(filter(machine.exists, command.places), None)


def words(command: Command) -> str:
    """For `Fact.where`: "docker info"."""
    shown = [word for word in command.arguments if word.isprintable() and "{" not in word]
    return " ".join((command.program, *shown[:2])).removesuffix(" --format")


class Remembering:
    """A source that asks each question once, also where several threads ask it together."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._answers: dict[Question, Answer] = {}
        self._locks: dict[Question, threading.Lock] = {}
        self._guard = threading.Lock()

    def __call__(self, question: Question) -> Answer:
        with self._guard:
            lock = self._locks.setdefault(question, threading.Lock())
        with lock:
            if question not in self._answers:
                self._answers[question] = self._source(question)
            return self._answers[question]


def start_all(machine: Machine, commands: Sequence[Command] = ALL) -> None:
    """Start every program now; who asks for one later waits for what is left of its time."""
    for command in commands:
        threading.Thread(target=ask, args=(machine, command), daemon=True).start()
