"""Resource limits of a sandbox: stack and locked memory as requested, processes, memory.

Every sandbox has a limit of processes, and is the first that the kernel kills if memory runs out.
The kernel does not apply that limit to root's processes: for root, if control groups can be
created, a separate group limits processes and memory.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from images.engines.spec import RunJob, not_permitted
from images.system import process

# Threads count, too: NumPy, PyTorch and NCCL each start about one for each core and process.
_LEAST_PROCESSES = 8192
_PROCESSES_PER_CORE = 256
# Percent of this machine's memory: the rest is for what must end the sandbox.
_MEMORY_PERCENT = 90
# proc(5): added to the kernel's score of 0 to 1000 for memory used.
_FIRST_TO_END = 500
_GROUP = "gpu-provision-"
_ENDING_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """`words` go before a command, to limit it; `notes` say what is not permitted here."""

    words: tuple[str, ...]
    notes: tuple[str, ...]


def most_processes() -> int:
    """The limit of processes and threads in a sandbox."""
    return max(_LEAST_PROCESSES, _PROCESSES_PER_CORE * (os.cpu_count() or 1))


@contextlib.contextmanager
def bounded(job: RunJob) -> Iterator[Bounds]:
    """The limits of a job; its control groups are removed at the end."""
    groups: list[Path] = []
    try:
        for place in _places_of_groups(Path("/")) if os.geteuid() == 0 else ():
            group = place / f"{_GROUP}{os.getpid()}"
            with contextlib.suppress(OSError):
                group.mkdir(exist_ok=True)
                groups.append(group)
                _limit(group)
        yield bounds_of(job, groups)
    finally:
        for group in groups:
            _remove(group)


def bounds_of(job: RunJob, groups: Iterable[Path] = ()) -> Bounds:
    """The limits of a job that joins the control groups."""
    wanted = [("stack", f"ulimit -s {job.stack_bytes // 1024}")]
    if job.memlock_unlimited:
        wanted.append(("memlock", "ulimit -l unlimited"))
    most, hard = most_processes(), resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if hard == resource.RLIM_INFINITY or hard > most:
        # dash calls it -p, other shells -u
        wanted.append(("nproc", f"{{ ulimit -u {most} 2>&- || ulimit -p {most}; }}"))
    granted: list[str] = []
    notes: list[str] = []
    for name, words in wanted:
        if process.run(["sh", "-c", words], timeout_s=10).ok:
            granted.append(words)
        else:
            notes.append(not_permitted(name))
    files = [
        (_FIRST_TO_END, "/proc/self/oom_score_adj"),
        *((0, g / "cgroup.procs") for g in groups),
    ]
    steps = [f"{{ echo {value} >{shlex.quote(str(file))}; }} 2>&-" for value, file in files]
    script = "; ".join([*steps, " && ".join([*granted, 'exec "$@"'])])
    shell = process.which("sh") or "/bin/sh"
    return Bounds(words=(shell, "-c", script, "sh"), notes=tuple(notes))


def _places_of_groups(root: Path) -> Iterator[Path]:
    """Where our control groups can limit processes and memory, see cgroups(7): below this process's
    group in version 1, next to it in version 2, where a group with processes cannot have groups
    below it.
    """
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        own = mounted / path.lstrip("/")
        if not controllers:
            place = own if own == mounted else own.parent
            with contextlib.suppress(OSError):
                if "pids" in (place / "cgroup.subtree_control").read_text().split():
                    yield place
        elif controllers in {"pids", "memory"}:
            yield mounted / controllers / path.lstrip("/")


def _limit(group: Path) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _MEMORY_PERCENT // 100
    for name, value in (
        ("pids.max", most_processes()),
        ("memory.max", memory),
        ("memory.limit_in_bytes", memory),
    ):
        if (group / name).exists():
            (group / name).write_text(str(value))


def _remove(group: Path) -> None:
    """Remove it when its last process, which was killed, has ended."""
    deadline = time.monotonic() + _ENDING_S
    while group.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)
