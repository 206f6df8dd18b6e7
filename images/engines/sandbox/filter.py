"""A seccomp filter in the kernel's format, for the system calls that a sandbox refuses.

It refuses calls that reach outside the sandbox's processes (typing into a terminal, the caller's
keyrings), and calls for parts of the kernel that nothing in an image needs, as engines do:
https://docs.docker.com/engine/security/seccomp/. System call numbers: the kernel's syscall_64.tbl
and asm-generic/unistd.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

# By machine: its number in linux/audit.h, and the numbers of the calls.
_MACHINES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            "ioctl": 16,
            "clone": 56,
            "unshare": 272,
            "clone3": 435,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "bpf": 321,
            "perf_event_open": 298,
            "userfaultfd": 323,
            "setns": 308,
            "io_uring_setup": 425,
            "utimensat": 280,
            "utime": 132,
            "utimes": 235,
            "futimesat": 261,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "ioctl": 29,
            "clone": 220,
            "unshare": 97,
            "clone3": 435,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "bpf": 280,
            "perf_event_open": 241,
            "userfaultfd": 282,
            "setns": 268,
            "io_uring_setup": 425,
            "utimensat": 88,
        },
    ),
}
# Keyrings belong to no namespace, and what io_uring does is no system call: no filter sees it.
_FORBIDDEN = (
    "add_key",
    "request_key",
    "keyctl",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "setns",
    "io_uring_setup",
)
_TIMES = ("utimensat", "utime", "utimes", "futimesat")
# CLONE_NEWUSER: in a user namespace of its own a process has every capability again.
_NEW_USERS = 0x10000000
# What these put into the caller's terminal, its shell runs after the sandbox has ended.
_TYPES_FOR_THE_PERSON = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_X32 = 0x40000000

# linux/bpf_common.h, linux/seccomp.h
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST, _SECOND = 0, 4, 16, 24  # in struct seccomp_data, little-endian
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38

_Step = tuple[int, int, int, int]


def system_call_filter(machine: str, *, times: bool = True) -> bytes:
    """The filter for a machine (uname -m), an array of struct sock_filter; b"" if unknown.

    Without `times` the calls that set a file's times do nothing: if the host's device nodes cannot
    be made read-only, a process that may write to one could set its times.
    """
    if machine not in _MACHINES:
        return b""
    name, numbers = _MACHINES[machine]
    steps: list[_Step] = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, name),
        (_RETURN, 0, 0, _KILL),  # a 32-bit program: its calls have other numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    # x32's calls have other numbers, which the rules below would let pass
    if machine == "x86_64":
        steps += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    steps += _refuse((numbers[call] for call in _FORBIDDEN), _EPERM)
    # clone3's arguments are in memory, which filters cannot read; libc falls back to clone.
    steps += _refuse([numbers["clone3"]], _ENOSYS)
    if not times:
        steps += _refuse((numbers[call] for call in _TIMES if call in numbers), 0)
    for call in ("clone", "unshare"):
        steps += _refuse_where(numbers[call], _FIRST, _ANY_BIT, (_NEW_USERS,))
    steps += _refuse_where(numbers["ioctl"], _SECOND, _EQUAL, _TYPES_FOR_THE_PERSON)
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _refuse(numbers: Iterable[int], error: int) -> list[_Step]:
    found: list[_Step] = []
    for number in numbers:
        found += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)]
    return found


def _refuse_where(number: int, argument: int, test: int, values: Iterable[int]) -> list[_Step]:
    """Refuse a call if the lower half of an argument has one of the values."""
    inner: list[_Step] = [(_LOAD, 0, 0, argument)]
    for value in values:
        inner += [(test, 0, 1, value), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    inner.append((_LOAD, 0, 0, _NUMBER))
    return [(_EQUAL, 0, len(inner), number), *inner]
