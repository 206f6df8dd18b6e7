"""Which libraries this process has mapped: those in use, not those installed."""

from __future__ import annotations

import re
from typing import Dict, Optional, Tuple

_CUDA = (
    "cudart|cudnn|cublas|nccl|nvJitLink|cufft|cusparse|cusolver|curand|nvrtc|cupti|nvToolsExt"
    "|cufile|nvshmem"
)
# Wheels that bundle their libraries put eight hex digits in the name: libcudart-d0da41ae.so.11.0
_LIBRARY = re.compile(
    r"(lib(?:(?:{})\w*(?:-builtins)?|cuda))(?:-[0-9a-f]{{8}})?\.so(?:\.[\d.]+)?".format(_CUDA)
)


def read_maps() -> str:
    """This process's memory map."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        return file.read()


def is_musl(maps: str) -> bool:
    """Whether the C library in a /proc/PID/maps is musl, which is its own dynamic loader."""
    return re.search(r"/ld-musl-\w+\.so\.1$", maps, re.MULTILINE) is not None


def stem_of(name: str) -> Optional[str]:
    """A CUDA library's name without its version; None for any other file's name."""
    match = _LIBRARY.fullmatch(name)
    return match.group(1) if match else None


def mapped(maps: str) -> "list[tuple[str, str]]":
    """The CUDA libraries in a /proc/PID/maps, as (name without version, path), each once."""
    found: Dict[Tuple[str, str], None] = {}
    for line in maps.splitlines():
        parts = line.split(None, 5)
        path = parts[5] if len(parts) == 6 else ""
        path = path[: -len(" (deleted)")] if path.endswith(" (deleted)") else path
        stem = stem_of(path.rpartition("/")[2])
        if stem:
            found[(stem, path)] = None
    return sorted(found)
