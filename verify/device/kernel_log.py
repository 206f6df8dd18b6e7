"""The kernel's log: errors of the NVIDIA driver (Xid lines and others), of PCIe and of the host.

The log is read without blocking, from /dev/kmsg or through syslog(2). Containers are usually
allowed neither; that is not an error of the image.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
from dataclasses import dataclass, replace
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from verify.device.driver_errors import (
    ADDRESS,
    RECOVERY,
    LineRule,
    Meaning,
    line_rules,
    of_switch,
    of_xid,
)
from verify.device.pci import bus_address

READ_ALL, SIZE = 3, 10  # SYSLOG_ACTION_READ_ALL, SYSLOG_ACTION_SIZE_BUFFER
RECORD_BYTES = 8192  # the kernel cuts a record at about 1000 bytes
MAX_RECORDS = 1_000_000  # a log that grows faster than it is read would never end
MAX_PARTS = 60  # lines of one record
# Lines that may be about a GPU, its PCIe port, or the host's memory.
CONCERNS = re.compile(
    r"NVRM|SXid|nvidia|pciehp|PCIe Bus Error|Hardware Error|Uncorrected|AER: |DPC: |EDAC MC"
    r"|\[10de:",
    re.IGNORECASE,
)
_XID = re.compile(
    r"(?P<switch>S?)Xid \((?:PCI:)?(?P<pci>" + ADDRESS + r")(?: GPU-I:[0-9]+(?: GPU-CI:[0-9]+)?)?\)"
    r": (?P<number>[0-9]{1,6})(?![0-9])(?:, (?P<rest>.*))?"
)
_SENTENCE = re.compile(r"^\W*(?:\[ *[0-9.]+\] )?NVRM: The NVIDIA ")
_RECORD = re.compile(r"\{[0-9]{1,9}\}\[Hardware Error\]: ")
_NAMED = re.compile(r"(?:NVRM: .{0,80}?|\bnvidia )\b(?P<pci>" + ADDRESS + ")")
_BRIDGE = re.compile(
    r"(?P<port>"
    + ADDRESS
    + r"): PCI bridge to \[bus (?P<first>[0-9a-f]{2})(?:-(?P<last>[0-9a-f]+))?\]"
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
    """A line about an error, or about a repair: then `repairs` says of what (all, gpu, port)."""

    name: str  # "Xid 79", or of a line without an Xid its kind
    meaning: Meaning
    text: str
    index: int  # its place in the log
    since_start_s: Optional[float] = None
    device: Optional[str] = None  # the PCI address that the line names, with its function
    port: Optional[str] = None  # the PCIe port that reported it
    number: Optional[int] = None  # of an Xid
    switch: bool = False
    repairs: str = ""
    rule: Optional[LineRule] = None

    @property
    def place(self) -> Optional[Tuple[int, int, int]]:
        """Domain, bus and device."""
        return address(self.device) if self.device else None

    @property
    def pcie(self) -> bool:
        """Whether it is about a PCIe link: then the device may be a port."""
        return self.rule is not None and self.rule.pcie


def events(lines: Sequence[Line]) -> Tuple[Event, ...]:
    """The errors and repairs in the log, oldest first."""
    found: List[Event] = []
    loading, unsupported = False, 0
    ports: Dict[Optional[str], str] = {}  # that reported an error of a device
    for index, line in enumerate(joined(lines)):
        event = _event(line, index)
        if event is None:
            continue
        if event.name == "driver loaded":
            loading, known = False, loading
            if known:  # this load began before the GPUs were probed
                continue
        if event.repairs == "all":
            loading, unsupported = event.name == "driver load", 0
        unsupported += event.name == "GPU not supported"
        if event.port:
            ports[event.device] = event.port
        elif event.device in ports and event.pcie:
            event = replace(event, port=ports[event.device])
        if event.name == "probe failed" and _count(event) <= unsupported:
            event = replace(event, meaning=replace(event.meaning, action="IGNORE"))
        found.append(event)
    return tuple(found)


def _count(event: Event) -> int:
    match = event.rule.pattern.search(event.text) if event.rule else None
    return int(match.group("count")) if match else 0


def _event(line: Line, index: int) -> Optional[Event]:
    if not CONCERNS.search(line.text):
        return None
    match = _XID.search(line.text)
    if match:
        return _xid(match, line, index)
    for rule in line_rules():
        found = rule.pattern.search(line.text)
        if found:
            groups = found.groupdict()
            port = bus_address(groups.get("port") or "") or None
            device = bus_address(groups.get("pci") or "")
            return Event(
                rule.name,
                rule.meaning,
                line.text,
                index,
                line.since_start_s,
                device or _requester(groups.get("id"), port),
                port,
                repairs=rule.repairs,
                rule=rule,
            )
    return None


def _xid(match: "re.Match[str]", line: Line, index: int) -> Optional[Event]:
    number, said = int(match.group("number")), match.group("rest") or ""
    switch = match.group("switch")
    if switch and re.match(r"Severity \d|Data \{", said):
        return None  # details of the line before
    known = of_switch(said) if switch else of_xid(number, said)
    over = number == RECOVERY and not switch and known.action == "IGNORE"
    return Event(
        "{} {}".format("SXid" if switch else "Xid", number),
        known,
        line.text,
        index,
        line.since_start_s,
        bus_address(match.group("pci")),
        number=number,
        switch=bool(switch),
        repairs="gpu" if over else "",
    )


def _requester(number: Optional[str], port: Optional[str]) -> Optional[str]:
    """The address in a PCIe requester id, as older kernels write it: "id=0010" is 00:02.0."""
    if number is None or port is None:
        return None
    value = int(number, 16)
    domain = port.split(":")[0]
    return "{}:{:02x}:{:02x}.{}".format(domain, value >> 8, value >> 3 & 0x1F, value & 7)


def joined(lines: Sequence[Line]) -> Iterator[Line]:
    """The lines, with those in one that the kernel or the driver writes in several: a sentence that
    begins "NVRM: The NVIDIA", and a record of the firmware's ("{1}[Hardware Error]: ...").
    """
    kept: List[Line] = []
    for line in lines:
        if kept and not (len(kept) < MAX_PARTS and _continues(kept, line.text)):
            yield _one(kept)
            kept = []
        kept.append(line)
    if kept:
        yield _one(kept)


def _continues(kept: Sequence[Line], text: str) -> bool:
    first = kept[0].text
    if _SENTENCE.search(first):
        open_still = not kept[-1].text.rstrip().endswith(".")
        return open_still and text.lstrip().startswith("NVRM:") and not _XID.search(text)
    record = _RECORD.search(first)
    return record is not None and record.group() in text


def _one(kept: Sequence[Line]) -> Line:
    return kept[0] if len(kept) == 1 else replace(kept[0], text=" ".join(x.text for x in kept))


def named_gpus(lines: Sequence[Line]) -> Set[Tuple[int, int, int]]:
    """The addresses that the log calls NVIDIA's."""
    found = (_NAMED.search(line.text) for line in lines if CONCERNS.search(line.text))
    return {address(match.group("pci")) for match in found if match}


def bridges(lines: Sequence[Line]) -> Mapping[str, Tuple[int, int, int]]:
    """The buses behind each PCIe port, from the lines of the start: domain, first and last."""
    found = {}
    for line in lines:
        match = _BRIDGE.search(line.text) if "PCI bridge" in line.text else None
        if match:
            first = match.group("first")
            domain = int(match.group("port").split(":")[0], 16)
            last = match.group("last") or first
            found[bus_address(match.group("port"))] = (domain, int(first, 16), int(last, 16))
    return found


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
            line = parse_record(record.decode("utf-8", "replace"))
            if line is not None:
                yield line
    finally:
        os.close(device)


def parse_record(record: str) -> Optional[Line]:
    """A record of /dev/kmsg: "priority,sequence,microseconds,flags;text", and device lines. None if
    a program wrote it: it may quote any line.
    """
    head, _, text = record.partition(";")
    fields = head.split(",")
    if _of_a_program(fields[0]):
        return None
    since = None
    with contextlib.suppress(IndexError, ValueError):
        since = int(fields[2]) / 1e6
    return Line(text.split("\n")[0].replace("\\x0a", " "), since)


def _of_a_program(priority: Optional[str]) -> bool:
    """Whether a log priority has another facility than the kernel's, which is 0."""
    return priority is not None and priority.isdecimal() and len(priority) < 5 and int(priority) > 7


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
    """The kernel's lines as syslog(2) returns them: "<6>[  12.345678] text", some with the caller:
    "<6>[  12.345678][    T1] text".
    """
    found = []
    for line in text.splitlines():
        match = re.match(r"(?:<(\d+)>)?(?:\[ *(\d+\.\d+)\](?:\[ *[TC]\d+\])? )?(.*)", line)
        if match and not _of_a_program(match.group(1)):
            found.append(Line(match.group(3), float(match.group(2)) if match.group(2) else None))
    return found
