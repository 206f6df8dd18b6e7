"""Facts from files: the kernel's, the distribution's, the driver's."""

from __future__ import annotations

from pathlib import Path

from provision.host import proc, system
from provision.host.machine import ProbedMachine
from provision.model.plan import Gpu
from tests.kit.cases import cases

PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  515.65.01  Wed Jul 20 14:00:58 UTC 2022\n"
    "GCC version:  gcc version 11.2.0 (Ubuntu 11.2.0-19ubuntu1)\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build"
    "  (dvs-builder@U16-A24-9-2)  Thu Oct 10 12:15:00 UTC 2024\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)


@cases(
    "text version",
    ("the proprietary module", PROPRIETARY, "515.65.01"),
    ("the open module", OPEN, "565.57.01"),
    ("the open module on Arm", OPEN.replace("x86_64", "aarch64"), "565.57.01"),
    ("no version in it", "NVRM version: NVIDIA\n", None),
    ("the compiler's is not it", "GCC version:  gcc version 13.3.0\n", None),
    ("empty", "", None),
)
def test_the_driver_is_in_proc(text: str, version: str | None) -> None:
    assert proc.parse_nvrm(text) == version


@cases(
    "text gpu",
    ("a GPU in use",
     "Model: \t\t NVIDIA A10\nIRQ:   \t\t 72\nGPU UUID: \t GPU-5a1c\nVideo BIOS: \t 94\n",
     Gpu(name="NVIDIA A10", uuid="GPU-5a1c")),
    ("a GPU that was never opened has no UUID yet",
     "Model: \t\t Tesla T4\nGPU UUID: \t GPU-????????-????-????-????-????????????\n",
     Gpu(name="Tesla T4")),
    ("nothing to know it by", "IRQ: 72\n", None),
)  # fmt: skip
def test_a_gpu_is_in_proc(text: str, gpu: Gpu | None) -> None:
    assert proc.parse_gpu_information(text) == gpu


@cases(
    "text wsl",
    ("WSL2", "Linux version 5.15.146.1-microsoft-standard-WSL2", True),
    ("WSL1", "Linux version 4.4.0-19041-Microsoft", True),
    ("Debian", "Linux version 6.1.0-18-amd64 (debian-kernel@...)", False),
)
def test_wsl_is_in_the_kernels_name(text: str, *, wsl: bool) -> None:
    assert proc.parse_wsl(text) is wsl


@cases(
    "text expected",
    ("Ubuntu", 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="22.04"\n', ("ubuntu", "22.04")),
    ("single quotes", "ID=debian\nVERSION_ID='12'\n", ("debian", "12")),
    ("a rolling release", "ID=arch\nBUILD_ID=rolling\n", ("arch", None)),
    ("Windows line ends", 'ID="rocky"\r\nVERSION_ID="9.4"\r\n', ("rocky", "9.4")),
    ("VARIANT_ID is not ID", "VARIANT_ID=server\n", (None, None)),
    ("empty", "", (None, None)),
)
def test_the_distribution_is_in_os_release(
    text: str, expected: tuple[str | None, str | None]
) -> None:
    assert system.distribution(text) == expected


@cases(
    "text version",
    ("Debian 12", "glibc 2.36", "2.36"),
    ("a development version", "glibc 2.40.9000", "2.40"),
    ("no answer, as from musl", None, None),
    ("another library", "musl 1.2", None),
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
