"""The machine itself: OS release, processor, C library, Python, and the driver's library files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from provision.host.reading import Reading, one_line, read_text

LIBRARIES = "driver libraries"

_ARCH_NAMES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
_ASSIGNMENT = re.compile(
    r"^[ \t]*([A-Z_]+)=(?:\"([^\"\n]*)\"|'([^'\n]*)'|([^\s\"'#]*))[ \t]*$", re.MULTILINE
)
_LIBRARY = re.compile(r"lib(?:nvidia-ml|cuda)\.so\.([0-9]+(?:\.[0-9]+)+)")
_CACHED = re.compile(rb"(/[^\0]{1,4000}/lib(?:nvidia-ml|cuda)\.so\.1)\0")
_LIBRARY_DIRS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
)


def parse_os_release(text: str) -> tuple[str | None, str | None]:
    """(ID, VERSION_ID) of an os-release file; rolling releases have no version."""
    found = {m[1]: m[2] or m[3] or m[4] or "" for m in _ASSIGNMENT.finditer(text.replace("\r", ""))}
    return one_line(found.get("ID", "")) or None, one_line(found.get("VERSION_ID", "")) or None


def parse_confstr(text: str | None) -> str | None:
    """ "glibc 2.36" -> "2.36"."""
    found = re.fullmatch(r"glibc ([0-9]+\.[0-9]+)\S*", text or "")
    return found.group(1) if found else None


def read_os(root: Path) -> tuple[str | None, str | None, str, str]:
    """(id, version, source, why not)."""
    why = ""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        text, problem = read_text(root / path.lstrip("/"))
        if text is not None:
            os_id, version = parse_os_release(text)
            return os_id, version, path, "" if os_id else "no ID in it"
        why = why or problem
    return None, None, "/etc/os-release", why


def read_glibc() -> tuple[str | None, str]:
    """The C library's version, or None and why: musl has no such name."""
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


def read_libraries(root: Path, env: Mapping[str, str]) -> Reading:
    """The user-mode driver's version in the file name that the linker's soname resolves to.

    `libnvidia-ml.so.1 -> libnvidia-ml.so.515.65.01`. It is asked before `libcuda.so.1`, which the
    cuda-compat package replaces by a newer one. WSL's files carry no version in their names.
    """
    seen: list[str] = []
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        for path in _candidates(root, env, name):
            if not path.exists():
                continue
            found = _LIBRARY.fullmatch(path.resolve().name)
            if found:
                return Reading(
                    source=name, gives=("user_mode_driver",), user_mode_driver=found.group(1)
                )
            seen.append(name)
    why = (
        f"{seen[0]} does not say its version in its file name"
        if seen
        else "neither libnvidia-ml.so.1 nor libcuda.so.1 is in the linker path"
    )
    return Reading(source=LIBRARIES, gives=("user_mode_driver",), failed=why)


def _candidates(root: Path, env: Mapping[str, str], name: str) -> Iterator[Path]:
    """In the linker's order: LD_LIBRARY_PATH, its cache, the usual directories."""
    for entry in env.get("LD_LIBRARY_PATH", "").split(":"):
        if entry.startswith("/"):
            yield Path(entry) / name
    for cached in _cached(root):
        if cached.endswith("/" + name):
            yield root / cached.lstrip("/")
    for directory in _LIBRARY_DIRS:
        yield root / directory.lstrip("/") / name


def _cached(root: Path) -> tuple[str, ...]:
    """Full paths in /etc/ld.so.cache; its strings end in NUL, whatever else its format holds."""
    try:
        data = (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return ()
    return tuple(match.decode("utf-8", "replace") for match in _CACHED.findall(data))
