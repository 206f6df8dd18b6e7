"""verify/device/kernel_log.py: the log is read without blocking, and its lines are events."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.device import kernel_log
from verify.device.kernel_log import Line, Log

FORMS = {
    "NVRM: Xid (PCI:0000:01:00): 79, pid=1234, name=python3, GPU has fallen off the bus.": "Xid 79",
    "NVRM: Xid (0000:03:00): 14, Channel 00000001": "Xid 14",
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel": "Xid 94",
    "NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=7, name=python": "Xid 13",
    "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x1c6 0x0)": "Xid 149",
    "NVRM: Xid (PCI:00000000:01:00.0): 43": "Xid 43",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 32": "SXid 20034",
    "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.": "off the bus",
    "NVRM: GPU at 00000000:01:00.0 has fallen off the bus.": "off the bus",
    "NVRM: GPU at PCI:0000:01:00: has fallen off the bus": "off the bus",
    "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:26b9) installed in this system has "
    "fallen off the bus and is not responding to commands.": "off the bus",
    "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x25:0x40:1470)": "RmInitAdapter failed",
    "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0": (
        "PCIe error, fatal"
    ),
    "pcieport 0000:00:01.0: AER: Multiple Uncorrectable (Fatal) error message received from "
    "0000:01:00.0": "PCIe error, fatal",
    "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, "
    "(Requester ID)": "PCIe error, fatal",
    "nvidia 0000:01:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Data Link "
    "Layer": "PCIe error, not corrected",
    "pcieport 0000:00:00.0: AER: Uncorrected (Non-Fatal) error received: id=0100": (
        "PCIe error, not corrected"
    ),
    "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0": "PCIe error, corrected",
    "pcieport 0000:00:01.0: AER: Correctable error message received from 0000:01:00.0": (
        "PCIe error, corrected"
    ),
    "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer": (
        "PCIe error, corrected"
    ),
}


@pytest.mark.parametrize(("text", "name"), FORMS.items(), ids=FORMS)
def test_each_form_of_a_line_is_an_event_of_its_device(text: str, name: str) -> None:
    (event,) = kernel_log.events([Line(text, 5.0)])
    assert event.name == name
    bus = {"Xid 14": 0x03, "Xid 13": 0x3B, "SXid 20034": 0xC1}.get(name, 0x01)
    assert event.place == (0x18 if name == "Xid 149" else 0, bus, 0)
    assert event.since_start_s == 5.0


WITHOUT_ADDRESS = {
    "NVRM: The NVIDIA probe routine failed for 1 device(s).": "probe failed",
    "NVRM: RmInitAdapter failed! (0x30:0xffffffff:858)": "RmInitAdapter failed",
    "mce: [Hardware Error]: CPU 5: Machine Check Exception: 5 Bank 7: be00000000800400": (
        "machine check"
    ),
    "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 8: bc00004000010090": "machine check",
    "mce: Uncorrected hardware memory error in user-access at 3fd1a40": "machine check",
    "[Hardware Error]: Uncorrected, software restartable error.": "machine check",
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0": "machine check",
}


@pytest.mark.parametrize(("text", "name"), WITHOUT_ADDRESS.items(), ids=WITHOUT_ADDRESS)
def test_each_form_without_an_address(text: str, name: str) -> None:
    (event,) = kernel_log.events([Line(text)])
    assert (event.name, event.place) == (name, None)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("NVRM: Xid (PCI:0000:01:00): none", id="no number"),
        pytest.param("NVRM: Xid (PCI:0000:01:00): 12345678, pid=1", id="a number of eight digits"),
        pytest.param("NVRM: Xid (PCI:0000:01:00): " + "1" * 5000, id="a number without an end"),
        pytest.param("NVRM: Xid (PCI:01:00): 79, pid=1", id="an address without a domain"),
        pytest.param(
            "NVRM: The NVIDIA probe routine was not called for 1 device(s).", id="not called"
        ),
        pytest.param(
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Severity 5 Engine instance 32",
            id="details of an SXid",
        ),
        pytest.param(
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Data {0x00140004, 0x00000000}",
            id="data of an SXid",
        ),
        pytest.param(
            "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 8: 8c00004000010090",
            id="a corrected machine check",
        ),
        pytest.param("mce: [Hardware Error]: Machine check events logged", id="no more than that"),
        pytest.param("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", id="a corrected error"),
        pytest.param("[Hardware Error]: Corrected error, no action required.", id="AMD, corrected"),
        pytest.param("nvidia-gpu 0000:01:00.3: i2c timeout error e0000000", id="USB-C of the card"),
    ],
)
def test_what_is_no_event(text: str) -> None:
    assert kernel_log.events([Line(text)]) == ()


def test_a_sentence_of_the_driver_in_several_lines_is_one() -> None:
    texts = (
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: Xid (PCI:0000:b3:00): 79, pid=1",
    )
    assert [e.name for e in kernel_log.events([Line(t) for t in texts])] == [
        "off the bus",
        "Xid 79",
    ]
    cut = [Line(texts[0]), Line(texts[3])]
    assert [e.name for e in kernel_log.events(cut)] == ["Xid 79"]


@pytest.mark.parametrize(
    ("severity", "section", "name"),
    [
        pytest.param("fatal", "PCIe error", "PCIe error, fatal", id="fatal"),
        pytest.param("recoverable", "PCIe error", "PCIe error, not corrected", id="recoverable"),
        pytest.param("corrected", "PCIe error", "PCIe error, corrected", id="corrected"),
        pytest.param("recoverable", "memory error", "machine check", id="memory"),
        pytest.param("fatal", "general processor error", "machine check", id="processor"),
        pytest.param("recoverable", "ARM processor error", "machine check", id="Grace"),
        pytest.param("fatal", "IA32/X64 processor error", "machine check", id="x86"),
        pytest.param("corrected", "memory error", None, id="corrected memory"),
    ],
)
def test_a_record_of_the_firmware(severity: str, section: str, name: str | None) -> None:
    parts = (
        "event severity: " + severity,
        " Error 0, type: " + severity,
        "  section_type: " + section,
        "  device_id: 0000:01:00.0",
    )
    lines = [Line("{7}[Hardware Error]: " + part) for part in parts]
    assert [event.name for event in kernel_log.events(lines)] == ([name] if name else [])


def test_the_buses_behind_a_port() -> None:
    lines = [
        Line("pci 0000:00:01.0: PCI bridge to [bus 01]"),
        Line("pci 0000:40:03.1: PCI bridge to [bus 41-4f]"),
    ]
    behind = {"0000:00:01.0": (0, 1, 1), "0000:40:03.1": (0, 0x41, 0x4F)}
    assert kernel_log.bridges(lines) == behind


PARTS = st.sampled_from(
    [
        *FORMS,
        *WITHOUT_ADDRESS,
        "NVRM: ",
        "Xid (PCI:",
        "0000:01:00",
        " GPU-I:05",
        "): ",
        "145, RLW_REMAP Nonfatal XC0 i0 Link 08 (",
        "0x00000004 ",
        "154, GPU recovery action changed from 0x0 (None) to 0x",
        "{1}[Hardware Error]: ",
        "NVRM: The NVIDIA ",
        "74, NVLink: fatal error detected on link 14(0x100000, ",
        "id=0010",
        "\x00\u0663\n",
    ]
)
HOSTILE = st.lists(st.one_of(PARTS, st.text(max_size=30)), max_size=4).map("".join)


@given(st.lists(HOSTILE, max_size=5))
def test_any_text_may_be_in_the_log(texts: list[str]) -> None:
    for event in kernel_log.events([Line(text) for text in texts]):
        assert event.name
        assert isinstance(event.meaning.fix, str)


@given(st.lists(st.text(max_size=60), max_size=20))
def test_texts_of_other_programs_are_no_events(texts: list[str]) -> None:
    lines = [Line(text) for text in texts if not kernel_log.CONCERNS.search(text)]
    assert kernel_log.events(lines) == ()


@pytest.mark.parametrize("text", ["NVRM: " + "0000:" * 1600, "AER: " * 1600, "NVRM: GPU " * 800])
def test_a_long_line_takes_no_time(text: str) -> None:
    lines = [Line(text)] * 50
    assert kernel_log.events(lines) == ()
    assert kernel_log.named_gpus(lines) == set()


@pytest.mark.parametrize(
    ("record", "line"),
    [
        pytest.param(
            "4,6439,17673899249,-;NVRM: Xid\n SUBSYSTEM=pci\n",
            Line("NVRM: Xid", 17673.899249),
            id="kmsg",
        ),
        pytest.param("6,1,0,c;a; b\n", Line("a; b", 0.0), id="a semicolon"),
        pytest.param("3,1,0,-;a\\x0ab\n", Line("a b", 0.0), id="a message of several lines"),
        pytest.param("odd;text", Line("text"), id="a head that we do not know"),
        pytest.param("7,1,0,-;a\n", Line("a", 0.0), id="the kernel's least important"),
        pytest.param("12,1,0,-;monitor: NVRM: Xid\n", None, id="a program quotes the driver"),
    ],
)
def test_a_record_of_kmsg(record: str, line: Line | None) -> None:
    assert kernel_log.parse_record(record) == line


def test_syslogs_text() -> None:
    text = "<6>[   12.500000] NVRM: loading\n<4>no time\n[1.5] bare\n"
    text += "<6>[   13.500000][  T812] of a task\n<12>[   14.5] of a program\n"
    assert kernel_log.parse_syslog(text) == [
        Line("NVRM: loading", 12.5),
        Line("no time"),
        Line("bare", 1.5),
        Line("of a task", 13.5),
    ]


def test_kmsg_is_read_to_its_end_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [
        b"6,1,1000000,-;first\n",
        OSError(errno.EPIPE, "overwritten"),
        b"6,9,2000000,-;second\n",
        BlockingIOError(errno.EAGAIN, "no more"),
    ]

    def read(_fd: int, _size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return bytes(answer)

    monkeypatch.setattr("verify.device.kernel_log.os.read", read)
    assert [line.text for line in kernel_log.read_kmsg(os.devnull)] == ["first", "second"]


def test_a_kmsg_without_an_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "MAX_RECORDS", 3)
    assert len(list(kernel_log.read_kmsg("/dev/zero"))) == 3


def test_where_no_way_is_open_each_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def closed() -> list[Line]:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def kmsg() -> Any:
        return kernel_log_read_kmsg(str(tmp_path / "kmsg"))

    kernel_log_read_kmsg = kernel_log.read_kmsg
    monkeypatch.setattr(kernel_log, "read_kmsg", kmsg)
    monkeypatch.setattr(kernel_log, "read_syslog", closed)
    said = "/dev/kmsg: No such file or directory, syslog(2): Operation not permitted"
    assert kernel_log.read() == Log(error=said)


def test_this_machines_log_is_read_or_refused() -> None:
    found = kernel_log.read()
    assert (found.error is None) == (found.source is not None)
    assert all(isinstance(line.text, str) for line in found.lines)


def test_syslog_gives_lines_or_the_systems_error() -> None:
    try:
        found = kernel_log.read_syslog()
    except OSError as error:
        pytest.skip(f"the kernel log is closed here: {error}")
    assert all(isinstance(line, Line) for line in found)
