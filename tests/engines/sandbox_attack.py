"""Tries to get out of a sandbox, or at the host, and tells how far it came; given to python3 -c.

Each name below is something that a hostile image would try. What comes of the attempts at files is
seen from outside, by whoever knows what the files were before.
"""

# It runs where nothing but the standard library is, and means harm:
# ruff: noqa: T201, PTH101, PTH115, PTH123, PTH208

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import resource
import sys
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
CALLS = {
    "x86_64": {"clone": 56, "clone3": 435, "keyctl": 250, "bpf": 321, "io_uring_setup": 425},
    "aarch64": {"clone": 220, "clone3": 435, "keyctl": 219, "bpf": 280, "io_uring_setup": 425},
}
NEW_USERS, CHILD_SIGNAL = 0x10000000, 17


def environments() -> str:
    """What every process in sight has for variables."""
    found = ""
    for pattern in ("[0-9]*/environ", "[0-9]*/task/*/environ"):
        for file in pathlib.Path("/proc").glob(pattern):
            with contextlib.suppress(OSError):
                found += file.read_text(errors="replace").replace("\0", "\n")
    return found


def words() -> str:
    """What every process in sight was started with."""
    found = ""
    for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += file.read_text(errors="replace").replace("\0", " ") + "\n"
    return found


def places() -> list[str]:
    """Whatever may lead to a file of the host."""
    found = ["/dev/" + name for name in os.listdir("/dev")] + ["/", "/dev", "/sys", "/proc"]
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        found += [str(process / name) for name in ("exe", "cwd", "root", "environ", "mem")]
        for inner in ("fd", "map_files", "ns"):
            with contextlib.suppress(OSError):
                found += [str(process / inner / name) for name in os.listdir(process / inner)]
    with open("/proc/self/mountinfo") as file:
        found += [line.split()[4] for line in file]
    return found


def change(target: str | int) -> list[str]:
    """Which of the ways to change a file's mode, owner or times the kernel let through."""
    done = []
    attempts: tuple[tuple[str, Callable[[], object]], ...] = (
        ("chmod", lambda: os.chmod(target, 0o4777)),
        ("chown", lambda: os.chown(target, 0, 0)),
        ("touch", lambda: os.utime(target)),
        ("utime", lambda: os.utime(target, (1, 1))),
        ("setxattr", lambda: os.setxattr(target, "user.x", b"1")),
    )
    for name, attempt in attempts:
        with contextlib.suppress(OSError):
            attempt()
            done.append(name)
    return done


def call(name: str, *words: int) -> str:
    """Ask the kernel directly; "done", or why not."""
    number = CALLS[os.uname().machine][name]
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(word) for word in words))
    if result == 0 and name.startswith("clone"):
        os._exit(0)
    return "done" if result >= 0 else os.strerror(ctypes.get_errno())


def type_to_the_terminal() -> list[str]:
    """Type a command where the person's own terminal is."""
    said = []
    for number in (0x5412, 0x541C, 0x5412 | 1 << 32):
        for byte in b"echo typed\n":
            result = libc.ioctl(0, ctypes.c_ulong(number), ctypes.byref(ctypes.c_char(byte)))
            said.append("done" if result == 0 else os.strerror(ctypes.get_errno()))
    return sorted(set(said))


def room() -> dict[str, int]:
    """How much can be written, by mount."""
    found = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            words, _, kind = line.partition(" - ")
            place, options = words.split()[4:6]
            if kind.startswith("tmpfs") and "rw" in options.split(","):
                seen = os.statvfs(place)
                found[place] = seen.f_blocks * seen.f_frsize
    return found


def group() -> dict[str, str]:
    """The bounds of the control groups that this process is in, where they are in sight."""
    found = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in ("pids.max", "memory.max", "memory.limit_in_bytes"):
            file = pathlib.Path("/sys/fs/cgroup", controllers, path.lstrip("/"), name)
            with contextlib.suppress(OSError):
                found[name] = file.read_text().strip()
    return found


if __name__ == "__main__":
    told = {
        "environments": environments(),
        "words": words(),
        "descriptors": sorted(
            os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if int(n) < 3
        )
        + [n for n in os.listdir("/proc/self/fd") if int(n) > 3],
        "changed": {place: change(place) for place in places()},
        "changed_by_number": [change(number) for number in range(3)],
        "typed": type_to_the_terminal(),
        "calls": {
            "unshare": "done" if libc.unshare(NEW_USERS) == 0 else os.strerror(ctypes.get_errno()),
            "clone": call("clone", NEW_USERS | CHILD_SIGNAL, 0, 0, 0, 0),
            "clone3": call("clone3", 0, 0),
            "keyctl": call("keyctl", 0, -3, 0),
            "bpf": call("bpf", 0, 0, 0),
            "io_uring_setup": call("io_uring_setup", 1, 0),
        },
        "processes": resource.getrlimit(resource.RLIMIT_NPROC)[0],
        "group": group(),
        "first_to_end": int(pathlib.Path("/proc/self/oom_score_adj").read_text()),
        "room": room(),
        "writes_to_null": os.write(os.open("/dev/null", os.O_WRONLY), b"x"),
        "reads_nothing": sys.stdin.read(),
    }
    with contextlib.suppress(OSError):
        fcntl.fcntl(0, fcntl.F_SETFL, 0)
    print(json.dumps(told))
