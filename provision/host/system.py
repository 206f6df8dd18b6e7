"""The machine itself: OS release, processor, C library, Python, and the driver's library files."""

from __future__ import annotations

import os
import re
import sys

from images.system.os_release import FILES as OS_RELEASE_FILES
from images.system.os_release import parse_os_release
from provision.host.loader import driver_library
from provision.host.machine import ProbedMachine
from provision.host.source_facts import SourceFacts, one_line

LIBRARIES = "driver libraries"

_ARCH_NAMES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


def distribution(text: str) -> tuple[str | None, str | None]:
    """(ID, VERSION_ID) of an os-release file; rolling releases have no version."""
    found = parse_os_release(text)
    return one_line(found.get("ID", "")) or None, one_line(found.get("VERSION_ID", "")) or None


def parse_confstr(text: str | None) -> str | None:
    """ "glibc 2.36" -> "2.36"."""
    found = re.fullmatch(r"glibc ([0-9]+\.[0-9]+)\S*", text or "")
    return found.group(1) if found else None


def read_os(machine: ProbedMachine) -> tuple[str | None, str | None, str, str]:
    """(id, version, source, why not)."""
    for path in OS_RELEASE_FILES:
        text = machine.text(path)
        if text is not None:
            os_id, version = distribution(text)
            return os_id, version, path, "" if os_id else "no ID in it"
    return None, None, OS_RELEASE_FILES[0], machine.why(OS_RELEASE_FILES[0])


def read_glibc() -> tuple[str | None, str]:
    """The C library's version, or None and why: musl has no such value."""
    try:
        answer = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        answer = None
    version = parse_confstr(answer)
    return version, "" if version else "the C library is not glibc (musl?)"


def read_arch() -> str:
    machine = os.uname().machine
    return _ARCH_NAMES.get(machine.lower(), machine)


def read_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def read_libraries(machine: ProbedMachine) -> SourceFacts:
    """The user-mode driver's version, from its library's file name."""
    found = driver_library(machine)
    why = (
        f"{found.name} does not say its version in its file name"
        if found.name
        else "neither libnvidia-ml.so.1 nor libcuda.so.1 is in the linker path"
    )
    return SourceFacts(
        source=found.name if found.version else LIBRARIES,
        gives=("user_mode_driver",),
        user_mode_driver=found.version,
        failed=None if found.version else why,
    )
