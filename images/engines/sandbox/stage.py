"""Sets up the inside of a sandbox, as the first process of new namespaces, and execs its command.

A separate program that needs only the standard library, started by unshare(1):
`python3 -I -S stage.py PLAN.json [COMMAND...]`. It does what bubblewrap does, if that is missing:
mounts below a new root, switches to that root, drops the old one and every capability, and execs
the command. `stage.py --devices NODE... -- COMMAND...` is for root and bubblewrap, which does not
bind device nodes read-only: in a separate mount namespace it does that for the host's, and execs
the command.
"""

# The system calls are used directly, not through pathlib:
# ruff: noqa: PERF203, PTH101, PTH102, PTH103, PTH110, PTH112, PTH120, PTH123, PTH211

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
import warnings  # noqa: F401  os.execvpe imports it when Python's files are out of reach
from typing import Any, NoReturn

BIND, RECURSIVE, REMOUNT, PRIVATE = 0x1000, 0x4000, 0x20, 0x40000
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC = 0x1, 0x2, 0x4, 0x8
DETACH = 2
NEW_MOUNTS = 0x20000
SET_NO_NEW_PRIVS, DROP_BOUNDING, AMBIENT, CLEAR_ALL = 38, 24, 47, 4
SET_SECCOMP, SECCOMP_FILTER = 22, 2
# By their bit in statvfs: the same, except for "relatime".
KEPT_FLAGS = {flag: flag for flag in (READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, 0x400, 0x800)}
KEPT_FLAGS[0x1000] = 0x200000
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# The machine's settings: writable by user ID 0 without capabilities, which root here may have.
COVERED = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "driver")

libc = ctypes.CDLL(None, use_errno=True)


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None
) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    if libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot mount {kind or source} on {target}: {os.strerror(code)}")


def bind(source: str, target: str, *, devices: bool = False, writable: bool = False) -> None:
    """Bind a file or a directory, with all mounts in it, read-only unless `writable`: a device can
    still be written to, but its node's mode and times cannot be changed.
    """
    if not os.path.isdir(source) and not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o644))
    elif os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    mount(source, target, flags=BIND | RECURSIVE)
    # mount(2): MS_BIND ignores all other flags, and a remount changes one mount, not those in it
    wanted = NO_SUID | (0 if writable else READ_ONLY) | (0 if devices else NO_DEV)
    target = os.path.realpath(target)
    for number, place in mounts_below(target):
        try:
            mount("none", place, flags=BIND | REMOUNT | wanted | kept_flags(place))
        except OSError:
            # a mount under another mount cannot be reached at all
            if place == target or number == mount_at(place):
                raise


def kept_flags(place: str) -> int:
    """The restrictions of a host's mount: they cannot be lifted, so a remount must repeat them."""
    try:
        seen = os.statvfs(place).f_flag
    except OSError:
        return 0
    return sum(flag for bit, flag in KEPT_FLAGS.items() if seen & bit)


def mount_at(place: str) -> int:
    """The ID of the mount that a path is in; -1 if the path does not exist."""
    try:
        descriptor = os.open(place, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return -1
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
    finally:
        os.close(descriptor)
    return int(fields["mnt_id"])


def mounts_below(target: str) -> list[tuple[int, str]]:
    """(ID, path) of the mounts below a path, after the path itself with ID -1."""
    found = [(-1, target)]
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            # the kernel writes spaces and the like as octal
            number, _, _, _, place, *_ = line.split()
            name = os.fsdecode(place.decode("unicode_escape").encode("latin-1"))
            if name.startswith(target.rstrip("/") + "/"):
                found.append((int(number), name))
    return found


def put(root: str, one: dict[str, Any], memory: int) -> None:
    """Make one of the plan's mounts; `memory` is the size of a tmpfs in bytes."""
    target = root + one["target"].rstrip("/")
    if one["kind"] == "bind":
        bind(one["source"], target)
    elif one["kind"] == "output":
        bind(one["source"], target, writable=True)
    elif one["kind"] == "device":
        bind(one["source"], target, devices=True)
    elif one["kind"] == "memory":
        os.makedirs(target, exist_ok=True)
        mount("tmpfs", target, "tmpfs", NO_SUID | NO_DEV, f"mode=755,size={memory}")
        os.chmod(target, 0o1777)  # noqa: S103  like /tmp
    elif one["kind"] == "directory":
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(one["source"], target)


def make_proc(root: str) -> None:
    mount("proc", root + "/proc", "proc", NO_SUID | NO_DEV | NO_EXEC)
    for name in COVERED:
        place = f"{root}/proc/{name}"
        if os.path.exists(place):
            bind(place, place)


def make_dev(root: str, plan: dict[str, Any]) -> None:
    dev = root + "/dev"
    mount("tmpfs", dev, "tmpfs", NO_SUID, "mode=755")
    for name in DEVICES:
        if os.path.exists(f"/dev/{name}"):
            bind(f"/dev/{name}", f"{dev}/{name}", devices=True)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{dev}/{name}")
    os.symlink("/proc/self/fd", f"{dev}/fd")
    os.mkdir(f"{dev}/pts")
    with contextlib.suppress(OSError):  # shells need it, checks do not
        mount("devpts", f"{dev}/pts", "devpts", NO_SUID | NO_EXEC, "newinstance,ptmxmode=0666")
        os.symlink("pts/ptmx", f"{dev}/ptmx")
    os.mkdir(f"{dev}/shm")
    size = f",size={plan['shm_bytes']}" if plan["shm_bytes"] else ""
    mount("tmpfs", f"{dev}/shm", "tmpfs", NO_SUID | NO_DEV, f"mode=1777{size}")
    for one in plan["devices"]:
        put(root, one, plan["memory_bytes"])
    mount("none", dev, flags=BIND | REMOUNT | READ_ONLY | NO_SUID)


def enter(root: str) -> None:
    """Switch to the new root, and detach the old one."""
    os.chdir(root)
    # pivot_root(2): with "." twice the old root is under the new one, and needs no directory in it
    if libc.pivot_root(b".", b".") != 0:
        raise OSError(ctypes.get_errno(), "pivot_root failed")
    if libc.umount2(b".", DETACH) != 0:
        raise OSError(ctypes.get_errno(), "the old root cannot be let go")
    os.chdir("/")


def drop_rights() -> None:
    """Drop all capabilities, and the ways to gain privileges."""
    number = 0
    # until the first number that this kernel does not know
    while libc.prctl(DROP_BOUNDING, number, 0, 0, 0) == 0:
        number += 1
    libc.prctl(AMBIENT, CLEAR_ALL, 0, 0, 0)
    # _LINUX_CAPABILITY_VERSION_3
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    none = (ctypes.c_uint32 * 6)()
    if libc.capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities cannot be dropped")
    if libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs cannot be set")


class Filter(ctypes.Structure):
    """struct sock_fprog from linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def refuse_calls(steps: bytes) -> None:
    """Install the seccomp filter."""
    if steps:
        program = Filter(len(steps) // 8, steps)
        if libc.prctl(SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(program), 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "the filter of system calls cannot be set")


def raise_loopback() -> None:
    """Bring up lo: in a new network namespace it is down, and NCCL and Gloo use it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        name = struct.pack("16sh22x", b"lo", 0x1 | 0x40)  # up, running
        fcntl.ioctl(probe, 0x8914, name)  # SIOCSIFFLAGS


def become(plan: dict[str, Any]) -> NoReturn:
    """Exec the command as the first process of the sandbox, as engines do: all that is visible of
    that process, its program and its variables, is the image's.
    """
    try:
        os.chdir(plan["directory"])
        os.execvpe(plan["argv"][0], plan["argv"], plan["env"])  # noqa: S606
    except (OSError, ValueError) as error:
        say(f"{plan['argv'][0]}: {error.args[-1]}")
    os._exit(127)


def say(text: str) -> None:
    os.write(2, f"sandbox: {text}\n".encode("utf-8", "backslashreplace"))


def prepare(plan: dict[str, Any]) -> None:
    """Set up the inside, and enter it."""
    # systemd shares /: without this the mounts below would appear on the host
    mount("none", "/", flags=PRIVATE | RECURSIVE)
    root = plan["root"]
    mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEV, "mode=755")
    for one in plan["mounts"]:
        put(root, one, plan["memory_bytes"])
    make_proc(root)
    make_dev(root, plan)
    bind("/sys", root + "/sys")
    socket.sethostname(plan["host_name"])
    if not plan["network"]:
        raise_loopback()
    enter(root)
    drop_rights()
    refuse_calls(bytes.fromhex(plan["filter"]))


def leave_the_hosts_mounts() -> None:
    if libc.unshare(NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "a mount namespace cannot be made")
    mount("none", "/", flags=PRIVATE | RECURSIVE)


def protect_devices(argv: list[str]) -> NoReturn:
    """Mount each device node read-only over itself, for this process and its children."""
    end = argv.index("--")
    try:
        leave_the_hosts_mounts()
        for place in argv[:end]:
            if os.path.exists(place):
                bind(place, place, devices=True)
        os.execv(argv[end + 1], argv[end + 1 :])  # noqa: S606
    except OSError as error:
        say(str(error.args[-1]))
    os._exit(125)


def main() -> None:
    if sys.argv[1] == "--devices":
        protect_devices(sys.argv[2:])
    with open(sys.argv[1], encoding="utf-8", errors="surrogateescape") as file:
        plan = json.load(file)
    plan["argv"] += sys.argv[2:]
    try:
        prepare(plan)
    except OSError as error:
        say(str(error.args[-1]))
        os._exit(125)
    become(plan)


if __name__ == "__main__":
    main()
