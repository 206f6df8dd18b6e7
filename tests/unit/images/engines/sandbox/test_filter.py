"""The seccomp filter, run as the kernel runs it: which system calls a sandbox refuses."""

from __future__ import annotations

import errno
import struct

import pytest

from images.engines.sandbox.filter import system_call_filter

ALLOW, KILL, REFUSED = 0x7FFF0000, 0x80000000, 0x00050000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
READ = {"x86_64": 0, "aarch64": 63}
TIOCSTI, TIOCLINUX, TCGETS = 0x5412, 0x541C, 0x5401
NEW_USERS, A_THREAD = 0x10000000, 0x003D0F00
# asm/unistd_64.h, asm-generic/unistd.h
CALLS = {
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "setns": (308, 268),
    "io_uring_setup": (425, 425),
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "ioctl": (16, 29),
    "utimensat": (280, 88),
}


def answer(machine: str, number: int, *words: int, audit: int | None = None, **how: bool) -> int:
    """What the kernel does with a call: https://www.kernel.org/doc/html/latest/networking/filter.html"""
    padded = [*words, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<iIQ6Q", number, audit or AUDIT[machine], 0, *padded)
    program = list(struct.iter_unpack("=HBBI", system_call_filter(machine, **how)))
    at, value = 0, 0
    while True:
        operation, if_so, if_not, operand = program[at]
        at += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x06:
            return int(operand)
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[
                operation
            ]
            at += if_so if holds else if_not


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
@pytest.mark.parametrize(
    ("call", "words", "expected"),
    [
        *(
            pytest.param(call, (), REFUSED | errno.EPERM, id=call)
            for call in ("add_key", "request_key", "keyctl", "bpf", "perf_event_open")
        ),
        *(
            pytest.param(call, (), REFUSED | errno.EPERM, id=call)
            for call in ("userfaultfd", "setns", "io_uring_setup")
        ),
        pytest.param("clone", (NEW_USERS,), REFUSED | errno.EPERM, id="clone: new users"),
        pytest.param("clone", (A_THREAD,), ALLOW, id="clone: a thread"),
        pytest.param("clone3", (), REFUSED | errno.ENOSYS, id="clone3: libc then uses clone"),
        pytest.param("unshare", (NEW_USERS,), REFUSED | errno.EPERM, id="unshare: user namespace"),
        pytest.param("unshare", (0x20000,), ALLOW, id="unshare: others need rights anyway"),
        pytest.param("ioctl", (0, TIOCSTI), REFUSED | errno.EPERM, id="typing into a terminal"),
        pytest.param("ioctl", (0, TIOCLINUX), REFUSED | errno.EPERM, id="pasting on a console"),
        pytest.param("ioctl", (0, (1 << 32) | TIOCSTI), REFUSED | errno.EPERM, id="upper half set"),
        pytest.param("ioctl", (0, TCGETS), ALLOW, id="asking a terminal"),
        pytest.param("utimensat", (), ALLOW, id="a file's times"),
    ],
)
def test_which_calls_are_refused(
    machine: str, column: int, call: str, words: tuple[int, ...], expected: int
) -> None:
    assert answer(machine, CALLS[call][column], *words) == expected


@pytest.mark.parametrize("machine", AUDIT)
def test_other_numbering_is_refused(machine: str) -> None:
    assert answer(machine, READ[machine]) == ALLOW
    assert answer(machine, READ[machine], audit=0x40000003) == KILL, "a 32-bit program"


def test_x32_calls_of_x86_64_are_refused() -> None:
    assert answer("x86_64", 0x40000000 | 16, 0, TIOCSTI) == REFUSED | errno.ENOSYS


def test_where_nodes_can_be_written_to_times_do_nothing() -> None:
    assert answer("x86_64", CALLS["utimensat"][0], times=False) == REFUSED
    assert answer("aarch64", CALLS["utimensat"][1], times=False) == REFUSED
