"""Facts from files: the kernel's, the distribution's, the driver's."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.host import proc, system
from provision.host.machine import ProbedMachine
from provision.model.plan import Gpu

PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  515.65.01  Wed Jul 20 14:00:58 UTC 2022\n"
    "GCC version:  gcc version 11.2.0 (Ubuntu 11.2.0-19ubuntu1)\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build"
    "  (dvs-builder@U16-A24-9-2)  Thu Oct 10 12:15:00 UTC 2024\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param(PROPRIETARY, "515.65.01", id="the proprietary module"),
        pytest.param(OPEN, "565.57.01", id="the open module"),
        pytest.param(OPEN.replace("x86_64", "aarch64"), "565.57.01", id="the open module on Arm"),
        pytest.param("NVRM version: NVIDIA\n", None, id="no version in it"),
        pytest.param("GCC version:  gcc version 13.3.0\n", None, id="the compiler's is not it"),
        pytest.param("", None, id="empty"),
    ],
)
def test_the_driver_is_in_proc(text: str, version: str | None) -> None:
    assert proc.parse_nvrm(text) == version


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        pytest.param(
            "Model: \t\t NVIDIA A10\nIRQ:   \t\t 72\nGPU UUID: \t GPU-5a1c\nVideo BIOS: \t 94\n",
            Gpu(name="NVIDIA A10", uuid="GPU-5a1c"), id="a GPU in use"),
        pytest.param(
            "Model: \t\t Tesla T4\nGPU UUID: \t GPU-????????-????-????-????-????????????\n",
            Gpu(name="Tesla T4"), id="a GPU that was never opened has no UUID yet"),
        pytest.param("IRQ: 72\n", None, id="nothing to know it by"),
    ],
)  # fmt: skip
def test_a_gpu_is_in_proc(text: str, gpu: Gpu | None) -> None:
    assert proc.parse_gpu_information(text) == gpu


@pytest.mark.parametrize(
    ("text", "wsl"),
    [
        pytest.param("Linux version 5.15.146.1-microsoft-standard-WSL2", True, id="WSL2"),
        pytest.param("Linux version 4.4.0-19041-Microsoft", True, id="WSL1"),
        pytest.param("Linux version 6.1.0-18-amd64 (debian-kernel@...)", False, id="Debian"),
    ],
)
def test_wsl_is_in_the_kernels_name(text: str, *, wsl: bool) -> None:
    assert proc.parse_wsl(text) is wsl


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="22.04"\n', ("ubuntu", "22.04"), id="Ubuntu"
        ),
        pytest.param("ID=debian\nVERSION_ID='12'\n", ("debian", "12"), id="single quotes"),
        pytest.param("ID=arch\nBUILD_ID=rolling\n", ("arch", None), id="a rolling release"),
        pytest.param(
            'ID="rocky"\r\nVERSION_ID="9.4"\r\n', ("rocky", "9.4"), id="Windows line ends"
        ),
        pytest.param("VARIANT_ID=server\n", (None, None), id="VARIANT_ID is not ID"),
        pytest.param("", (None, None), id="empty"),
    ],
)
def test_the_distribution_is_in_os_release(
    text: str, expected: tuple[str | None, str | None]
) -> None:
    assert system.distribution(text) == expected


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param("glibc 2.36", "2.36", id="Debian 12"),
        pytest.param("glibc 2.40.9000", "2.40", id="a development version"),
        pytest.param(None, None, id="no answer, as from musl"),
        pytest.param("musl 1.2", None, id="another library"),
    ],
)
def test_the_c_library_says_its_version(text: str | None, version: str | None) -> None:
    assert system.parse_confstr(text) == version


def link(root: Path, directory: str, name: str, target: str) -> None:
    (root / directory).mkdir(parents=True, exist_ok=True)
    (root / directory / target).touch()
    (root / directory / name).symlink_to(target)


def test_the_user_mode_driver_is_in_its_files_name(tmp_path: Path) -> None:
    link(tmp_path, "usr/lib64", "libnvidia-ml.so.1", "libnvidia-ml.so.535.104.05")
    reading = system.read_libraries(ProbedMachine(root=tmp_path))
    assert (reading.source, reading.user_mode_driver) == ("libnvidia-ml.so.1", "535.104.05")


def test_the_compat_package_does_not_count_while_nvml_is_there(tmp_path: Path) -> None:
    link(tmp_path, "usr/local/compat", "libcuda.so.1", "libcuda.so.560.28.03")
    link(tmp_path, "usr/lib64", "libnvidia-ml.so.1", "libnvidia-ml.so.535.104.05")
    env = {"LD_LIBRARY_PATH": "/usr/local/compat"}
    assert (
        system.read_libraries(ProbedMachine(root=tmp_path, env=env)).user_mode_driver
        == "535.104.05"
    )


def test_the_linkers_cache_names_other_directories(tmp_path: Path) -> None:
    link(tmp_path, "opt/nvidia/lib", "libcuda.so.1", "libcuda.so.470.57.02")
    (tmp_path / "etc").mkdir()
    cache = b"glibc-ld.so.cache1.1\0\1\2libcuda.so.1\0/opt/nvidia/lib/libcuda.so.1\0libm.so.6\0"
    (tmp_path / "etc/ld.so.cache").write_bytes(cache)
    assert system.read_libraries(ProbedMachine(root=tmp_path)).user_mode_driver == "470.57.02"


def test_a_library_without_a_version_in_its_name_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "usr/lib/wsl/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/wsl/lib/libcuda.so.1").touch()
    reading = system.read_libraries(ProbedMachine(root=tmp_path))
    assert reading.user_mode_driver is None
    assert reading.failed == "libcuda.so.1 does not say its version in its file name"
