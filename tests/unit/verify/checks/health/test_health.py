"""The judges of verify/checks/health/."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.kit.cases import cases
from tests.mutations.health import healthy_gpu
from verify.checks.health import condition as health
from verify.checks.health import fabric, findings, gpu_memory, sensors
from verify.device import nvml_types
from verify.device.machine import Machine
from verify.device.telemetry import GpuProcess, GpuState, Mig, State
from verify.model.check import Context, Outcome, Status

FAULTS, SUMMARIES = nvml_types.FABRIC_FAULTS, nvml_types.FABRIC_SUMMARIES
WELL = State("580.65.06", (healthy_gpu(0), healthy_gpu(1)), found=True)


def second(**fields: Any) -> State:
    return replace(WELL, gpus=(WELL.gpus[0], replace(WELL.gpus[1], **fields)))


def words(outcome: Outcome) -> str:
    return " | ".join(filter(None, (outcome.message, outcome.cause, outcome.fix)))


JUDGES = (
    gpu_memory.judge_memory,
    health.judge_temperature,
    health.judge_mode,
    fabric.judge_fabric,
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
        pytest.param(
            second(ecc_uncorrected=2, sram_uncorrected=None),
            "2 repaired by row remapping on GPU 1, unless they were in",
            id="uncorrected, where is not known",
        ),
        pytest.param(
            second(spare_rows=(637, 1, 1, 0, 1)),
            "GPU 1: memory banks with one spare row: 0, without any: 1",
            id="a bank without spares",
        ),
        pytest.param(
            second(spare_rows=(638, 0, 0, 2, 0)), "with one spare row: 2", id="banks with one spare"
        ),
        pytest.param(second(spare_rows=(639, 1, 0, 0, 0)), "errors on 2 GPUs", id="spares enough"),
        pytest.param(second(sram_threshold_exceeded=True), "SRAM errors than", id="SRAM"),
        pytest.param(second(remap_pending=True), "at the next chance, end", id="remap pending"),
        pytest.param(
            second(remap_pending=True, ecc_uncorrected=1, sram_uncorrected=0),
            "1 to be repaired by row remapping on GPU 1; GPU 1: a",
            id="a remap is pending for lost data",
        ),
        pytest.param(second(retired_pending=True), "--gpu-reset -i 1", id="page pending"),
        pytest.param(second(remap_failed=True), "no spare row is left", id="remap failed"),
        pytest.param(second(retired_pages=60), "60 retired pages", id="too many pages"),
        pytest.param(
            second(ecc_uncorrected=1, sram_uncorrected=1, retired_pending=True),
            "driver was loaded: 1; GPU 1: damaged pages",
            id="both",
        ),
        pytest.param(
            replace(WELL, gpus=(GpuState(0, ecc_enabled=False), WELL.gpus[1])),
            "no uncorrected memory errors on 1 GPU; GPU 0 counts none",
            id="one without ECC",
        ),
        pytest.param(second(ecc_corrected=9), "9 corrected on GPU 1", id="corrected"),
        pytest.param(second(ecc_uncorrected_ever=3), "no uncorrected", id="of an earlier life"),
        pytest.param(second(retired_pages=59), "no uncorrected", id="some pages"),
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
        w in word
        for w in ("ECC errors", "damaged", "reset", "no spare row", "retired", "SRAM errors")
    )
    status = Status.SKIP if "off" in word else Status.FAIL if bad else Status.PASS
    assert outcome.status is status


@pytest.mark.parametrize(
    ("refused", "twins", "status", "word"),
    [
        pytest.param({"Temperature": 999}, {}, Status.FAIL, "Temperature (unknown", id="unknown"),
        pytest.param({"Temperature": 15}, None, Status.FAIL, "GPU is lost", id="lost, alone"),
        pytest.param(
            {"PowerUsage": 16}, None, Status.FAIL, "after an error", id="must be reset, alone"
        ),
        pytest.param({"Temperature": 999}, None, Status.PASS, "", id="unknown, without a twin"),
        pytest.param(
            {"AddressingMode": 999}, {"AddressingMode": 999}, Status.PASS, "", id="all of a model"
        ),
        pytest.param(
            {"FanSpeed": 3},
            {},
            Status.PASS,
            "GPU 1 does not report FanSpeed, others of its model do",
            id="not supported by one",
        ),
        pytest.param({"FanSpeed": 3}, {"FanSpeed": 3}, Status.PASS, "", id="passively cooled"),
        pytest.param({"EccMode": 4}, {}, Status.PASS, "", id="another error"),
    ],
)
def test_sensors(
    refused: dict[str, int], twins: dict[str, int] | None, status: Status, word: str
) -> None:
    def named(errors: dict[str, int]) -> tuple[tuple[str, int], ...]:
        return tuple((f"nvmlDeviceGet{name}", code) for name, code in errors.items())

    name = "Another" if twins is None else WELL.gpus[1].name
    first = replace(WELL.gpus[0], name=name, refused=named(twins or {}))
    found = State("580", (first, replace(WELL.gpus[1], refused=named(refused))), found=True)
    well = Outcome(Status.PASS, "2 GPUs")
    outcome = sensors.judge_sensors(well, [found, found])
    assert outcome.status is status
    assert word in words(outcome)
    if status is Status.PASS and not word:
        assert outcome == well
    # what another reading answers is no finding
    assert sensors.judge_sensors(well, [WELL, found]).status is Status.PASS


def test_a_failing_sensor_is_read_again() -> None:
    class Flaky(Machine):
        """Its second GPU's temperature cannot be read at first."""

        later = 0

        def seen(self) -> State:
            return second(refused=(("nvmlDeviceGetTemperature", 999),))

        def state(self) -> State:
            self.later += 1
            return WELL

        def pause(self, seconds: float) -> None:
            pass

    machine = Flaky()
    assert sensors.sensor_findings(sensors.read_sensors(machine)) == []
    assert machine.later == 1


def test_clocks_that_are_not_reported() -> None:
    slow = second(throttle_reasons=("hw_slowdown",), clock_sm_mhz=None)
    outcome = health.judge_clocks([slow] * 3)
    assert "GPU 1: slowed down (hw_slowdown), SM clock not reported" in outcome.message


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
        pytest.param(  # github.com/NVIDIA/NVSentinel/issues/1666
            ("gpu_idle", "hw_power_brake_slowdown"), Status.FAIL, "power brake", id="idle brake"
        ),
        pytest.param(
            ("gpu_idle", "hw_slowdown"), Status.PASS, "slowed down (hw_slowdown)", id="idle change"
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
            {"temperature_c": 95, "fans_percent": (0, 30)},
            Status.FAIL,
            "fans at 0, 30 %",
            id="beyond, with the fans' speed",
        ),
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
            {"recovery": "reboot the machine"},
            False,
            Status.FAIL,
            "asks to reboot the machine | reboot the host",
            id="a reboot is due",
        ),
        pytest.param(
            {"recovery": "none"}, False, Status.PASS, "CUDA programs can start", id="none is due"
        ),
        pytest.param(
            {"recovery": "recover the IMEX domain"},
            False,
            Status.FAIL,
            "restart nvidia-imex",
            id="IMEX",
        ),
        pytest.param(
            {"recovery": "drain and reset the GPU"}, False, Status.FAIL, "drain and", id="drain"
        ),
        pytest.param(
            {"recovery": "drain and reset the GPU", "remap_pending": True},
            False,
            Status.PASS,
            "CUDA programs can start",
            id="a row waits for remapping, which health.memory reports",
        ),
        pytest.param(
            {"inforom_corrupt": True}, False, Status.PASS, "the infoROM of GPU 1", id="infoROM"
        ),
        pytest.param({"persistence": False}, False, Status.PASS, "the first call takes", id="pm"),
        pytest.param(
            {"license": "unlicensed", "virtualization": "vgpu"},
            False,
            Status.FAIL,
            "restart nvidia-gridd",
            id="a virtual GPU without a licence",
        ),
        pytest.param(
            {"license": "unlicensed (unrestricted)", "virtualization": "vgpu"},
            False,
            Status.PASS,
            "GPU 1 has no licence, and no limit yet",
            id="a virtual GPU that needs none now",
        ),
        pytest.param(
            {"license": "licensed", "virtualization": "vgpu"}, False, Status.PASS, "", id="licensed"
        ),
        pytest.param(
            {"license": "unlicensed", "virtualization": "passthrough"},
            False,
            Status.PASS,
            "",
            id="a real card needs no licence for CUDA",
        ),
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
    outcome = fabric.judge_fabric(second(**fields))
    assert outcome.status is status
    assert word in words(outcome)


@cases(
    "name fields words",
    ("not started", "GB200", {"fabric_state": "not-started"}, "do not reach the switches"),
    ("in progress", "GB300", {"fabric_state": "in-progress"}, "again in a minute; on the rack's"),
    ("a state to come", "GB200", {"fabric_state": "9"}, "nv show cluster apps (nmx-controller)"),
    ("failed", "GB200", {"fabric_status": "Unknown Error"}, "NMX-Controller gave up"),
    ("slower", "GB200", {"fabric_health": (FAULTS[0],)}, "work runs, but slower"),
    ("for a moment", "GB200", {"fabric_health": (FAULTS[1],)}, "waits or fails until that has"),
    (
        "not at all",
        "GB200",
        {"fabric_health": (FAULTS[2],)},
        "no work over NVLink can run: NVLinks",
    ),
    ("another GPU", "GB200", {"fabric_health": (FAULTS[3],)}, "restart nvidia-imex on all nodes"),
    ("unhealthy", "GB300", {"fabric_health": (SUMMARIES[2],)}, "no work over NVLink can run"),
    ("with less", "GB200", {"fabric_health": (SUMMARIES[3],)}, "fewer NVLinks or GPUs"),
    (
        "misplaced",
        "GB200",
        {"fabric_health": nvml_types.fabric_faults(4 << 8)},
        "show sdn partition",
    ),
)
def test_each_state_of_a_racks_fabric_has_its_own_step(
    name: str, fields: dict[str, Any], words: str
) -> None:
    """The node of a rack has no Fabric Manager, and a board has no NMX-Controller."""
    rack = fabric.judge_fabric(second(name=f"NVIDIA {name}", **fields))
    board = fabric.judge_fabric(second(**fields))
    for outcome, here, elsewhere in ((rack, "nv", "abric Manager"), (board, "systemctl", "NMX")):
        assert outcome.status is Status.FAIL
        assert here in (outcome.fix or "")
        assert elsewhere not in f"{outcome.cause} {outcome.fix}"
    assert words in f"{rack.cause} | {rack.fix}"


def test_several_faults_of_a_fabric_are_all_named() -> None:
    outcome = fabric.judge_fabric(second(name="NVIDIA GB200", fabric_health=(FAULTS[0], FAULTS[3])))
    assert all(word in outcome.message for word in (FAULTS[0], FAULTS[3]))
    assert "slower" in (outcome.cause or "")
    assert "did not answer in time" in (outcome.cause or "")


def test_a_machine_without_nvswitch_passes() -> None:
    bare = tuple(replace(gpu, fabric_state="not-supported") for gpu in WELL.gpus)
    outcome = fabric.judge_fabric(replace(WELL, gpus=bare))
    assert outcome.status is Status.PASS
    assert "no NVSwitch" in outcome.message
