"""verify/device/state.py and pynvml against the same fake driver (tests/fake_driver)."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import fake_driver
from verify.device import nvml, nvml_types, state
from verify.device.telemetry import GpuProcess, GpuState, Mig, NvLink, Pair, State

GIB = 1 << 30
NVLINKS = {
    f"gpu.{gpu}.nvlink.{link}.{name}": value
    for gpu in (0, 1)
    for link in range(4)
    for name, value in {
        "state": int((gpu, link) != (1, 3)),
        "error.0": link,
        "error.1": 0,
        "error.2": 2,
        "error.3": 0,
        "remote": "00000000:00:00.0",
        "remote_type": 2,
    }.items()
}
GPU = {
    "name": "NVIDIA H100 80GB HBM3",
    "capability": "9.0",
    "memory": 80 * GIB,
    "used": 3 * GIB,
    "processes": "4711:1073741824,4712:-1",
    "mig": 0,
    "utilization": 97,
    "memory_utilization": 41,
    "temperature": 55,
    "slowdown": 89,
    "fans": 2,
    "fan.0": 35,
    "fan.1": 0,
    "license": "1 1 Licensed",
    "power": 612345,
    "power_limit": 700000,
    "clock.1": 1755,
    "clock.2": 2619,
    "clock_max.1": 1980,
    "clock_max.2": 2619,
    "throttle": 0x4,
    "persistence": 1,
    "compute_mode": 0,
    "ecc": 1,
    "ecc.0.0": 12,
    "ecc.1.0": 0,
    "ecc.1.1": 3,
    "retired.0": 1,
    "retired.1": 2,
    "retired_pending": 0,
    "remapped": "1 2 0 0",
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_generation_card": 5,
    "pcie_replays": 67,
    "fabric": "3 0 0x0 1",
    "banks": "2558 1 1 0 0",
    "sram_threshold": 0,
    "ecc.1.0.7": 2,
    "addressing": 0,
    "virtualization": 1,
    "display": 0,
    "field.170": 0,
    "field.230": 0,
    **{"field.164" + (f".{link}" if link else ""): 26562 for link in range(4)},
}
HOST: dict[str, object] = {
    "driver": "580.65.06",
    "nvml": "13.580.65.06",
    "cuda": 13000,
    "count": 2,
    **{f"gpu.{gpu}.{key}": value for gpu in (0, 1) for key, value in GPU.items()},
    "gpu.0.uuid": "GPU-00000000-0000-4000-8000-000000000000",
    "gpu.1.uuid": "GPU-00000000-0000-4000-8000-000000000001",
    "gpu.0.bus_id": "00000000:17:00.0",
    "gpu.1.bus_id": "00000000:65:00.0",
    **NVLINKS,
    "topology.0.1": 50,
    "p2p.0.1.0": 0,
    "p2p.0.1.1": 0,
    "p2p.0.1.2": 0,
}
Read = Callable[..., State]


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("new"), switches=("ERROR_TEXTS",))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("old"), old=True)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def write(changes: dict[str, object | None]) -> None:
        merged = {k: v for k, v in {**HOST, **changes}.items() if v is not None}
        monkeypatch.setenv("FAKE_DRIVER", str(fake_driver.write_settings(tmp_path / "s", merged)))

    return write


@pytest.fixture
def read(new: Path, settings: Callable[..., None]) -> Read:
    def ask(changes: dict[str, object | None] | None = None, library: Path = new) -> State:
        settings(changes or {})
        return state.read(lambda name: ctypes.CDLL(str(library / name)))

    return ask


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(nvml_types.NvmlMemory, pynvml.c_nvmlMemory_t, id="memory"),
        pytest.param(nvml_types.NvmlMemory2, pynvml.c_nvmlMemory_v2_t, id="memory 2"),
        pytest.param(nvml_types.Utilization, pynvml.c_nvmlUtilization_t, id="utilization"),
        pytest.param(nvml_types.Pci, pynvml.nvmlPciInfo_t, id="pci"),
        pytest.param(nvml_types.Margin, pynvml.c_nvmlMarginTemperature_v1_t, id="margin"),
        pytest.param(nvml_types.Excluded, pynvml.c_nvmlExcludedDeviceInfo_t, id="excluded"),
        pytest.param(nvml_types.Licenses, pynvml.c_nvmlGridLicensableFeatures_v4_t, id="licenses"),
        pytest.param(nvml_types.Fabric, pynvml.c_nvmlGpuFabricInfo_t, id="fabric"),
        pytest.param(nvml_types.Fabric2, pynvml.c_nvmlGpuFabricInfo_v2_t, id="fabric 2"),
        pytest.param(nvml_types.Fabric3, pynvml.c_nvmlGpuFabricInfo_v3_t, id="fabric 3"),
        pytest.param(nvml_types.Histogram, pynvml.c_nvmlRowRemapperHistogramValues, id="rows"),
        pytest.param(nvml_types.Addressing, pynvml.c_nvmlDeviceAddressingMode_t, id="addressing"),
        pytest.param(
            nvml_types.Confidential, pynvml.c_nvmlConfComputeSystemState_t, id="confidential"
        ),
        pytest.param(nvml_types.Field, pynvml.c_nvmlFieldValue_t, id="field"),
    ],
)
def test_structures_are_laid_out_as_pynvmls(ours: Any, theirs: Any) -> None:
    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)
    offsets = [
        [getattr(kind, name).offset for name, *_ in kind._fields_] for kind in (ours, theirs)
    ]
    shared = len(offsets[1])  # ours splits the union of a field value
    assert offsets[0][:shared] == offsets[1]


@pytest.mark.parametrize(
    ("kind", "version", "number"),
    [
        (nvml_types.NvmlMemory2, 2, pynvml.nvmlMemory_v2),
        (nvml_types.Margin, 1, pynvml.nvmlMarginTemperature_v1),
        (nvml_types.Fabric2, 2, pynvml.nvmlGpuFabricInfo_v2),
    ],
)
def test_versions_are_pynvmls(kind: Any, version: int, number: int) -> None:
    assert nvml_types.versioned(kind, version).version == number


def test_numbers_are_pynvmls() -> None:
    p, t = pynvml, nvml_types
    assert (t.INVALID_ARGUMENT, t.NOT_SUPPORTED) == (
        p.NVML_ERROR_INVALID_ARGUMENT,
        p.NVML_ERROR_NOT_SUPPORTED,
    )
    assert (t.NOT_FOUND, t.INSUFFICIENT_SIZE, t.FUNCTION_NOT_FOUND) == (
        p.NVML_ERROR_NOT_FOUND,
        p.NVML_ERROR_INSUFFICIENT_SIZE,
        p.NVML_ERROR_FUNCTION_NOT_FOUND,
    )
    assert (t.VERSION_MISMATCH, t.DEPRECATED) == (
        p.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        p.NVML_ERROR_DEPRECATED,
    )
    assert t.MAX_NVLINKS == p.NVML_NVLINK_MAX_LINKS
    assert p.NVML_VALUE_NOT_AVAILABLE_ulonglong.value == t.NOT_AVAILABLE
    assert t.SLOWDOWN_TLIMIT == p.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT
    assert t.UNCORRECTED_IN_SRAM == (
        p.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        p.NVML_VOLATILE_ECC,
        p.NVML_MEMORY_LOCATION_SRAM,
    )
    assert dict(enumerate(t.FAR_ENDS)) == {
        p.NVML_NVLINK_DEVICE_TYPE_GPU: "gpu",
        p.NVML_NVLINK_DEVICE_TYPE_IBMNPU: "npu",
        p.NVML_NVLINK_DEVICE_TYPE_SWITCH: "switch",
    }
    assert (t.P2P_WRITE, t.P2P_NVLINK) == (
        p.NVML_P2P_CAPS_INDEX_WRITE,
        p.NVML_P2P_CAPS_INDEX_NVLINK,
    )
    assert t.NVLINK_ERRORS == (
        p.NVML_NVLINK_ERROR_DL_REPLAY,
        p.NVML_NVLINK_ERROR_DL_RECOVERY,
        p.NVML_NVLINK_ERROR_DL_CRC_FLIT,
        p.NVML_NVLINK_ERROR_DL_CRC_DATA,
    )


@pytest.mark.parametrize(
    ("table", "prefix"),
    [
        pytest.param(nvml_types.COMPUTE_MODES, "NVML_COMPUTEMODE_", id="compute modes"),
        pytest.param(dict(enumerate(nvml_types.FABRIC_STATES)), "NVML_GPU_FABRIC_STATE_", id="fab"),
        pytest.param(nvml_types.PATHS, "NVML_TOPOLOGY_", id="topology"),
        pytest.param(dict(enumerate(nvml_types.VIRTUALIZATION)), "NVML_GPU_VIRTUALIZATION_MODE_",
                     id="virtual"),
        pytest.param(dict(enumerate(nvml_types.ADDRESSING)), "NVML_DEVICE_ADDRESSING_MODE_",
                     id="addressing"),
        pytest.param(dict(enumerate(nvml_types.RECOVERY)), "NVML_GPU_RECOVERY_ACTION_",
                     id="recovery"),
        pytest.param(dict(enumerate(nvml_types.P2P)), "NVML_P2P_STATUS_", id="p2p"),
        pytest.param(nvml_types.THROTTLE, "nvmlClocksEventReason", id="throttling"),
    ],
)  # fmt: skip
def test_every_number_of_pynvml_has_a_word(table: dict[int, str | int], prefix: str) -> None:
    left_out = {"COUNT", "INVALID", "None", "All"}
    theirs = {
        getattr(pynvml, name)
        for name in dir(pynvml)
        if name.startswith(prefix) and name.removeprefix(prefix) not in left_out
    }
    assert set(table) == theirs


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (pynvml.NVML_COMPUTEMODE_PROHIBITED, "prohibited"),
        (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, "exclusive-process"),
    ],
)
def test_compute_modes_are_named_rightly(number: int, word: str) -> None:
    assert nvml_types.COMPUTE_MODES[number] == word


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (pynvml.nvmlClocksEventReasonHwSlowdown, "hw_slowdown"),
        (pynvml.nvmlClocksEventReasonSwPowerCap, "sw_power_cap"),
        (pynvml.nvmlClocksEventReasonSwThermalSlowdown, "sw_thermal_slowdown"),
        (pynvml.nvmlClocksEventReasonHwThermalSlowdown, "hw_thermal_slowdown"),
        (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, "hw_power_brake_slowdown"),
        (pynvml.nvmlClocksEventReasonGpuIdle, "gpu_idle"),
    ],
)
def test_throttle_reasons_are_named_rightly(number: int, word: str) -> None:
    assert nvml_types.throttle_names(number) == (word,)


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        pytest.param(0, (), id="none"),
        pytest.param(0x44, ("sw_power_cap", "hw_thermal_slowdown"), id="two"),
        pytest.param(0x8000000000000004, ("sw_power_cap", "0x8000000000000000"), id="a new one"),
    ],
)
def test_a_mask_of_reasons_is_taken_apart(mask: int, names: tuple[str, ...]) -> None:
    assert nvml_types.throttle_names(mask) == names


@pytest.mark.parametrize(
    ("mask", "faults"),
    [
        pytest.param(0, (), id="reports nothing"),
        pytest.param(0b10_10_10_10, (), id="all is well"),
        pytest.param(1, ("bandwidth is degraded",), id="degraded"),
        pytest.param(1 << 4 | 2, ("a route is unhealthy",), id="route"),
        pytest.param(1 << 8, (), id="configured rightly"),
        pytest.param(4 << 8, ("this GPU's configuration is wrong (in no partition)",), id="alone"),
        pytest.param(15 << 8, ("this GPU's configuration is wrong (15)",), id="a reason to come"),
    ],
)
def test_a_fabric_health_mask_is_taken_apart(mask: int, faults: tuple[str, ...]) -> None:
    assert nvml_types.fabric_faults(mask) == faults


def test_every_field_is_read(read: Read) -> None:
    found = read()
    assert (found.driver, found.error, found.found, found.problems) == (
        "580.65.06",
        None,
        True,
        (),
    )
    links = tuple(
        NvLink(link, active=True, errors=link + 2, gbs=26.562, far="switch") for link in range(4)
    )
    assert replace(found.gpus[0], refused=()) == GpuState(
        index=0,
        name="NVIDIA H100 80GB HBM3",
        uuid="GPU-00000000-0000-4000-8000-000000000000",
        compute_capability="9.0",
        bus_id="00000000:17:00.0",
        mig=False,
        memory_total_bytes=80 * GIB,
        memory_used_bytes=3 * GIB,
        processes=(GpuProcess(4711, GIB), GpuProcess(4712, None)),
        utilization_percent=97,
        memory_utilization_percent=41,
        temperature_c=55,
        slowdown_c=89,
        fans_percent=(35, 0),
        license="licensed",
        power_w=612.345,
        power_limit_w=700.0,
        clock_sm_mhz=1755,
        clock_sm_max_mhz=1980,
        clock_memory_mhz=2619,
        clock_memory_max_mhz=2619,
        throttle_reasons=("sw_power_cap",),
        persistence=True,
        compute_mode="default",
        ecc_enabled=True,
        ecc_corrected=12,
        ecc_uncorrected=0,
        ecc_uncorrected_ever=3,
        retired_pages=3,
        retired_pending=False,
        remapped_rows=2,
        remap_pending=False,
        remap_failed=False,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_generation_card=5,
        pcie_replays=67,
        c2c_links=0,
        pcie_width=16,
        pcie_width_max=16,
        nvlinks=links,
        fabric_state="completed",
        virtualization="passthrough",
        addressing="none",
        display=False,
        recovery="none",
        inforom_corrupt=False,
        spare_rows=(2558, 1, 1, 0, 0),
        sram_uncorrected=0,
        sram_threshold_exceeded=False,
    )
    assert found.confidential is False
    assert [link.active for link in found.gpus[1].nvlinks] == [True, True, True, False]
    assert found.pairs == (Pair(0, 1, "NV3", "ok", "ok"),)


def test_nothing_told_is_none_and_no_problem(read: Read) -> None:
    silent = cast("dict[str, object | None]", dict.fromkeys(HOST))
    found = read({**silent, "count": 2})
    assert all(gpu.refused for gpu in found.gpus)
    gpus = tuple(replace(gpu, refused=()) for gpu in found.gpus)
    assert replace(found, gpus=gpus) == State(
        gpus=(
            GpuState(0, fabric_state="not-supported", inforom_corrupt=False),
            GpuState(1, fabric_state="not-supported", inforom_corrupt=False),
        ),
        pairs=(Pair(0, 1),),
        found=True,
        confidential=False,
    )


def test_an_old_driver_is_read_as_far_as_it_goes(old: Path, read: Read) -> None:
    found = read({}, old)
    gpu = found.gpus[0]
    assert found.problems == ()
    assert (gpu.bus_id, gpu.memory_used_bytes) == ("0000:17:00.0", 3 * GIB)
    assert gpu.processes == (GpuProcess(4711, GIB), GpuProcess(4712, None))
    assert gpu.throttle_reasons == ("sw_power_cap",)
    assert gpu.sram_uncorrected == 2  # by location, without the newer function
    absent = ("mig", "remapped_rows", "remap_failed", "fabric_state", "slowdown_margin_c")
    assert [getattr(gpu, name) for name in absent] == [None] * len(absent)
    assert found.pairs == (Pair(0, 1, "NV", "ok", "ok"),)  # it cannot tell what a link ends at


def test_a_library_of_nothing_but_the_start_is_read(settings: Callable[..., None]) -> None:
    class Bare:
        def nvmlInit_v2(self) -> int:  # noqa: N802
            return 0

    settings({})
    assert state.read(lambda _: Bare()) == State(found=True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"remote": "00000000:65:00.0", "remote_type": 0}, "NV4", id="direct links"),
        pytest.param({"remote_type": 2}, "NV3", id="a switch, one link of the other GPU down"),
    ],
)
def test_nvlink_paths_count_their_links(
    read: Read, changes: dict[str, object], expected: str
) -> None:
    links = {f"gpu.0.nvlink.{n}.{name}": value for n in range(4) for name, value in changes.items()}
    assert read(links).pairs[0].path == expected


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        pytest.param({"remote": "00000000:65:00.0", "remote_type": 0}, ("gpu", "00000000:65:00.0"),
                     id="a GPU"),
        pytest.param({"remote": None, "remote_type": 1}, ("npu", None), id="a CPU of POWER9"),
        pytest.param({"remote": None, "remote_type": 255}, ("unknown", None), id="nothing known"),
        pytest.param({"remote": None, "remote_type": None}, (None, None), id="not reported"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("up", [0, 1])
def test_the_far_end_of_a_link_is_read(
    read: Read, up: int, changes: dict[str, object], ends: tuple[str | None, str | None]
) -> None:
    found = read({f"gpu.0.nvlink.2.{n}": v for n, v in {**changes, "state": up}.items()})
    link = found.gpus[0].nvlinks[2]
    assert ((link.far, link.far_bus_id), found.problems) == (ends, ())


def test_a_link_that_is_down_may_refuse_its_far_end(read: Read) -> None:
    name = "error.nvmlDeviceGetNvLinkRemoteDeviceType"
    assert read({name: 999, **{f"gpu.{g}.nvlink.{n}.state": 0 for g in (0, 1) for n in range(4)}}
    ).problems == ()  # fmt: skip
    assert len(read({name: 999}).problems) == 1


@pytest.mark.parametrize(
    ("level", "path"),
    [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")],
)
def test_other_paths_are_named_as_nvidia_smi_does(read: Read, level: int, path: str) -> None:
    found = read({"topology.0.1": level, "p2p.0.1.2": 5, "p2p.0.1.0": 1, "p2p.0.1.1": 4})
    assert found.pairs == (Pair(0, 1, path, "chipset-not-supported", "disabled-by-regkey"),)


def test_mig_devices_are_listed_with_holes(read: Read) -> None:
    found = read(
        {
            "gpu.0.mig": 1,
            "gpu.0.mig_slots": 7,
            "gpu.0.mig.0.uuid": "MIG-a",
            "gpu.0.mig.0.name": "NVIDIA H100 MIG 1g.10gb",
            "gpu.0.mig.0.memory": 10 * GIB,
            "gpu.0.mig.3.uuid": "MIG-b",
        }
    )
    assert found.gpus[0].mig is True
    assert found.gpus[0].mig_devices == (
        Mig("MIG-a", "NVIDIA H100 MIG 1g.10gb", 10 * GIB),
        Mig("MIG-b"),
    )
    assert found.gpus[1].mig_devices == ()


@pytest.mark.parametrize(
    ("changes", "margin"),
    [
        pytest.param({"gpu.0.margin": 54, "gpu.0.field.194": -2}, 56, id="cool"),
        pytest.param({"gpu.0.margin": -3, "gpu.0.field.194": -2}, -1, id="beyond it"),
        pytest.param({"gpu.0.margin": 54}, None, id="no limit told"),
        pytest.param({"gpu.0.field.194": -2}, None, id="no margin told"),
    ],
)
def test_ada_and_later_tell_degrees_left(
    read: Read, changes: dict[str, object], margin: int | None
) -> None:
    assert read(changes).gpus[0].slowdown_margin_c == margin


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        pytest.param("0 0 0", ("not-supported", None, ()), id="no NVSwitch"),
        pytest.param("2 0 0", ("in-progress", None, ()), id="in progress"),
        pytest.param("2 999 0", ("in-progress", None, ()), id="no status before the end"),
        pytest.param("3 999 0", ("completed", "Unknown Error", ()), id="failed"),
        pytest.param("3 0 0x1", ("completed", None, ("bandwidth is degraded",)), id="degraded"),
        pytest.param("9 0 0", ("9", None, ()), id="a state of later drivers"),
    ],
)
def test_the_fabric_is_read(
    read: Read, fabric: str, expected: tuple[str, str | None, tuple[str, ...]]
) -> None:
    gpu = read({"gpu.0.fabric": fabric}).gpus[0]
    assert (gpu.fabric_state, gpu.fabric_status, gpu.fabric_health) == expected


def test_the_fabric_is_read_by_the_older_function_too(tmp_path: Path, read: Read) -> None:
    library = fake_driver.build(tmp_path, switches=("NO_FABRIC_V",))
    gpu = read({"gpu.0.fabric": "2 0 1"}, library).gpus[0]
    assert (gpu.fabric_state, gpu.fabric_health) == ("in-progress", ())


def test_a_lost_gpu_keeps_its_place_and_is_told_of(read: Read) -> None:
    found = read({"error.nvmlDeviceGetHandleByIndex.0": fake_driver.GPU_IS_LOST})
    assert found.gpus[0] == GpuState(0, failure="GPU is lost")
    assert found.gpus[1].temperature_c == 55
    assert found.pairs == (Pair(0, 1),)


def test_gpus_that_others_were_given_are_not_there(read: Read) -> None:
    found = read({"error.nvmlDeviceGetHandleByIndex.0": fake_driver.NO_PERMISSION})
    assert [(gpu.index, gpu.uuid) for gpu in found.gpus] == [(0, HOST["gpu.1.uuid"])]
    assert (found.problems, found.pairs) == ((), ())


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        pytest.param({"gpu.0.virtualization": 2}, "virtualization", "vgpu", id="a virtual GPU"),
        pytest.param({"gpu.0.addressing": 2}, "addressing", "ats", id="the CPU's memory is shared"),
        pytest.param({"gpu.0.fans": 0, "gpu.0.fan.0": None}, "fans_percent", None, id="no fan"),
        pytest.param({"gpu.0.fans": None}, "fans_percent", (35,), id="a driver that counts none"),
        pytest.param({"gpu.0.license": "1 0 Unlicensed"}, "license", "unlicensed", id="unlicensed"),
        pytest.param(
            {"gpu.0.license": "1 0 Unlicensed (Unrestricted)"},
            "license",
            "unlicensed (unrestricted)",
            id="unlicensed, and not yet restricted",
        ),
        pytest.param({"gpu.0.license": "0 0 N/A"}, "license", None, id="a feature not in use"),
        pytest.param({"gpu.0.license": None}, "license", None, id="nothing to license"),
        pytest.param({"gpu.0.display": 1}, "display", True, id="a screen"),
        pytest.param({"gpu.0.field.170": 10}, "c2c_links", 10, id="C2C"),
        pytest.param({"gpu.0.field.230": 1}, "recovery", "reset the GPU", id="a reset is needed"),
        pytest.param({"gpu.0.banks": "637 1 1 0 1"}, "spare_rows", (637, 1, 1, 0, 1), id="rows"),
        pytest.param({"gpu.0.sram_threshold": 1}, "sram_threshold_exceeded", True, id="SRAM"),
        pytest.param({"error.nvmlDeviceValidateInforom.0": 14}, "inforom_corrupt", True,
                     id="infoROM"),
        pytest.param({"error.nvmlDeviceGetMemoryInfo.0": fake_driver.GPU_IS_LOST}, "failure",
                     "GPU is lost", id="a GPU that was lost while NVML had it"),
        pytest.param({"gpu.0.field.230": None, "gpu.0.field.226": 1}, "recovery", "reset the GPU",
                     id="a reset is needed, by a driver before 570"),
        pytest.param({"gpu.0.fabric": "3 0 0 2"}, "fabric_health",
                     ("the driver calls it unhealthy",), id="the fabric's summary"),
    ],
)  # fmt: skip
def test_what_newer_drivers_say_is_read(
    read: Read, changes: dict[str, object | None], field: str, value: object
) -> None:
    assert getattr(read(changes).gpus[0], field) == value


def test_confidential_computing_is_seen(read: Read) -> None:
    assert read({"confidential": 1}).confidential is True


def test_a_driver_of_the_second_fabric_structure_is_asked_by_it(tmp_path: Path, read: Read) -> None:
    library = fake_driver.build(tmp_path, switches=("NO_FABRIC_3",))
    found = read({"gpu.0.fabric": "3 0 1 2"}, library).gpus[0]
    assert (found.fabric_state, found.fabric_health) == ("completed", ("bandwidth is degraded",))


def test_what_each_gpu_refuses_is_kept(read: Read) -> None:
    found = read({"error.nvmlDeviceGetTemperature.1": fake_driver.UNKNOWN})
    refused = [dict(gpu.refused).get("nvmlDeviceGetTemperature") for gpu in found.gpus]
    assert refused == [None, fake_driver.UNKNOWN]
    assert dict(found.gpus[0].refused)["nvmlDeviceGetMarginTemperature"] == 3  # not supported


def test_excluded_gpus_are_listed(new: Path, settings: Callable[..., None]) -> None:
    settings({"excluded": 2, "excluded.0": "00000000:B3:00.0", "excluded.1": "00000000:C3:00.0"})
    seen = nvml.read(lambda name: ctypes.CDLL(str(new / name)))
    assert seen.excluded == ("00000000:B3:00.0", "00000000:C3:00.0")
    assert seen.error is None


def test_a_refusal_is_told_once_and_the_rest_is_read(read: Read) -> None:
    found = read({"error.nvmlDeviceGetPowerUsage": fake_driver.NO_PERMISSION})
    assert [gpu.power_w for gpu in found.gpus] == [None, None]
    assert found.problems == ("nvmlDeviceGetPowerUsage: Insufficient Permissions (4)",)
    assert found.error is None


def test_nvml_that_does_not_start_says_why(read: Read) -> None:
    found = read({"error.nvmlInit": fake_driver.LIB_RM_VERSION_MISMATCH})
    assert found == State(error="nvmlInit_v2: Driver/library version mismatch (18)", found=True)


def test_without_the_library_there_is_none() -> None:
    def load(name: str) -> ctypes.CDLL:
        return ctypes.CDLL("/nonexistent/" + name)

    assert state.read(load).found is False
    assert "cannot open shared object file" in str(state.read(load).error)


def test_a_damaged_library_is_found_and_fails(tmp_path: Path) -> None:
    (tmp_path / fake_driver.LIBRARY).write_text("not a library")
    found = state.read(lambda name: ctypes.CDLL(str(tmp_path / name)))
    assert found.found is True
    assert found.error


def test_nvml_is_let_go_of(read: Read, tmp_path: Path) -> None:
    read()
    assert (tmp_path / "s.log").read_text().splitlines()[-1] == "nvmlShutdown -1"


def test_live_readings_follow_the_card(new: Path, settings: Callable[..., None]) -> None:
    settings({})
    live = state.Live(lambda name: ctypes.CDLL(str(new / name)))
    assert [gpu.utilization_percent for gpu in live.gpus()] == [97, 97]
    settings({"gpu.1.utilization": 3, "gpu.1.throttle": 0x20})
    (gpu,) = live.gpus((1,))
    assert (gpu.index, gpu.utilization_percent, gpu.throttle_reasons) == (
        1,
        3,
        ("sw_thermal_slowdown",),
    )
    assert gpu.clock_sm_max_mhz == 1980
    assert live.gpus((7,)) == ()
    live.close()
    assert live.gpus() == ()


def test_live_readings_without_nvml_are_none() -> None:
    def load(name: str) -> ctypes.CDLL:
        return ctypes.CDLL("/nonexistent/" + name)

    live = state.Live(load)
    assert live.failed.found is False
    assert live.gpus() == ()
    live.close()


def pack(entries: list[tuple[int, int]], stride: int, room: int) -> bytes:
    raw = bytearray(nvml_types.BLANK * (room * 32))
    for i, (pid, used) in enumerate(entries):
        body = pid.to_bytes(4, "little") + b"\0" * 4 + used.to_bytes(8, "little")
        body += b"\xff" * 8 + b"\0" * 8
        raw[i * stride : (i + 1) * stride] = body[:stride]
    return bytes(raw)


@given(
    st.lists(st.tuples(st.integers(1, 1 << 22), st.integers(0, 1 << 40)), min_size=1, max_size=40),
    st.sampled_from(nvml_types.STRIDES),
)
def test_processes_are_read_whatever_their_layout(
    entries: list[tuple[int, int]], stride: int
) -> None:
    found = nvml_types.unpack_processes(pack(entries, stride, 2 * len(entries) + 5), len(entries))
    assert [(p.pid, p.used_bytes) for p in found] == entries


@pytest.mark.parametrize("stride", [16, 24, 32])
def test_the_layout_of_each_driver_is_understood(read: Read, old: Path, stride: int) -> None:
    found = read({"process_stride": stride}, *([old] if stride == 16 else []))
    assert found.gpus[0].processes == (GpuProcess(4711, GIB), GpuProcess(4712, None))


def test_no_processes_is_an_answer(read: Read) -> None:
    assert read({"gpu.0.processes": ""}).gpus[0].processes == ()


CROSS = """
import json, pynvml as p
from verify.device import state
from verify.device.telemetry import GpuState
p.nvmlInit()
rows = []
for i in range(p.nvmlDeviceGetCount()):
    h = p.nvmlDeviceGetHandleByIndex(i)
    memory = p.nvmlDeviceGetMemoryInfo(h, p.nvmlMemory_v2)
    rates = p.nvmlDeviceGetUtilizationRates(h)
    (limit,) = p.nvmlDeviceGetFieldValues(h, [p.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT])
    rows.append({
        "name": p.nvmlDeviceGetName(h), "uuid": p.nvmlDeviceGetUUID(h),
        "bus_id": p.nvmlDeviceGetPciInfo(h).busId, "mig": bool(p.nvmlDeviceGetMigMode(h)[0]),
        "memory_total_bytes": memory.total, "memory_used_bytes": memory.used,
        "processes": [[q.pid, q.usedGpuMemory] for q in p.nvmlDeviceGetComputeRunningProcesses(h)],
        "utilization_percent": rates.gpu, "memory_utilization_percent": rates.memory,
        "temperature_c": p.nvmlDeviceGetTemperature(h, p.NVML_TEMPERATURE_GPU),
        "slowdown_c": p.nvmlDeviceGetTemperatureThreshold(h, p.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        "slowdown_margin_c": p.nvmlDeviceGetMarginTemperature(h) - limit.value.siVal,
        "power_w": p.nvmlDeviceGetPowerUsage(h) / 1000,
        "power_limit_w": p.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
        "clock_sm_mhz": p.nvmlDeviceGetClockInfo(h, p.NVML_CLOCK_SM),
        "clock_sm_max_mhz": p.nvmlDeviceGetMaxClockInfo(h, p.NVML_CLOCK_SM),
        "clock_memory_mhz": p.nvmlDeviceGetClockInfo(h, p.NVML_CLOCK_MEM),
        "clock_memory_max_mhz": p.nvmlDeviceGetMaxClockInfo(h, p.NVML_CLOCK_MEM),
        "throttle": p.nvmlDeviceGetCurrentClocksThrottleReasons(h),
        "persistence": bool(p.nvmlDeviceGetPersistenceMode(h)),
        "ecc_enabled": bool(p.nvmlDeviceGetEccMode(h)[0]),
        "ecc_corrected": p.nvmlDeviceGetTotalEccErrors(
            h, p.NVML_MEMORY_ERROR_TYPE_CORRECTED, p.NVML_VOLATILE_ECC),
        "ecc_uncorrected": p.nvmlDeviceGetTotalEccErrors(
            h, p.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, p.NVML_VOLATILE_ECC),
        "ecc_uncorrected_ever": p.nvmlDeviceGetTotalEccErrors(
            h, p.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, p.NVML_AGGREGATE_ECC),
        "retired_pages": sum(len(p.nvmlDeviceGetRetiredPages(h, c)) for c in (0, 1)),
        "retired_pending": bool(p.nvmlDeviceGetRetiredPagesPendingStatus(h)),
        "remapped": list(p.nvmlDeviceGetRemappedRows(h)),
        "pcie_generation": p.nvmlDeviceGetCurrPcieLinkGeneration(h),
        "pcie_generation_max": p.nvmlDeviceGetMaxPcieLinkGeneration(h),
        "pcie_generation_card": p.nvmlDeviceGetGpuMaxPcieLinkGeneration(h),
        "pcie_replays": p.nvmlDeviceGetPcieReplayCounter(h),
        "display": bool(p.nvmlDeviceGetDisplayActive(h)),
        "fans_percent": [p.nvmlDeviceGetFanSpeed_v2(h, fan) for fan in range(2)],
        "license": {1: "licensed"}[
            p.nvmlDeviceGetGridLicensableFeatures(h).gridLicensableFeatures[0].featureState],
        "spare_rows": [getattr(p.nvmlDeviceGetRowRemapperHistogram(h), n)
                       for n in ("max", "high", "partial", "low", "none")],
        "virtualization": {1: "passthrough"}[p.nvmlDeviceGetVirtualizationMode(h)],
        "addressing": {0: "none"}[p.nvmlDeviceGetAddressingMode(h)],
        "pcie_width": p.nvmlDeviceGetCurrPcieLinkWidth(h),
        "pcie_width_max": p.nvmlDeviceGetMaxPcieLinkWidth(h),
        "nvlinks": [
            [n, bool(s), p.nvmlDeviceGetFieldValues(h, [(p.NVML_FI_DEV_NVLINK_GET_SPEED, n)])[0]
                 .value.uiVal / 1000 if s else None,
             sum(p.nvmlDeviceGetNvLinkErrorCounter(h, n, c) for c in range(4))]
            for n in range(4) for s in [p.nvmlDeviceGetNvLinkState(h, n)]
        ],
    })
    info = p.c_nvmlGpuFabricInfoV_t()
    p.nvmlDeviceGetGpuFabricInfoV(h, p.byref(info))
    rows[-1]["fabric"] = info.state
h0, h1 = p.nvmlDeviceGetHandleByIndex(0), p.nvmlDeviceGetHandleByIndex(1)
pair = [p.nvmlDeviceGetTopologyCommonAncestor(h0, h1),
        p.nvmlDeviceGetP2PStatus(h0, h1, 0), p.nvmlDeviceGetP2PStatus(h0, h1, 1)]
import dataclasses
print(json.dumps({"pynvml": rows, "pair": pair, "ours": dataclasses.asdict(state.read())}))
"""


def test_pynvml_reads_the_same_from_the_same_library(new: Path, tmp_path: Path) -> None:
    more = {"gpu.0.margin": 40, "gpu.1.margin": -1, "p2p.0.1.2": 5, "p2p.0.1.1": 1}
    more |= {f"gpu.{gpu}.field.194": -2 for gpu in (0, 1)}
    path = fake_driver.write_settings(tmp_path / "settings", {**HOST, **more})
    said = json.loads(fake_driver.run_python(CROSS, new, path))
    for theirs, ours in zip(said["pynvml"], said["ours"]["gpus"], strict=True):
        seen = {
            **ours,
            "processes": [[p["pid"], p["used_bytes"]] for p in ours["processes"]],
            "nvlinks": [[n["link"], n["active"], n["gbs"], n["errors"]] for n in ours["nvlinks"]],
        }
        throttle, remapped = theirs.pop("throttle"), theirs.pop("remapped")
        fabric = theirs.pop("fabric")
        assert {key: seen[key] for key in theirs} == theirs
        assert list(nvml_types.throttle_names(throttle)) == ours["throttle_reasons"]
        assert remapped[1:] == [
            ours["remapped_rows"],
            int(ours["remap_pending"]),
            int(ours["remap_failed"]),
        ]
        assert nvml_types.FABRIC_STATES[fabric] == ours["fabric_state"]
    level, can_read, can_write = said["pair"]
    (pair,) = said["ours"]["pairs"]
    assert pair["path"] == nvml_types.PATHS[level]
    assert [pair["can_read"], pair["can_write"]] == [
        nvml_types.P2P[can_read],
        nvml_types.P2P[can_write],
    ]


def test_state_and_identity_agree(new: Path, settings: Callable[..., None]) -> None:
    settings({})

    def load(name: str) -> ctypes.CDLL:
        return ctypes.CDLL(str(new / name))

    names = [field.name for field in fields(nvml.NvmlGpu)]
    whole, short = state.read(load), nvml.read(load)
    assert whole.driver == short.driver
    assert [[getattr(gpu, name) for name in names] for gpu in whole.gpus] == [
        [getattr(gpu, name) for name in names] for gpu in short.gpus
    ]
