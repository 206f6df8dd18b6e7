"""The PCI bus as sysfs shows it, made up file by file."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from verify.device import pci
from verify.device.pci import PciGpu

GPU = {"vendor": "0x10de", "class": "0x030200", "device": "0x2330"}
LINK = {"current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
LANES = {"current_link_width": "8", "max_link_width": "16"}


def add(root: Path, where: str, driver: str | None = None, **files: str) -> Path:
    """A device below the bus's own folder; its last part is its address."""
    device = root / "sys/devices" / where
    device.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (device / name).write_text(text + "\n")
    if driver:
        module = root / "sys/bus/pci/drivers" / driver
        module.mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(module)
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    (devices / device.name).symlink_to(os.path.relpath(device, devices))
    return device


def test_a_card_is_read_with_its_driver_its_link_and_the_port_above_it(tmp_path: Path) -> None:
    port = {"vendor": "0x8086", "class": "0x060400", "max_link_speed": "8.0 GT/s PCIe"}
    add(tmp_path, "pci0000:16/0000:16:01.0", **port, max_link_width="8")
    where = "pci0000:16/0000:16:01.0/0000:17:00.0"
    add(tmp_path, where, driver="nvidia", **GPU, **LINK, **LANES)
    assert pci.read(str(tmp_path)) == (
        PciGpu(
            *("0000:17:00.0", "0x030200", "0x2330", "nvidia", 4, 5, 8, 16, 3, 8),
            ports=("0000:16:01.0",),
        ),
    )


@pytest.mark.parametrize(
    ("files", "card"),
    [
        pytest.param(
            {"current_link_speed": "Unknown", "current_link_width": "63"},
            PciGpu("0000:00:05.0", "0x030200", "0x2330"),
            id="a card that does not answer, or one of a virtual machine without a port",
        ),
        pytest.param(
            {"max_link_speed": "8 GT/s", "max_link_width": "0"},
            PciGpu("0000:00:05.0", "0x030200", "0x2330", generation_max=3),
            id="an older kernel's words",
        ),
        pytest.param({"class": "0x040300"}, None, id="the audio of a card"),
        pytest.param({"class": "0x068000"}, None, id="an NVSwitch"),
        pytest.param({"vendor": "0x1002"}, None, id="a GPU of another maker"),
        pytest.param({"physfn": ""}, None, id="a virtual function"),
    ],
)
def test_what_is_a_gpu(tmp_path: Path, files: dict[str, str], card: PciGpu | None) -> None:
    add(tmp_path, "pci0000:00/0000:00:05.0", **{**GPU, **files})
    assert pci.read(str(tmp_path)) == ((card,) if card else ())


def test_without_sysfs_the_bus_is_unknown(tmp_path: Path) -> None:
    assert pci.read(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("facts", "error", "expected"),
    [
        pytest.param("Device Minor: \t 3", None, False, id="a node that can be opened"),
        pytest.param("Device Minor: \t 3", errno.ENOENT, True, id="a container without its node"),
        pytest.param("Device Minor: \t 3", errno.EPERM, True, id="a node that Slurm forbids"),
        pytest.param("Device Minor: \t 3", errno.EACCES, True, id="a node of another user"),
        pytest.param("Device Minor: \t 3", errno.EIO, False, id="a card that does not answer"),
        pytest.param(None, None, True, id="a container that hides the card"),
    ],
)
def test_whether_this_process_was_given_a_card(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    facts: str | None,
    error: int | None,
    expected: bool,  # noqa: FBT001
) -> None:
    gpu = tmp_path / "proc/driver/nvidia/gpus/0000:17:00.0"
    gpu.mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    node = tmp_path / "dev/nvidia3"
    node.touch()
    if facts:
        (gpu / "information").write_text(f"Model: \t H100\n{facts}\nGPU Excluded:\t No\n")
    real = os.open

    def refuse(path: str | Path, *flags: Any, **more: Any) -> int:
        if error and path == str(node):
            raise OSError(error, os.strerror(error))
        return real(path, *flags, **more)

    monkeypatch.setattr(os, "open", refuse)
    assert pci.is_closed(PciGpu("0000:17:00.0", driver="nvidia"), str(tmp_path)) == expected
    assert pci.is_closed(PciGpu("0000:17:00.0", driver="vfio-pci"), str(tmp_path)) is False


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        pytest.param("00000000:B3:00.0", "0000:b3:00.0", id="NVML's form"),
        pytest.param("0000000F:01:00.0", "000f:01:00.0", id="another domain"),
        pytest.param("00010000:01:00.0", "10000:01:00.0", id="a domain of five digits"),
        pytest.param("0000:65:00", "0000:65:00.0", id="an Xid's form"),
        pytest.param("soc", "soc", id="no bus id"),
    ],
)
def test_nvmls_bus_ids_are_the_kernels_addresses(bus_id: str, address: str) -> None:
    assert pci.bus_address(bus_id) == address
