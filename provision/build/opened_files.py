"""Prints which small files of an image an import opens: a program that runs in the image.

Its arguments are the module, the directory whose files count, and the size from which a file is
not small. It prints one JSON array. Standard library only, from Python 3.8 on.

https://docs.python.org/3/library/audit_events.html (open)
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def opened(module: str, below: Path, most: int) -> list[str]:
    """Import a module, and return the paths of the files below a directory that it opened."""
    found = set(map(loaded_from, sys.modules.values()))  # opened before the hook

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str):
            found.add(arguments[0])

    sys.addaudithook(hear)
    importlib.import_module(module)
    # libraries are opened by the loader, and these by the start of Python
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    found.update(line.split(None, 5)[5] for line in maps.splitlines() if "/" in line)
    found.add(str(Path(sys.prefix, "pyvenv.cfg")))
    for directory in filter(None, sys.path):
        found.update(map(str, Path(directory).glob("*.pth")))
    return sorted({str(path) for path in map(resolved, found) if small(path, below, most)})


def loaded_from(module: object) -> str:
    """The file that a module was read from: its byte code, if there is any."""
    source, cached = getattr(module, "__file__", None), getattr(module, "__cached__", None)
    if isinstance(cached, str) and Path(cached).is_file():
        return cached
    return source if isinstance(source, str) else ""


def resolved(path: str) -> Path:
    """The path without links; itself if they cannot be followed."""
    try:
        return Path(path).resolve()
    except (OSError, ValueError, RuntimeError):
        return Path(path)


def small(path: Path, below: Path, most: int) -> bool:
    """Whether it is a small file below the directory."""
    if below not in path.parents or not str(path).isprintable():
        return False
    if str(path).startswith(("/proc/", "/sys/", "/dev/")):
        return False
    try:
        return path.is_file() and path.stat().st_size < most
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    result = opened(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write("\n" + json.dumps(result) + "\n")
