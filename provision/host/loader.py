"""Where the dynamic linker looks for a library, in its order: LD_LIBRARY_PATH, its cache, the
usual directories. Files only: the linker itself is not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from provision.host.machine import ProbedMachine

CACHE = "/etc/ld.so.cache"
CONF = "/etc/ld.so.conf"

FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
)
# A string of the cache that is a path; what else its format holds does not matter.
_CACHED = re.compile(rb".*/lib(?:cuda|nvidia-ml|cudnn|nccl)\.so(?:\.\d+)*", re.DOTALL)
_CACHED_LIMIT = 4096
_INCLUDE = re.compile(r"^[ \t]*include[ \t]+(\S+)/\*\.conf\b", re.MULTILINE)


class DriverLibrary(NamedTuple):
    """The file of the driver's user-mode half; all "" and None if there is none."""

    name: str = ""
    path: str = ""
    version: str | None = None


def path_entries(machine: ProbedMachine) -> tuple[str, ...]:
    """LD_LIBRARY_PATH's entries; an empty one means the working directory."""
    value = machine.env.get("LD_LIBRARY_PATH", "")
    return tuple(entry for entry in value.split(":") if entry)


def conf_folders(machine: ProbedMachine) -> tuple[tuple[str, str], ...]:
    """Directories of ld.so.conf and of the files that it includes, each with its file."""
    text = machine.text(CONF) or ""
    found = [(folder, CONF) for folder in _folders(text)]
    for include in _INCLUDE.findall(text):
        folder = include if include.startswith("/") else f"/etc/{include}"
        for path in machine.paths(folder, r".*\.conf"):
            found += [(one, path) for one in _folders(machine.text(path) or "")]
    return tuple(found)


def in_loaders_way(machine: ProbedMachine, name: str) -> tuple[str, ...]:
    """All files of that name that the linker could find, the one it would load first; a file that
    is reached in two ways comes once.
    """
    found: dict[str, str] = {}
    for path in _candidates(machine, name):
        real = machine.real(path)
        if real is not None and real not in found and machine.exists(path):
            found[real] = path
    return tuple(found.values())


def folders(machine: ProbedMachine) -> tuple[str, ...]:
    """Every directory that the linker searches."""
    cached = (path.rpartition("/")[0] for path in _cached(machine))
    entries = (entry.rstrip("/") for entry in path_entries(machine) if entry.startswith("/"))
    from_conf = (folder for folder, _ in conf_folders(machine))
    return tuple(dict.fromkeys((*entries, *cached, *from_conf, *FOLDERS)))


def version_in_name(machine: ProbedMachine, path: str, stem: str) -> str | None:
    """ "550.54.15" of libcuda.so.1, which is a link to libcuda.so.550.54.15."""
    real = machine.real(path) or path
    found = re.fullmatch(rf"{re.escape(stem)}\.so\.(\d+(?:\.\d+)+)", real.rpartition("/")[2])
    return found[1] if found else None


def driver_library(machine: ProbedMachine) -> DriverLibrary:
    """The driver's own library, not that of a cuda-compat package, which may be newer.

    libnvidia-ml.so.1 -> libnvidia-ml.so.515.65.01. WSL's files carry no version in their names.
    """
    seen: DriverLibrary | None = None
    for stem in ("libnvidia-ml", "libcuda"):
        name = f"{stem}.so.1"
        for path in in_loaders_way(machine, name):
            version = version_in_name(machine, path, stem)
            if version is not None and not is_compat(machine, path):
                return DriverLibrary(name=name, path=path, version=version)
            seen = seen or DriverLibrary(name=name, path=path)
    return seen or DriverLibrary()


def is_compat(machine: ProbedMachine, path: str) -> bool:
    """Whether a library is of a cuda-compat package."""
    return "/compat/" in (machine.real(path) or path) or "/compat/" in path


def _candidates(machine: ProbedMachine, name: str) -> Iterator[str]:
    for entry in path_entries(machine):
        if entry.startswith("/"):
            yield f"{entry.rstrip('/')}/{name}"
    for cached in _cached(machine):
        if cached.endswith(f"/{name}"):
            yield cached
    for folder in FOLDERS:
        yield f"{folder}/{name}"


def _cached(machine: ProbedMachine) -> tuple[str, ...]:
    """Its strings end in NUL; before the first of them stands a table of numbers."""
    strings = (piece[-_CACHED_LIMIT:] for piece in (machine.data(CACHE) or b"").split(b"\0"))
    paths = (text[text.find(b"/") :] for text in strings if _CACHED.fullmatch(text))
    return tuple(dict.fromkeys(path.decode("utf-8", "replace") for path in paths))


def _folders(text: str) -> Iterator[str]:
    for line in text.splitlines():
        folder = line.partition("#")[0].strip().rstrip("/")
        if folder.startswith("/"):
            yield folder
