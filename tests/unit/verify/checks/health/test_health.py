"""The judges of verify/checks/health/, and the reading of the kernel log."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mutations.health import healthy_gpu
from verify.checks.health import condition as health
from verify.checks.health import findings, gpu_memory, xids
from verify.device import kernel_log
from verify.device.kernel_log import Line, Log
from verify.device.telemetry import GpuProcess, GpuState, Mig, State
from verify.model.check import Context, Outcome, Status

WELL = State("580.65.06", (healthy_gpu(0), healthy_gpu(1)), found=True)


def second(**fields: Any) -> State:
    return replace(WELL, gpus=(WELL.gpus[0], replace(WELL.gpus[1], **fields)))


def words(outcome: Outcome) -> str:
    return " | ".join(filter(None, (outcome.message, outcome.cause, outcome.fix)))


JUDGES = (
    gpu_memory.judge_memory,
    health.judge_temperature,
    health.judge_mode,
    health.judge_fabric,
    lambda found: health.judge_clocks([found]),
)


@pytest.mark.parametrize("judge", JUDGES)
def test_a_healthy_machine_passes(judge: Any) -> None:
    outcome = judge(WELL)
    assert outcome.status is Status.PASS
    assert (outcome.cause, outcome.fix) == (None, None)
    assert "\n" not in outcome.message
    assert outcome.measured["tables"]


@pytest.mark.parametrize("judge", JUDGES)
def test_a_card_that_tells_nothing_is_a_skip_with_a_reason(judge: Any) -> None:
    refused = "nvmlDeviceGetEccMode: Insufficient Permissions (4)"
    outcome = judge(State("390.1", (GpuState(0), GpuState(1)), found=True, problems=(refused,)))
    assert outcome.status is Status.SKIP
    assert outcome.message.startswith("2 GPUs do not report")
    assert refused in outcome.message


@pytest.mark.parametrize(
    ("found", "word"),
    [
        pytest.param(State(), "no NVIDIA driver library", id="no library"),
        pytest.param(State(found=True), "NVML sees no GPU", id="no GPU"),
        pytest.param(
            State(found=True, error="nvmlInit_v2: x (18)"), "NVML fails: nvml", id="fails"
        ),
    ],
)
def test_without_nvml_nothing_is_judged(found: State, word: str) -> None:
    outcome = findings.judged(found, gpu_memory.judge_memory)
    assert outcome.status is Status.SKIP
    assert word in outcome.message
    assert outcome.fix


@pytest.mark.parametrize(
    ("found", "word"),
    [
        pytest.param(
            second(ecc_uncorrected=2, remap_pending=None),
            "GPU 1: uncorrected ECC errors since the driver was loaded: 2",
            id="uncorrected, on a card that remaps no rows",
        ),
        pytest.param(
            second(ecc_uncorrected=3, sram_uncorrected=2),
            "GPU 1: uncorrected ECC errors since the driver was loaded: 2",
            id="uncorrected in the SRAM, which nothing repairs",
        ),
        pytest.param(
            second(ecc_uncorrected=2, sram_uncorrected=0),
            "2 repaired by row remapping on GPU 1",
            id="uncorrected, and its rows were remapped",
        ),
        pytest.param(second(exhausted_banks=1), "no spare row left", id="a bank without spares"),
        pytest.param(second(sram_threshold_exceeded=True), "SRAM errors than", id="SRAM"),
        pytest.param(second(remap_pending=True), "damaged memory waits", id="remap pending"),
        pytest.param(second(retired_pending=True), "--gpu-reset -i 1", id="page pending"),
        pytest.param(second(remap_failed=True), "no spare row is left", id="remap failed"),
        pytest.param(second(retired_pages=60), "60 retired pages", id="too many pages"),
        pytest.param(
            second(ecc_uncorrected=1, sram_uncorrected=1, remap_pending=True),
            "driver was loaded: 1; GPU 1: damaged",
            id="both",
        ),
        pytest.param(
            replace(WELL, gpus=(GpuState(0, ecc_enabled=False), WELL.gpus[1])),
            "no uncorrected memory errors on 1 GPU, none pending; GPU 0 counts none",
            id="one without ECC",
        ),
        pytest.param(second(ecc_corrected=9), "9 corrected on GPU 1", id="corrected"),
        pytest.param(second(ecc_uncorrected_ever=3), "none pending", id="of an earlier life"),
        pytest.param(second(retired_pages=59), "none pending", id="some pages"),
        pytest.param(
            State("1", (GpuState(0, ecc_enabled=False),), found=True),
            "ECC is off on GPU 0",
            id="ECC off",
        ),
    ],
)
def test_memory(found: State, word: str) -> None:
    outcome = gpu_memory.judge_memory(found)
    assert word in words(outcome)
    bad = any(
        w in word for w in ("ECC errors", "damaged", "waits", "reset", "spare", "retired", "SRAM")
    )
    status = Status.SKIP if "off" in word else Status.FAIL if bad else Status.PASS
    assert outcome.status is status


@pytest.mark.parametrize(
    ("reasons", "status", "word"),
    [
        pytest.param(("gpu_idle",), Status.PASS, "no throttling on 2 GPUs", id="idle"),
        pytest.param((), Status.PASS, "no throttling", id="none"),
        pytest.param(("sw_power_cap",), Status.PASS, "GPU 1: at its power limit", id="power cap"),
        pytest.param(
            ("applications_clocks_setting",), Status.PASS, "clocks set by the user", id="by hand"
        ),
        pytest.param(("sync_boost", "0x200"), Status.PASS, "no throttling", id="others"),
        pytest.param(("hw_slowdown",), Status.FAIL, "SM clock 345 of 1980 MHz", id="hardware"),
        pytest.param(("hw_slowdown", "hw_thermal_slowdown"), Status.FAIL, "too hot", id="heat"),
        pytest.param(
            ("sw_thermal_slowdown",), Status.PASS, "slowed down (sw_thermal", id="driver, at rest"
        ),
        pytest.param(
            ("hw_power_brake_slowdown", "hw_slowdown"), Status.FAIL, "power brake", id="brake"
        ),
    ],
)
def test_clocks(reasons: tuple[str, ...], status: Status, word: str) -> None:
    outcome = health.judge_clocks([second(throttle_reasons=reasons)] * 3)
    assert outcome.status is status
    assert word in words(outcome)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        pytest.param({}, Status.FAIL, id="a server's card at work, at a sixth of its clock"),
        pytest.param({"clock_sm_mhz": 1500}, Status.PASS, id="near its highest clock"),
        pytest.param({"utilization_percent": 3}, Status.PASS, id="at rest"),
        pytest.param({"name": "NVIDIA GeForce RTX 4060 Laptop GPU"}, Status.PASS, id="a laptop"),
        pytest.param(
            {"throttle_reasons": ("gpu_idle", "sw_thermal_slowdown")}, Status.PASS, id="idle"
        ),
    ],
)
def test_heat_is_a_fault_where_it_costs_speed(fields: dict[str, Any], status: Status) -> None:
    hot = {"throttle_reasons": ("sw_thermal_slowdown",), "utilization_percent": 99, **fields}
    outcome = health.judge_clocks([second(**hot)] * 3)
    assert outcome.status is status
    assert "sw_thermal_slowdown" in outcome.message


@pytest.mark.parametrize(
    ("name", "laptop"),
    [
        ("NVIDIA GeForce RTX 3060 Laptop GPU", True),
        ("NVIDIA RTX A5000 Laptop GPU", True),
        ("Quadro RTX 3000 with Max-Q Design", True),
        ("GeForce GTX 1650 Mobile", True),
        ("GeForce MX330", True),
        ("GeForce GTX 960M", True),
        ("Quadro M2000M", True),
        ("Tesla M60", False),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", False),
        ("NVIDIA GeForce RTX 4090", False),
        ("Quadro M4000", False),
        (None, False),
    ],
)
def test_a_laptops_gpu_is_known_by_its_name(name: str | None, laptop: bool) -> None:  # noqa: FBT001
    assert health.is_laptop(GpuState(0, name=name)) is laptop


def test_a_slowdown_for_a_moment_is_none() -> None:
    slow = second(throttle_reasons=("hw_slowdown",))
    assert health.judge_clocks([slow, WELL]).status is Status.PASS
    assert health.judge_clocks([slow, slow]).status is Status.FAIL


@pytest.mark.parametrize(
    ("readings", "status", "taken"),
    [
        pytest.param([WELL], Status.PASS, 1, id="well at once"),
        pytest.param(
            [second(throttle_reasons=("hw_slowdown",)), WELL], Status.PASS, 2, id="a moment"
        ),
        pytest.param(
            [second(throttle_reasons=("hw_slowdown",))] * 3, Status.FAIL, 3, id="all along"
        ),
    ],
)
def test_clocks_are_read_again_only_where_something_slows_a_card(
    monkeypatch: pytest.MonkeyPatch, readings: list[State], status: Status, taken: int
) -> None:
    left = list(readings)
    monkeypatch.setattr("verify.device.state.read", lambda _: left.pop(0))
    monkeypatch.setattr(health, "APART_S", 0.0)
    assert health.check_clocks(Context()).status is status
    assert len(readings) - len(left) == taken


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        pytest.param({"temperature_c": 88}, Status.PASS, "88 C, 1 C left, so it will", id="near"),
        pytest.param({"temperature_c": 89}, Status.FAIL, "89 C, 0 C over", id="at the limit"),
        pytest.param({"temperature_c": 95}, Status.FAIL, "6 C over", id="beyond"),
        pytest.param(
            {"slowdown_margin_c": 40, "temperature_c": 95}, Status.PASS, "40 C left", id="margin"
        ),
        pytest.param({"slowdown_margin_c": -1}, Status.FAIL, "1 C over", id="no margin left"),
        pytest.param({"slowdown_c": None}, Status.PASS, "limit is not known", id="one untold"),
        pytest.param({"slowdown_c": 0}, Status.PASS, "limit is not known", id="a limit of 0"),
    ],
)
def test_temperature(fields: dict[str, Any], status: Status, word: str) -> None:
    outcome = health.judge_temperature(second(**fields))
    assert outcome.status is status
    assert word in words(outcome)


@pytest.mark.parametrize(
    ("fields", "mps", "status", "word"),
    [
        pytest.param({"compute_mode": "prohibited"}, False, Status.FAIL, "-i 1 -c DEFAULT", id="p"),
        pytest.param(
            {"compute_mode": "exclusive-process"}, False, Status.PASS, "one process", id="free"
        ),
        pytest.param(
            {"compute_mode": "exclusive-process", "processes": (GpuProcess(7),)},
            False,
            Status.SKIP,
            "process 7",
            id="taken",
        ),
        pytest.param(
            {"compute_mode": "exclusive-process", "processes": (GpuProcess(7),)},
            True,
            Status.PASS,
            "one process at a time",
            id="taken by MPS, which shares it",
        ),
        pytest.param({"mig": True}, False, Status.FAIL, "no MIG device to run on", id="no MIG"),
        pytest.param(
            {"mig": True, "mig_devices": (Mig("MIG-a"),)},
            False,
            Status.PASS,
            "CUDA programs can",
            id="MIG",
        ),
        pytest.param(
            {"mig": True, "mig_devices": None}, False, Status.PASS, "CUDA programs can", id="MIG?"
        ),
        pytest.param(
            {"recovery": "reset the GPU"},
            False,
            Status.FAIL,
            "the driver asks to reset the GPU",
            id="a reset is due",
        ),
        pytest.param(
            {"recovery": "none"}, False, Status.PASS, "CUDA programs can start", id="none is due"
        ),
        pytest.param(
            {"inforom_corrupt": True}, False, Status.PASS, "the infoROM of GPU 1", id="infoROM"
        ),
        pytest.param({"persistence": False}, False, Status.PASS, "the first call takes", id="pm"),
        pytest.param(
            {"processes": (GpuProcess(7),)},
            False,
            Status.PASS,
            "CUDA programs can start",
            id="used",
        ),
    ],
)
def test_modes(fields: dict[str, Any], mps: bool, status: Status, word: str) -> None:  # noqa: FBT001
    outcome = health.judge_mode(second(**fields), mps=mps)
    assert outcome.status is status
    assert word in words(outcome)


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        pytest.param({"fabric_state": "in-progress"}, Status.FAIL, "(580.65.06)", id="in progress"),
        pytest.param({"fabric_state": "not-started"}, Status.FAIL, "systemctl enable", id="not"),
        pytest.param({"fabric_status": "Unknown Error"}, Status.FAIL, "Unknown Error", id="failed"),
        pytest.param(
            {"fabric_health": ("bandwidth is degraded",)}, Status.FAIL, "degraded", id="h"
        ),
        pytest.param({"fabric_state": "not-supported"}, Status.PASS, "1 GPU joined", id="one only"),
        pytest.param({"fabric_state": None}, Status.PASS, "1 GPU joined", id="one untold"),
    ],
)
def test_fabric(fields: dict[str, Any], status: Status, word: str) -> None:
    outcome = health.judge_fabric(second(**fields))
    assert outcome.status is status
    assert word in words(outcome)


def test_a_machine_without_nvswitch_passes() -> None:
    bare = tuple(replace(gpu, fabric_state="not-supported") for gpu in WELL.gpus)
    outcome = health.judge_fabric(replace(WELL, gpus=bare))
    assert outcome.status is Status.PASS
    assert "no NVSwitch" in outcome.message


XID = "NVRM: Xid (PCI:0000:{}:00): {}, pid=7, name=python, Ch 00000008"
RECOVERY = "NVRM: Xid (PCI:0000:65:00): 154, GPU recovery action changed from {} to {}"
LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06  Mon"


def log(*texts: str) -> Log:
    return Log(tuple(Line(text, 60.0) for text in texts), "/dev/kmsg")


@pytest.mark.parametrize(
    ("texts", "status", "word"),
    [
        pytest.param(
            (LOADED,), Status.PASS, "hardware in the kernel log (lines read: 1)", id="clean"
        ),
        pytest.param((XID.format("65", 79),), Status.FAIL, "GPU 1, 10 min ago: Xid 79", id="79"),
        pytest.param((XID.format("17", 48),), Status.FAIL, "--gpu-reset -i 0", id="48"),
        pytest.param((XID.format("65", 31),), Status.PASS, "Xid 31 (an application", id="31"),
        pytest.param((XID.format("65", 63),), Status.PASS, "marked for replacement", id="63"),
        pytest.param(
            (XID.format("65", 74), XID.format("65", 45), XID.format("65", 45)),
            Status.FAIL,
            "Xid 74, Xid 45 (2 times)",
            id="the card's error and what followed",
        ),
        pytest.param(
            (XID.format("65", 119), XID.format("65", 79)),
            Status.FAIL,
            "Xid 119: the GPU's system processor",
            id="the first is the cause",
        ),
        pytest.param((XID.format("65", 1234),), Status.FAIL, "Xid catalogue", id="unknown"),
        pytest.param(
            (XID.format("b3", 79),),
            Status.PASS,
            "1 on GPUs that are not visible here",
            id="another's",
        ),
        pytest.param((XID.format("65", 79), LOADED), Status.PASS, "no Xid", id="before a reload"),
        pytest.param(
            ("NVRM: Xid (0000:65:00): 62, Channel 00000001",), Status.FAIL, "Xid 62", id="old form"
        ),
        pytest.param(
            (RECOVERY.format("0x0 (None)", "0x2 (Node Reboot Required)"),),
            Status.FAIL,
            "Node Reboot Required",
            id="a reboot is asked for",
        ),
        pytest.param(
            (RECOVERY.format("0x2 (Node Reboot Required)", "0x0 (None)"),),
            Status.PASS,
            "asks for: None",
            id="nothing is asked for any more",
        ),
        pytest.param(
            ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 32 LTSSM Fault Up",),
            Status.FAIL,
            "NVSwitch 0000:c1:00",
            id="switch",
        ),
        pytest.param(
            ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress",),
            Status.PASS,
            "SXid 12028 (an NVSwitch had a non-fatal error)",
            id="a switch's small error",
        ),
    ],
)
def test_the_kernel_log(texts: tuple[str, ...], status: Status, word: str) -> None:
    outcome = xids.judge_log(log(*texts), WELL, now_s=660.0)
    assert outcome.status is status
    assert word in words(outcome)
    if status is Status.FAIL:
        assert outcome.cause
        assert outcome.fix


def test_a_lost_gpu_has_no_address_so_every_xid_counts() -> None:
    lost = replace(WELL, gpus=(WELL.gpus[0], GpuState(1)))
    outcome = xids.judge_log(log(XID.format("65", 79)), lost)
    assert outcome.status is Status.FAIL
    assert outcome.message == "GPU at 0000:65:00: Xid 79"


def test_xids_tell_even_where_nvml_does_not() -> None:
    found = State(found=True, error="nvmlInit_v2: Unknown Error (999)")
    assert xids.judge_log(log(XID.format("65", 79)), found).status is Status.FAIL


def test_without_a_driver_a_clean_log_proves_nothing() -> None:
    assert xids.judge_log(log("usb 1-1: new device"), State()).status is Status.SKIP


def test_a_closed_log_is_a_skip_that_says_where_to_look() -> None:
    outcome = xids.judge_log(Log(error="/dev/kmsg: Operation not permitted"), WELL)
    assert outcome.status is Status.SKIP
    assert "Operation not permitted" in outcome.message
    assert "on the host" in (outcome.fix or "")


@given(st.integers(0, 400), st.sampled_from(["17", "65"]))
def test_every_xid_of_ours_is_judged_by_its_number_alone(number: int, bus: str) -> None:
    outcome = xids.judge_log(log(XID.format(bus, number)), WELL)
    known = kernel_log.MEANINGS.get(number)
    told = known is not None and known.told
    assert outcome.status is (Status.PASS if told else Status.FAIL)
    assert f"Xid {number}" in outcome.message


@given(st.lists(st.text(max_size=60), max_size=20))
def test_any_text_may_stand_in_the_log(texts: list[str]) -> None:
    assert kernel_log.events([Line(text) for text in texts if "Xid" not in text]) == ()


@pytest.mark.parametrize(
    ("record", "line"),
    [
        pytest.param(
            "4,6439,17673899249,-;NVRM: Xid\n SUBSYSTEM=pci\n",
            Line("NVRM: Xid", 17673.899249),
            id="kmsg",
        ),
        pytest.param("6,1,0,c;a; b\n", Line("a; b", 0.0), id="a semicolon"),
        pytest.param("odd;text", Line("text"), id="a head that we do not know"),
    ],
)
def test_a_record_of_kmsg(record: str, line: Line) -> None:
    assert kernel_log.parse_record(record) == line


def test_syslogs_text() -> None:
    text = "<6>[   12.500000] NVRM: loading\n<4>no time\n[1.5] bare\n"
    assert kernel_log.parse_syslog(text) == [
        Line("NVRM: loading", 12.5),
        Line("no time"),
        Line("bare", 1.5),
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
