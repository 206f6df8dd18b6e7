"""The NVIDIA driver's own error reports (Xid lines) in the kernel's log, and what each means.

The log is read without blocking, from /dev/kmsg or through syslog(2). Containers are usually
allowed neither; that is not an error of the image.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
from dataclasses import dataclass
from typing import Callable, Iterator, List, Mapping, Optional, Sequence, Tuple

READ_ALL, SIZE = 3, 10  # SYSLOG_ACTION_READ_ALL, SYSLOG_ACTION_SIZE_BUFFER
RECORD_BYTES = 8192  # the kernel cuts a record at about 1000 bytes
MAX_RECORDS = 1_000_000  # a log that grows faster than it is read would never end
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")
_XID = re.compile(
    r"(?P<kind>S?Xid) \((?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})"
    r"(?:\.[0-7])?\): (?P<number>\d+)(?:, (?P<rest>.*))?"
)


@dataclass(frozen=True)
class Line:
    """A line of the log, and when it was written, in seconds since the machine started."""

    text: str
    since_start_s: Optional[float] = None


@dataclass(frozen=True)
class Log:
    """The lines that could be read. `error` says why none could."""

    lines: Tuple[Line, ...] = ()
    source: Optional[str] = None
    error: Optional[str] = None


@dataclass(frozen=True)
class Event:
    """An Xid (of a GPU) or SXid (of an NVSwitch)."""

    number: int
    pci: Tuple[int, int, int]  # domain, bus, device
    text: str
    since_start_s: Optional[float] = None
    switch: bool = False

    @property
    def name(self) -> str:
        """As the log writes it: "Xid 79"."""
        return "{} {}".format("SXid" if self.switch else "Xid", self.number)


@dataclass(frozen=True)
class Meaning:
    """What an Xid means. Those with `told` are only reported: the card needs no repair."""

    what: str
    fix: str
    told: bool = False


_RESET = "end what runs on the GPU and reset it (nvidia-smi --gpu-reset -i N), or reboot the host"
_RETURN = "; if the error recurs, take the GPU out of use and have it replaced"
_APP = "look for the error in the application: compute-sanitizer names the kernel and the address"
_DRIVER = "; update the driver, and report it with nvidia-bug-report.sh if the error recurs"
_BUS = "reboot the host; check the card's seat, its power cables and the PCIe slot"
_LINK = "reboot the host; check NVLink bridges or the baseboard, and nvidia-smi nvlink -e"

# After NVIDIA's Xid catalogue: docs.nvidia.com/deploy/xid-errors
MEANINGS: Mapping[int, Meaning] = {
    8: Meaning("the GPU stopped processing for an application", _APP, told=True),
    11: Meaning("an application's command stream was invalid", _APP, told=True),
    13: Meaning("an application's kernel raised a graphics engine exception", _APP, told=True),
    31: Meaning("an application accessed memory that it does not own", _APP, told=True),
    32: Meaning("a command stream was corrupted on its way to the GPU", _BUS),
    38: Meaning("the driver's firmware failed", _RESET + _DRIVER),
    43: Meaning("an application was ended after an error of its own", _APP, told=True),
    45: Meaning("an application was ended and its channels cleaned up", _APP, told=True),
    46: Meaning("the GPU stopped processing", _RESET + _RETURN),
    48: Meaning("memory of the GPU had a double-bit ECC error", _RESET + _RETURN),
    54: Meaning("the card's auxiliary power is not connected", "connect the card's power cables"),
    56: Meaning("the display engine failed", _RESET + _DRIVER),
    57: Meaning("the card's memory interface could not be programmed", _RESET + _RETURN),
    58: Meaning("the card's memory interface is unstable", _RESET + _RETURN),
    61: Meaning("the GPU's internal controller stopped at a breakpoint", _RESET + _RETURN),
    62: Meaning("the GPU's internal controller halted", _RESET + _RETURN),
    63: Meaning(
        "a damaged page or row of memory is marked for replacement",
        "see health.memory: the replacement happens when the GPU is reset",
        told=True,
    ),
    64: Meaning("a damaged page or row of memory could not be replaced", _RESET + _RETURN),
    66: Meaning("the driver made an illegal access", _RESET + _DRIVER),
    68: Meaning("the video decoder raised an exception", _RESET + _DRIVER),
    69: Meaning("an application's graphics engine class was wrong", _APP, told=True),
    74: Meaning("an NVLink failed", _LINK + _RETURN),
    78: Meaning("a vGPU could not start", "look at the host's vGPU manager and its licence"),
    79: Meaning("the GPU has fallen off the bus", _BUS + _RETURN),
    80: Meaning("data was corrupted on its way to the GPU", _BUS),
    92: Meaning("the GPU corrects many single-bit ECC errors", _RESET + _RETURN),
    94: Meaning("an uncorrectable memory error hit one application", _RESET + _RETURN),
    95: Meaning("an uncorrectable memory error may have hit any application", _RESET + _RETURN),
    109: Meaning("switching between applications took too long", _RESET + _DRIVER),
    110: Meaning("the GPU saw a security fault", _RESET + _DRIVER),
    119: Meaning("the GPU's system processor (GSP) does not answer", _RESET + _DRIVER),
    120: Meaning("the GPU's system processor (GSP) failed", _RESET + _DRIVER),
    121: Meaning("the link between CPU and GPU (C2C) had an error", _RESET + _RETURN),
    122: Meaning("the card's InfoROM could not be read", _RESET + _RETURN),
    123: Meaning("the card's InfoROM could not be written", _RESET + _RETURN),
    136: Meaning("an NVLink could not be trained", _LINK + _RETURN),
    137: Meaning(
        "an application touched another GPU's memory wrongly over NVLink", _APP, told=True
    ),
    140: Meaning("the GPU did not recover from a memory error", _RESET + _RETURN),
    143: Meaning("the GPU could not be started", _BUS + _RETURN),
    144: Meaning("an NVLink failed (SAW)", _LINK + _RETURN),
    145: Meaning("an NVLink failed (RLW)", _LINK + _RETURN),
    146: Meaning("an NVLink failed (TLW)", _LINK + _RETURN),
    147: Meaning("an NVLink failed (TREX)", _LINK + _RETURN),
    148: Meaning("an NVLink failed (NVLPW_CTRL)", _LINK + _RETURN),
    149: Meaning("an NVLink failed (NETIR)", _LINK + _RETURN),
    150: Meaning("an NVLink failed (MSE)", _LINK + _RETURN),
}
# 154 names its own remedy in the log line: "GPU recovery action changed from ... to ...".
RECOVERY = 154
_UNKNOWN = Meaning(
    "an Xid that this version does not know",
    "see NVIDIA's Xid catalogue, docs.nvidia.com/deploy/xid-errors",
)


def meaning(event: Event) -> Meaning:
    """What an event means and how to fix it."""
    if event.switch:
        return _of_switch(event)
    if event.number != RECOVERY:
        return MEANINGS.get(event.number, _UNKNOWN)
    said = re.search(r"\bto \S+ \(([^)]+)\)", event.text)
    action = said.group(1) if said else "an action it does not name"
    done = action.lower() == "none"
    return Meaning("the driver asks for: " + action, _BUS if "boot" in action else _RESET, done)


def _of_switch(event: Event) -> Meaning:
    fatal = "Non-fatal" not in event.text
    what = "an NVSwitch had {} error".format("a fatal" if fatal else "a non-fatal")
    fix = "look at journalctl -u nvidia-fabricmanager; reboot the host, or have it repaired"
    return Meaning(what, fix, told=not fatal)


def events(lines: Sequence[Line]) -> Tuple[Event, ...]:
    """The Xids since the driver was last loaded, oldest first."""
    start = max((i for i, line in enumerate(lines) if _LOADED.search(line.text)), default=0)
    matches = [(line, _XID.search(line.text)) for line in lines[start:]]
    return tuple(
        Event(
            int(match.group("number")),
            address(match.group("pci")),
            line.text,
            line.since_start_s,
            switch=match.group("kind") == "SXid",
        )
        for line, match in matches
        if match
    )


def address(text: str) -> Tuple[int, int, int]:
    """A PCI address in any format, as numbers."""
    domain, bus, device = text.partition(".")[0].split(":")
    return int(domain, 16), int(bus, 16), int(device, 16)


def read() -> Log:
    """The kernel's log, from whichever source this process may read."""
    reasons: List[str] = []
    ways: Tuple[Tuple[str, Callable[[], List[Line]]], ...] = (
        ("/dev/kmsg", lambda: list(read_kmsg())),
        ("syslog(2)", read_syslog),
    )
    for source, way in ways:
        try:
            return Log(tuple(way()), source)
        except OSError as error:  # noqa: PERF203  # two ways at most
            reasons.append("{}: {}".format(source, error.strerror or error))
    return Log(error=", ".join(reasons))


def read_kmsg(path: str = "/dev/kmsg") -> Iterator[Line]:
    """Each record that is in the log now."""
    device = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(device, RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while we read: the next one is newer
                    continue
                raise
            if not record:
                return
            yield parse_record(record.decode("utf-8", "replace"))
    finally:
        os.close(device)


def parse_record(record: str) -> Line:
    """A record of /dev/kmsg: "priority,sequence,microseconds,flags;text", and device lines."""
    head, _, text = record.partition(";")
    fields = head.split(",")
    since = None
    with contextlib.suppress(IndexError, ValueError):
        since = int(fields[2]) / 1e6
    return Line(text.split("\n")[0], since)


def read_syslog() -> List[Line]:
    """The whole ring buffer, as dmesg reads it."""
    library = ctypes.CDLL(None, use_errno=True)
    size = _klogctl(library, SIZE, None, 0)
    buffer = ctypes.create_string_buffer(max(size, 1))
    length = _klogctl(library, READ_ALL, buffer, max(size, 1))
    return parse_syslog(buffer.raw[:length].decode("utf-8", "replace"))


def _klogctl(
    library: ctypes.CDLL, action: int, buffer: "Optional[ctypes.Array[ctypes.c_char]]", size: int
) -> int:
    try:
        length = int(library.klogctl(action, buffer, size))
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    if length < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return length


def parse_syslog(text: str) -> List[Line]:
    """Lines as syslog(2) returns them: "<6>[  12.345678] text"."""
    found = []
    for line in text.splitlines():
        match = re.match(r"(?:<\d+>)?(?:\[ *(\d+\.\d+)\] )?(.*)", line)
        if match:
            found.append(Line(match.group(2), float(match.group(1)) if match.group(1) else None))
    return found
