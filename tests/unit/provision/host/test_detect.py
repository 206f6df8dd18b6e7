"""The whole of detection over made-up root trees, and once over this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from provision.errors import BadInputError, Exit
from provision.host import detect
from provision.host.nvml import NvmlModule
from provision.host.runner import ProgramResult, ProgramRunner, local_runner
from provision.model.facts import host_to_json, parse_host
from provision.model.plan import Gpu, HostFacts
from tests import DATA
from tests.kit.cases import cases

SMI = DATA / "nvidia_smi"
UUID = "GPU-3fb6b3a4-0000-4000-8000-9a2ed4b9e1c7"
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  515.65.01  Wed Jul 20 14:00:58 2022\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  (x@y)\n"


class NvmlError(Exception):
    """As pynvml raises it: `value` is the return code."""

    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class FakeNvml:
    """One GPU, or with `error` an nvmlInit that fails."""

    def __init__(self, *, driver: str = "515.65.01", error: int = 0) -> None:
        self.driver = driver
        self.error = error

    def __call__(self) -> NvmlModule:
        return cast("NvmlModule", self)

    def __getattr__(self, name: str) -> Callable[..., object]:
        answers: dict[str, object] = {
            "nvmlShutdown": None,
            "nvmlSystemGetDriverVersion": self.driver,
            "nvmlSystemGetNVMLVersion": f"11.{self.driver}",
            "nvmlSystemGetCudaDriverVersion_v2": 11070,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": 1,
            "nvmlDeviceGetName": "NVIDIA GeForce RTX 3090",
            "nvmlDeviceGetUUID": UUID,
            "nvmlDeviceGetCudaComputeCapability": (8, 6),
            "nvmlDeviceGetMemoryInfo": type("Memory", (), {"total": 24576 << 20}),
            "nvmlDeviceGetMigMode": [0, 0],
        }

        def call(*_: object) -> object:
            if self.error:
                raise NvmlError(self.error)
            return answers.get(name)

        return call


NO_LIBRARY = FakeNvml(error=12)
RTX_3090 = Gpu(
    name="NVIDIA GeForce RTX 3090",
    compute_capability=(8, 6),
    memory_mib=24576,
    uuid=UUID,
    mig=False,
)


def nothing_installed(argv: Sequence[str], timeout_s: float, /) -> ProgramResult:
    assert timeout_s > 0
    return ProgramResult(problem=f"{argv[0]} was not found")


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def pci(address: str, *, vendor: str = "0x10de", kind: str = "0x030000") -> dict[str, str]:
    at = f"sys/bus/pci/devices/{address}"
    return {f"{at}/vendor": vendor + "\n", f"{at}/class": kind + "\n", f"{at}/device": "0x2204\n"}


LINUX = {"proc/version": "Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org)"}
UBUNTU = {**LINUX, "etc/os-release": 'ID=ubuntu\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu"\n'}
DEBIAN = {**LINUX, "usr/lib/os-release": 'ID=debian\nVERSION_ID="12"\n'}
NIC = pci("0000:00:01.0", vendor="0x8086", kind="0x020000")


def read(
    root: Path,
    *,
    nvml: FakeNvml = NO_LIBRARY,
    run: ProgramRunner = nothing_installed,
    env: Mapping[str, str] | None = None,
) -> HostFacts:
    return detect(root=root, env={"PATH": "", **(env or {})}, run=run, nvml_loader=nvml)


def reasons(facts: HostFacts, fact: str) -> dict[str, str]:
    return {row.source: row.reason for row in facts.absent if row.fact == fact}


@cases(
    "files driver source",
    ("/sys comes first",
     {"sys/module/nvidia/version": "515.65.01\n", "proc/driver/nvidia/version": OPEN}, "515.65.01",
     "/sys/module/nvidia/version"),
    ("then /proc, of the proprietary module", {"proc/driver/nvidia/version": PROPRIETARY},
     "515.65.01", "/proc/driver/nvidia/version"),
    ("or of the open one", {"proc/driver/nvidia/version": OPEN}, "565.57.01",
     "/proc/driver/nvidia/version"),
    ("a file without a version is passed over",
     {"sys/module/nvidia/version": "\0\0", "proc/driver/nvidia/version": OPEN}, "565.57.01",
     "/proc/driver/nvidia/version"),
)  # fmt: skip
def test_the_kernel_is_asked_for_the_driver_in_order(
    tmp_path: Path, files: dict[str, str], driver: str, source: str
) -> None:
    facts = read(tree(tmp_path, files))
    assert facts.driver == driver
    assert dict(facts.sources)["driver"] == source


def test_a_whole_host_is_read(tmp_path: Path) -> None:
    root = tree(tmp_path, {**UBUNTU, "sys/module/nvidia/version": "515.65.01\n"})
    facts = read(root, nvml=FakeNvml())
    assert facts.driver == facts.user_mode_driver == "515.65.01"
    assert facts.driver_cuda == "11.7"
    assert facts.gpus == (RTX_3090,)
    assert (facts.os_id, facts.os_version, facts.wsl) == ("ubuntu", "22.04", False)
    assert dict(facts.sources)["driver"] == "/sys/module/nvidia/version"
    assert dict(facts.sources)["gpus"] == "nvml"
    assert reasons(facts, "driver agreement") == {}


def test_debian_keeps_its_release_file_elsewhere(tmp_path: Path) -> None:
    facts = read(tree(tmp_path, DEBIAN))
    assert (facts.os_id, facts.os_version) == ("debian", "12")
    assert dict(facts.sources)["os"] == "/usr/lib/os-release"


def test_no_gpu_at_all_is_none_there_and_no_driver(tmp_path: Path) -> None:
    facts = read(tree(tmp_path, {**DEBIAN, **NIC}))
    assert facts.gpus == ()
    assert facts.driver is None
    assert reasons(facts, "driver") == {
        "/sys/module/nvidia/version": "no such file",
        "/proc/driver/nvidia/version": "no such file",
        "nvml": "libnvidia-ml.so.1 is not in the linker path",
        "nvidia-smi": "nvidia-smi was not found",
    }


PCI = "/sys/bus/pci/devices"


@cases(
    "files why",
    ("a GPU without a driver", pci("0000:01:00.0"),
     "an NVIDIA GPU is on the PCI bus (10de:2204) but no driver is loaded"),
    ("two of them, one without a display",
     {**pci("0000:01:00.0"), **pci("0000:02:00.0", kind="0x030200")},
     "2 NVIDIA GPUs are on the PCI bus (10de:2204) but no driver is loaded"),
    ("a GPU whose driver does not answer",
     {**pci("0000:01:00.0"), "sys/module/nvidia/version": "515.65.01"},
     "an NVIDIA GPU is on the PCI bus (10de:2204) but the driver does not answer"),
    ("no bus to look at", {}, "the PCI bus cannot be read"),
    ("a device file", {**NIC, "dev/nvidia0": ""}, "/dev/nvidia0 is there, so a GPU may be"),
    ("a Jetson", {**NIC, "etc/nv_tegra_release": "# R36"},
     "a Tegra: its GPU is not on the PCI bus"),
)  # fmt: skip
def test_gpus_are_unknown_unless_there_are_certainly_none(
    tmp_path: Path, files: dict[str, str], why: str
) -> None:
    facts = read(tree(tmp_path, {**DEBIAN, **files}))
    assert facts.gpus is None
    assert reasons(facts, "gpus")[PCI] == why


@cases(
    "device",
    ("a GPU's sound device", pci("0000:01:00.1", kind="0x040300")),
    ("an NVSwitch bridge", pci("0000:01:00.2", kind="0x068000")),
    ("another maker's GPU", pci("0000:00:02.0", vendor="0x1002")),
    ("garbage", {"sys/bus/pci/devices/0000:00:03.0/vendor": "garbage"}),
)
def test_other_devices_are_no_nvidia_gpu(tmp_path: Path, device: dict[str, str]) -> None:
    assert read(tree(tmp_path, {**DEBIAN, **device})).gpus == ()


def test_wsl_has_its_gpu_off_the_bus(tmp_path: Path) -> None:
    files = {
        **NIC,
        "proc/version": "Linux version 5.15.146.1-microsoft-standard-WSL2 (root@65c757a075e2)",
        "dev/dxg": "",
    }
    facts = read(tree(tmp_path, files))
    assert facts.wsl is True
    assert facts.gpus is None
    assert "WSL2" in reasons(facts, "gpus")[PCI]


def test_wsl_with_nvml_is_a_whole_host(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/sys/fs/binfmt_misc/WSLInterop": "enabled\n"})
    facts = read(root, nvml=FakeNvml(driver="546.80"))
    assert (facts.wsl, facts.driver) == (True, "546.80")
    assert dict(facts.sources)["driver"] == "nvml"


def test_nvidia_smi_answers_where_nvml_cannot(tmp_path: Path) -> None:
    def run(argv: Sequence[str], timeout_s: float, /) -> ProgramResult:
        if argv[0] != "/usr/bin/nvidia-smi":
            return nothing_installed(argv, timeout_s)
        line = f"NVIDIA L4, {UUID}, 8.9, 23034, [N/A]\n"
        return ProgramResult(
            code=0, out=(SMI / "header_550.txt").read_text() if len(argv) == 1 else line
        )

    program = tmp_path / "usr/bin/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    facts = read(tmp_path, run=run)
    assert (facts.driver, facts.driver_cuda) == ("550.135", "12.4")
    assert [gpu.name for gpu in facts.gpus or ()] == ["NVIDIA L4"]
    assert dict(facts.sources)["gpus"] == "nvidia-smi"
    assert reasons(facts, "gpus") == {"nvml": "libnvidia-ml.so.1 is not in the linker path"}


def test_nvidia_smi_is_not_run_where_nvml_answered(tmp_path: Path) -> None:
    asked: list[str] = []

    def run(argv: Sequence[str], timeout_s: float, /) -> ProgramResult:
        asked.append(argv[0])
        return nothing_installed(argv, timeout_s)

    read(tmp_path, nvml=FakeNvml(), run=run)
    assert asked == []


def test_an_nvidia_smi_that_hangs_is_a_row(tmp_path: Path) -> None:
    program = tmp_path / "bin/nvidia-smi"
    tree(tmp_path, {"bin/nvidia-smi": "#!/bin/sh\nsleep 60\n"})
    program.chmod(0o755)
    real = local_runner({"PATH": "/usr/bin:/bin"})

    def run(argv: Sequence[str], timeout_s: float, /) -> ProgramResult:
        assert timeout_s == 10
        return real([str(program), *argv[1:]], 0.2)

    facts = read(tmp_path, run=run)
    assert reasons(facts, "driver")["nvidia-smi"] == "nvidia-smi did not answer within 0.2 s"


def test_names_are_in_proc_when_all_else_fails(tmp_path: Path) -> None:
    at = "proc/driver/nvidia/gpus/0000:01:00.0/information"
    files = {"sys/module/nvidia/version": "515.65.01", at: "Model: \t NVIDIA A10\nIRQ: 7\n"}
    facts = read(tree(tmp_path, files), nvml=FakeNvml(error=999))
    assert facts.gpus == (Gpu(name="NVIDIA A10"),)
    assert dict(facts.sources)["gpus"] == "/proc/driver/nvidia/gpus"


def test_an_upgrade_without_a_reboot_is_seen_by_nvml(tmp_path: Path) -> None:
    root = tree(tmp_path, {"sys/module/nvidia/version": "515.65.01"})
    facts = read(root, nvml=FakeNvml(driver="535.104.05"))
    assert facts.driver == "515.65.01"
    assert reasons(facts, "driver agreement") == {
        "nvml": "/sys/module/nvidia/version says 515.65.01, nvml says 535.104.05: "
        "reboot, or reload the nvidia kernel modules"
    }


def test_an_upgrade_without_a_reboot_is_seen_in_the_files(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {"sys/module/nvidia/version": "515.65.01", "usr/lib64/libnvidia-ml.so.535.104.05": ""},
    )
    (root / "usr/lib64/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.535.104.05")
    facts = read(root, nvml=FakeNvml(error=18))
    assert (facts.driver, facts.user_mode_driver) == ("515.65.01", "535.104.05")
    assert reasons(facts, "driver agreement") == {
        "libnvidia-ml.so.1": "the kernel module is 515.65.01, the libraries are 535.104.05: "
        "reboot, or reload the nvidia kernel modules"
    }


def test_a_stated_driver_goes_before_what_is_there(tmp_path: Path) -> None:
    root = tree(tmp_path, {"sys/module/nvidia/version": "515.65.01"})
    facts = read(root, nvml=FakeNvml(), env={"PROVISION_DRIVER": " 470.57.02 "})
    assert facts.driver == "470.57.02"
    assert dict(facts.sources)["driver"] == "PROVISION_DRIVER"
    assert reasons(facts, "driver agreement") == {}


def test_an_empty_stated_driver_is_none(tmp_path: Path) -> None:
    assert read(tmp_path, env={"PROVISION_DRIVER": ""}).driver is None


def test_a_stated_driver_that_is_no_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="got 'latest'") as caught:
        read(tmp_path, env={"PROVISION_DRIVER": "latest"})
    assert caught.value.exit_code == Exit.USAGE
    assert 'PROVISION_DRIVER="515.65.01"' in caught.value.fix


def test_what_detection_prints_is_a_host_file(tmp_path: Path) -> None:
    root = tree(tmp_path, {**UBUNTU, "sys/module/nvidia/version": "515.65.01"})
    facts = read(root, nvml=FakeNvml())
    text = json.dumps(host_to_json(facts))
    assert parse_host(text, label=facts.label) == facts


def test_this_machine_is_read_in_time_and_fits_the_contract() -> None:
    started = time.monotonic()
    facts = detect()
    assert time.monotonic() - started < 60
    assert parse_host(json.dumps(host_to_json(facts)), label="x") == facts._replace(label="x")
    assert facts.arch in {"x86_64", "aarch64"}
