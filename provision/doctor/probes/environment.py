"""Environment variables, limits, memory, disks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from provision.doctor.probes.daemon_json import read_daemon_json
from provision.doctor.probes.docker import read_info
from provision.doctor.probes.fact import Found, fact
from provision.host.machine import DiskSpace, ProbedMachine

# The environment variables that a bundle keeps: those that a probe reads, and no others.
VARIABLES = (
    "CONDA_PREFIX",
    "CUDA_VISIBLE_DEVICES",
    "DOCKER_HOST",
    "HOME",
    "LD_LIBRARY_PATH",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "PATH",
    "PIP_CERT",
    "PIP_CONFIG_FILE",
    "PIP_INDEX_URL",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "USER",
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "VIRTUAL_ENV",
    "XDG_RUNTIME_DIR",
    "container",
    *(
        f(name)
        for name in ("http_proxy", "https_proxy", "all_proxy")
        for f in (str.lower, str.upper)
    ),
)
VARIABLE_PREFIXES = ("NCCL_",)

_LIMITS = "/proc/self/limits"
_MEMINFO = "/proc/meminfo"
_OWN_GROUP = "/proc/self/cgroup"
_CGROUP = "/sys/fs/cgroup"
_MEMLOCK_LOW_KIB = 64 << 10
_BOOT_FULL_BYTES = 32 << 20
_MIB = 20


def probe_environment(machine: ProbedMachine) -> Iterator[Found]:
    for name, variable in (
        ("env.cuda_visible_devices", "CUDA_VISIBLE_DEVICES"),
        ("env.nvidia_visible_devices", "NVIDIA_VISIBLE_DEVICES"),
        ("env.nvidia_driver_capabilities", "NVIDIA_DRIVER_CAPABILITIES"),
    ):
        yield from fact(name, machine.env.get(variable), variable)
    nccl = sorted(name for name in machine.env if name.startswith("NCCL_"))
    yield from fact("env.nccl", tuple(nccl), "the environment")


def probe_limits(machine: ProbedMachine) -> Iterator[Found]:
    limits = parse_limits(machine.text(_LIMITS) or "")
    locked = limits.get("Max locked memory")
    if locked is not None:
        yield from fact("limit.memlock_low", is_low(locked), _LIMITS)
    files = limits.get("Max open files", "unlimited")
    yield from fact("limit.nofile", None if files == "unlimited" else int(files), _LIMITS)


def parse_limits(text: str) -> Mapping[str, str]:
    """Soft limits from /proc/self/limits by name: bytes or a count, or "unlimited"."""
    rows = (re.split(r" {2,}", line.strip()) for line in text.splitlines())
    return {
        row[0]: row[1]
        for row in rows
        if len(row) > 2 and (row[1].isdecimal() or row[1] == "unlimited")
    }


def is_low(locked: str) -> bool:
    """Under 64 MiB, which RDMA and pinned memory soon use up."""
    return locked != "unlimited" and int(locked) >> 10 < _MEMLOCK_LOW_KIB


def probe_memory(machine: ProbedMachine) -> Iterator[Found]:
    total = re.search(r"^MemTotal:\s+(\d+) kB", machine.text(_MEMINFO) or "", re.MULTILINE)
    mebibytes = int(total[1]) >> 10 if total else None
    yield from fact("memory.total_mib", mebibytes, _MEMINFO)
    smallest = min(_memory_limits(machine), default=None)
    if smallest is not None and (mebibytes is None or smallest[0] >> _MIB < mebibytes):
        yield from fact("memory.limit_mib", smallest[0] >> _MIB, smallest[1])


def cgroup_paths(text: str) -> Iterator[str]:
    """Directories of our memory cgroup and of its ancestors, from /proc/self/cgroup."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_memory = "memory" in controllers.split(",")
        if not is_memory and not (number == "0" and not controllers):
            continue
        base = f"{_CGROUP}/memory" if is_memory else _CGROUP
        parts = [part for part in path.split("/") if part and part != ".."]
        for end in range(len(parts), -1, -1):
            yield "/".join((base, *parts[:end]))


def probe_disks(machine: ProbedMachine) -> Iterator[Found]:
    shm = machine.room("/dev/shm")  # noqa: S108  the shared memory itself is asked
    if shm is not None:
        yield from fact("shm.mib", shm.total >> _MIB, "/dev/shm")  # noqa: S108
        yield from fact("shm.free_mib", shm.free >> _MIB, "/dev/shm")  # noqa: S108
    places = {"disk.root_free_mib": "/", "disk.tmp_free_mib": "/tmp"}  # noqa: S108
    docker = docker_root(machine)
    if docker is not None and machine.exists(docker):
        places["disk.docker_free_mib"] = docker
    rooms = {name: machine.room(path) for name, path in places.items()}
    for name, room in rooms.items():
        yield from fact(name, None if room is None else room.free >> _MIB, places[name])
    judged = [
        (places[name], inodes_low(room))
        for name, room in rooms.items()
        if room is not None and name != "disk.tmp_free_mib"
    ]
    known = [(path, low) for path, low in judged if low is not None]
    if known:
        path, low = next((one for one in known if one[1]), known[0])
        yield from fact("disk.inodes_low", low, path)
    yield from _boot(machine)


def docker_root(machine: ProbedMachine) -> str | None:
    """Where Docker keeps its images on this machine; None for Docker Desktop, which has a VM."""
    info = read_info(machine)
    root = info.get("DockerRootDir") or (read_daemon_json(machine).keys or {}).get("data-root")
    if info.get("OperatingSystem") == "Docker Desktop":
        return None
    return root if isinstance(root, str) and root.startswith("/") else "/var/lib/docker"


def inodes_low(room: DiskSpace) -> bool | None:
    """Less than a twentieth free; None if the file system has no such limit."""
    return room.inodes_free * 20 < room.inodes if room.inodes else None


def _memory_limits(machine: ProbedMachine) -> Iterator[tuple[int, str]]:
    for folder in cgroup_paths(machine.text(_OWN_GROUP) or ""):
        for name in ("memory.max", "memory.limit_in_bytes"):
            word = machine.word(f"{folder}/{name}")
            # version 1 writes "no limit" as a number near 2**63
            if word and word.isdecimal() and int(word) < 1 << 60:
                yield int(word), f"{folder}/{name}"


def _boot(machine: ProbedMachine) -> Iterator[Found]:
    """A separate /boot that is too full for another kernel's initramfs."""
    boot, root, room = machine.status("/boot"), machine.status("/"), machine.room("/boot")
    if boot is None or root is None or room is None:
        return
    is_own = boot.device != root.device
    yield from fact("disk.boot_full", is_own and room.free < _BOOT_FULL_BYTES, "/boot")
