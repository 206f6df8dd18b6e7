"""The kernel's limits for this container: CPUs, memory, processes. Control groups v1 and v2.

A group's limit applies to all groups below it, so the smallest one among a group and its parents
counts. In a container the topmost visible group is the container's own. With v1 and the host's
group names the path may not exist in the container: then the mount's root is its own group.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

_UNLIMITED = 1 << 60  # v1 writes "no limit" as the largest number of whole pages
_FOLDER = "sys/fs/cgroup"


@dataclass(frozen=True)
class Limits:
    """None means that there is no limit, or that it cannot be read."""

    cpus: Optional[float] = None  # the quota, in CPUs: 1.5 is one and a half
    memory_bytes: Optional[int] = None
    memory_used_bytes: Optional[int] = None  # without page cache that can be reclaimed
    processes: Optional[int] = None  # threads count too
    processes_now: Optional[int] = None

    def as_dict(self) -> Dict[str, Any]:
        """For the report."""
        return {name: value for name, value in vars(self).items() if value is not None}


def read(root: str = "/") -> Limits:
    """The limits of the group that this process is in."""
    paths = group_paths(read_text(os.path.join(root, "proc/self/cgroup")) or "")
    memory, used = _tightest(_folders(root, paths, "memory"), _memory_limit, _memory_used)
    processes, now = _tightest(_folders(root, paths, "pids"), _processes_limit, _processes_now)
    quotas = [_quota(folder) for folder in _folders(root, paths, "cpu")]
    return Limits(
        cpus=min((quota for quota in quotas if quota is not None), default=None),
        memory_bytes=memory,
        memory_used_bytes=used,
        processes=processes,
        processes_now=now,
    )


def cpus(limits: Limits) -> int:
    """How many processes can compute at a time, from affinity and quota, rounded up."""
    allowed = len(os.sched_getaffinity(0))
    return allowed if limits.cpus is None else max(1, min(allowed, math.ceil(limits.cpus)))


def memory_available(limits: Limits, root: str = "/") -> Optional[int]:
    """Bytes that are left before the kernel kills a process: of the machine, of the group."""
    lines = (read_text(os.path.join(root, "proc/meminfo")) or "").splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    if limits.memory_bytes is not None and limits.memory_used_bytes is not None:
        found.append(max(0, limits.memory_bytes - limits.memory_used_bytes))
    return min(found, default=None)


def resident_bytes(field: str) -> int:
    """VmRSS (now) or VmHWM (the peak; in a forked child, since the fork)."""
    with open("/proc/self/status", encoding="utf-8") as file:
        rows = dict(line.split(":", 1) for line in file)
    return int(rows[field].split()[0]) * 1024


def group_paths(text: str) -> Dict[str, str]:
    """/proc/self/cgroup: the path of each v1 controller, and that of v2 under an empty name."""
    paths: Dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _folders(root: str, paths: Dict[str, str], controller: str) -> List[str]:
    """Every folder from this process's group up to the mount, in v1 or v2, whichever has it."""
    base = os.path.join(root, _FOLDER)
    found: List[str] = []
    for mount, path in (
        (os.path.join(base, controller), paths.get(controller, "/")),
        (base, paths.get("", "/")),
        (os.path.join(base, "unified"), paths.get("", "/")),
    ):
        parts = [part for part in path.split("/") if part and part != ".."]
        ways = (os.path.join(mount, *parts[:count]) for count in range(len(parts), -1, -1))
        found += [way for way in ways if os.path.isdir(way)]
    return found


def _tightest(
    folders: Iterable[str],
    limit: Callable[[str], Optional[int]],
    used: Callable[[str], Optional[int]],
) -> Tuple[Optional[int], Optional[int]]:
    """The group with the least room left: its limit and its use."""
    rows = [(limit(folder), used(folder)) for folder in folders]
    known = [(top, held) for top, held in rows if top is not None]
    return min(known, key=lambda row: row[0] - (row[1] or 0), default=(None, None))


def _memory_limit(folder: str) -> Optional[int]:
    return _number(folder, "memory.max") or _number(folder, "memory.limit_in_bytes")


def _memory_used(folder: str) -> Optional[int]:
    used = _number(folder, "memory.current") or _number(folder, "memory.usage_in_bytes")
    rows = dict(line.split()[:2] for line in (read_text(folder, "memory.stat") or "").splitlines())
    idle = int(rows.get("total_inactive_file", rows.get("inactive_file", 0)))
    return None if used is None else max(0, used - idle)


def _processes_limit(folder: str) -> Optional[int]:
    return _number(folder, "pids.max")


def _processes_now(folder: str) -> Optional[int]:
    return _number(folder, "pids.current")


def _quota(folder: str) -> Optional[float]:
    words = (read_text(folder, "cpu.max") or "").split()  # v2: "150000 100000" or "max 100000"
    if len(words) != 2:
        parts = (read_text(folder, "cpu.cfs_" + name) for name in ("quota_us", "period_us"))
        words = [(part or "").strip() for part in parts]
    if not all(word.isdigit() and int(word) for word in words):  # "max", "-1", nothing
        return None
    return int(words[0]) / int(words[1])


def _number(folder: str, name: str) -> Optional[int]:
    word = (read_text(folder, name) or "").strip()
    return int(word) if word.isdigit() and int(word) < _UNLIMITED else None


def read_text(*parts: str) -> Optional[str]:
    """A file's text; None if it cannot be read."""
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None
