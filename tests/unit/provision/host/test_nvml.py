"""NVML through the real pynvml, which loads the fake driver of tests/fake_driver."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from provision.host.nvml import NvmlModule, parse_cuda_version, parse_nvml_version, read_nvml
from tests import fake_driver
from tests.fake_driver import GPU_IS_LOST
from tests.kit.cases import cases

CODE = """
import json, warnings
from pathlib import Path
from provision.model.facts import host_to_json
from provision.host import detect
from provision.host.runner import ProgramResult
warnings.simplefilter("error")
def run(argv, timeout_s, /):
    return ProgramResult(problem=f"{argv[0]} was not found")
print(json.dumps(host_to_json(detect(root=Path("/nonexistent"), env={}, run=run))))
"""
HOST: dict[str, object] = {
    "driver": "550.54.15", "nvml": "12.550.54.15", "cuda": 12040, "count": 2,
    "gpu.0.name": "NVIDIA H100 80GB HBM3", "gpu.0.uuid": "GPU-00000000-0000-4000-8000-000000000000",
    "gpu.0.capability": "9.0", "gpu.0.memory": 85520809984, "gpu.0.mig": 1,
    "gpu.1.name": "NVIDIA L4", "gpu.1.uuid": "GPU-00000000-0000-4000-8000-000000000001",
    "gpu.1.capability": "8.9", "gpu.1.memory": 24152899584,
}  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def detected(library: Path, tmp_path: Path) -> Callable[[dict[str, object]], dict[str, Any]]:
    def detect(settings: dict[str, object]) -> dict[str, Any]:
        path = fake_driver.write_settings(tmp_path / "settings", settings)
        return cast("dict[str, Any]", json.loads(fake_driver.run_python(CODE, library, path)))

    return detect


Detected = Callable[[dict[str, object]], dict[str, Any]]


def rows(facts: dict[str, Any], source: str = "nvml") -> dict[str, str]:
    return {row["fact"]: row["reason"] for row in facts["absent"] if row["source"] == source}


def test_every_fact_comes_from_nvml(detected: Detected) -> None:
    facts = detected(HOST)
    assert facts["driver"] == "550.54.15"
    assert facts["user_mode_driver"] == "550.54.15"
    assert facts["driver_cuda"] == "12.4"
    assert facts["gpus"] == [
        {
            "name": "NVIDIA H100 80GB HBM3",
            "compute_capability": "9.0",
            "memory_mib": 81559,
            "uuid": "GPU-00000000-0000-4000-8000-000000000000",
            "mig": True,
        },
        {
            "name": "NVIDIA L4",
            "compute_capability": "8.9",
            "memory_mib": 23034,
            "uuid": "GPU-00000000-0000-4000-8000-000000000001",
            "mig": False,
        },
    ]
    assert rows(facts) == {}
    assert {facts["sources"][fact] for fact in ("driver", "driver_cuda", "gpus")} == {"nvml"}


@cases(
    "code why",
    ("no module", fake_driver.DRIVER_NOT_LOADED, "kernel module is not loaded"),
    ("half an upgrade", fake_driver.LIB_RM_VERSION_MISMATCH, "differ in version: reboot"),
    ("unknown", fake_driver.UNKNOWN, "Unknown Error: see dmesg"),
    ("no permission", fake_driver.NO_PERMISSION, "no permission"),
    ("a code that pynvml has no text for", 27, "NVML Error with code 27"),
)
def test_nvml_that_does_not_start_says_why(detected: Detected, code: int, why: str) -> None:
    facts = detected({**HOST, "error.nvmlInit": code})
    assert facts["driver"] is None
    assert facts["gpus"] is None
    found = rows(facts)
    assert list(found) == ["driver", "user_mode_driver", "driver_cuda", "gpus"]
    assert all(why in reason for reason in found.values())


def test_without_the_library_nvml_says_so(tmp_path: Path) -> None:
    facts = json.loads(fake_driver.run_python(CODE, tmp_path, None))
    assert rows(facts)["driver"] == "libnvidia-ml.so.1 is not in the linker path"


def test_a_file_that_is_no_library_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / fake_driver.LIBRARY).write_text("INPUT(nothing)")
    facts = json.loads(fake_driver.run_python(CODE, tmp_path, None))
    assert "linker path" in rows(facts)["driver"]


def test_an_old_driver_lacks_functions_and_says_so(tmp_path: Path) -> None:
    library = fake_driver.build(tmp_path, old=True)
    settings = fake_driver.write_settings(tmp_path / "settings", {**HOST, "cuda": 10010})
    facts = json.loads(fake_driver.run_python(CODE, library, settings))
    assert facts["driver_cuda"] == "10.1"
    assert [gpu["mig"] for gpu in facts["gpus"]] == [None, None]
    assert rows(facts) == {
        f"gpus[{index}].mig": "this driver's NVML does not have that function" for index in (0, 1)
    }


@cases(
    "function",
    ("at its handle", "nvmlDeviceGetHandleByIndex"),
    ("at its first fact", "nvmlDeviceGetName"),
    ("at its last fact", "nvmlDeviceGetMigMode"),
)
def test_a_lost_gpu_leaves_the_others(detected: Detected, function: str) -> None:
    facts = detected({**HOST, f"error.{function}.0": GPU_IS_LOST})
    assert [gpu["name"] for gpu in facts["gpus"]] == ["NVIDIA L4"]
    assert list(rows(facts)) == ["gpus[0]"]
    assert "fell off the bus" in rows(facts)["gpus[0]"]


def test_all_gpus_lost_is_not_none_there(detected: Detected) -> None:
    facts = detected({**HOST, "error.nvmlDeviceGetHandleByIndex": GPU_IS_LOST})
    assert facts["gpus"] is None
    assert facts["driver"] == "550.54.15"
    assert {"gpus[0]", "gpus[1]"} <= set(rows(facts))


@cases(
    "error fact why",
    ("a container without the compute capability", {"error.nvmlSystemGetCudaDriverVersion_v2": 12},
     "driver_cuda", "libcuda.so.1 is not in the linker path"),
    ("CUDA zero", {"cuda": 0}, "driver_cuda", "not a CUDA version: 0"),
    ("no number", {"driver": "N/A"}, "driver", "not a version: 'N/A'"),
    ("too short", {"nvml": "12"}, "user_mode_driver", "no driver version in"),
    ("no count", {"error.nvmlDeviceGetCount": 999}, "gpus", "Unknown Error"),
    ("memory shared with the processor", {"error.nvmlDeviceGetMemoryInfo.1": 3},
     "gpus[1].memory_mib", "Not Supported"),
    ("bytes, no text", {"gpu.1.name": "\udcff\udcfe"}, "gpus[1].name", "can't decode"),
)  # fmt: skip
def test_one_fact_that_fails_costs_only_itself(
    library: Path, tmp_path: Path, error: dict[str, object], fact: str, why: str
) -> None:
    settings = "".join(f"{key} = {value}\n" for key, value in {**HOST, **error}.items())
    path = tmp_path / "settings"
    path.write_text(settings, errors="surrogateescape")
    facts = json.loads(fake_driver.run_python(CODE, library, path))
    assert why in rows(facts)[fact]
    assert len(rows(facts)) == 1
    others = {"driver", "user_mode_driver", "driver_cuda", "gpus"} - {fact}
    assert all(facts[other] is not None for other in others)


def test_nvml_without_gpus_is_none_there(detected: Detected) -> None:
    facts = detected({"driver": "550.54.15", "nvml": "12.550.54.15", "cuda": 12040, "count": 0})
    assert facts["gpus"] == []


@cases(
    "extra",
    ("after success", {}),
    ("after a failure", {"error.nvmlDeviceGetCount": 999}),
    ("after a lost GPU", {"error.nvmlDeviceGetName": GPU_IS_LOST}),
)
def test_nvml_is_always_shut_down(
    detected: Detected, tmp_path: Path, extra: dict[str, object]
) -> None:
    detected({**HOST, **extra})
    assert (tmp_path / "settings.log").read_text().splitlines()[-1] == "nvmlShutdown -1"


def test_a_failed_shutdown_is_a_row_and_no_more(detected: Detected) -> None:
    facts = detected({**HOST, "error.nvmlShutdown": 999})
    assert list(rows(facts)) == ["nvml shutdown"]
    assert len(facts["gpus"]) == 2


class BytesNvml:
    """pynvml as it was before it decoded its answers: a stand-in for the whole module."""

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    nvmlShutdown = nvmlInit  # noqa: N815

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"418.40.04"

    def nvmlSystemGetNVMLVersion(self) -> bytes:  # noqa: N802
        return b"10.418.40.04"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 10010

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 0


def test_bytes_are_as_good_as_text() -> None:
    reading = read_nvml(lambda: cast("NvmlModule", BytesNvml()))
    assert (reading.driver, reading.user_mode_driver) == ("418.40.04", "418.40.04")
    assert reading.driver_cuda == "10.1"


def test_a_driver_that_hangs_is_left_behind() -> None:
    over = threading.Event()

    class Hanging(BytesNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            over.wait(60)

    started = time.monotonic()
    reading = read_nvml(lambda: cast("NvmlModule", Hanging()), timeout_s=0.1)
    over.set()
    assert "did not answer within 0.1 s" in (reading.failed or "")
    assert time.monotonic() - started < 40


def test_without_the_python_package_nvml_says_so() -> None:
    def load() -> NvmlModule:
        raise ImportError("pynvml")

    assert "nvidia-ml-py is not installed" in (read_nvml(load).failed or "")


@cases(
    "version driver",
    ("the CUDA major goes first", "12.550.54.15", "550.54.15"),
    ("13", "13.580.65.06", "580.65.06"),
    ("an old one", "8.375.26", "375.26"),
    ("the driver alone", "550.54.15", "550.54.15"),
)
def test_nvmls_version_holds_the_drivers(version: str, driver: str) -> None:
    assert parse_nvml_version(version) == driver


@cases(
    "number version",
    ("12.4", 12040, "12.4"),
    ("11.7", 11070, "11.7"),
    ("13.0", 13000, "13.0"),
    ("a minor of two digits", 12100, "12.10"),
    ("no libcuda", 0, None),
    ("nonsense", -1, None),
)
def test_nvml_counts_cuda_in_thousands(number: int, version: str | None) -> None:
    assert parse_cuda_version(number) == version
