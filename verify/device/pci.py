"""NVIDIA's GPUs as the kernel lists them on the PCI bus, in sysfs: also those that no driver uses.

Virtual functions (SR-IOV) are left out: they are parts of a GPU, for virtual machines. The port is
the bridge above a card, of the processor or of a switch. In a virtual machine both are invented.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Optional, Tuple

from verify.device.driver_errors import ADDRESS
from verify.device.limits import read_text

DRIVER = "nvidia"
NVIDIA, DISPLAY = "0x10de", "0x03"  # vendor and class; audio is 0x04, an NVSwitch 0x06
# A link's generation by its transfers, in GT/s.
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_MOST_LANES = 32  # a card that does not answer reads as 63


@dataclass(frozen=True)
class PciGpu:
    """A GPU on the bus. None: the kernel does not report it."""

    address: str  # "0000:17:00.0"
    kind: str = ""  # its PCI class: "0x030200"
    device: str = ""  # its model's number: "0x2330"
    driver: Optional[str] = None  # the kernel module that is bound to it
    generation: Optional[int] = None
    generation_max: Optional[int] = None
    width: Optional[int] = None
    width_max: Optional[int] = None
    port_generation_max: Optional[int] = None
    port_width_max: Optional[int] = None
    ports: Tuple[str, ...] = ()  # the addresses of those above it, the nearest last
    closed: bool = False  # this process may not use it, although NVIDIA's driver runs it


def read(root: str = "/") -> Optional[Tuple[PciGpu, ...]]:
    """The GPUs, by address. None: there is no sysfs."""
    folder = os.path.join(root, "sys/bus/pci/devices")
    try:
        paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    except OSError:
        return None
    return tuple(_gpu(path) for path in paths if _is_gpu(path))


def bus_address(text: str) -> str:
    """An address as the kernel writes it: 0000:65:00.0 for NVML's "00000000:65:00.0", and for
    "0000:65:00" of an Xid.
    """
    found = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)(?:\.(\d))?", text.lower())
    if not found:
        return text
    domain, bus, device, function = found.groups("0")
    return "{:04x}:{}:{}.{}".format(int(domain, 16), bus, device, function)


def is_closed(gpu: PciGpu, root: str = "/") -> bool:
    """Whether this process was not given the GPU: there is no node, or opening it is forbidden, as
    control groups do under Slurm. A broken GPU fails in another way.
    """
    if gpu.driver != DRIVER:
        return False
    facts = read_text(root, "proc/driver/nvidia/gpus", gpu.address, "information") or ""
    minor = re.search(r"Device Minor:\s*(\d+)", facts)
    if not minor:
        return True
    try:
        os.close(os.open(os.path.join(root, "dev/nvidia" + minor.group(1)), os.O_RDWR))
    except (FileNotFoundError, PermissionError):
        return True
    except OSError:
        return False
    return False


def _is_gpu(path: str) -> bool:
    gpu = _word(path, "vendor") == NVIDIA and _word(path, "class").startswith(DISPLAY)
    return gpu and not os.path.lexists(os.path.join(path, "physfn"))


def _gpu(path: str) -> PciGpu:
    real = os.path.realpath(path)
    port = os.path.dirname(real)
    driver = os.path.join(path, "driver")
    return PciGpu(
        address=os.path.basename(path),
        kind=_word(path, "class"),
        device=_word(path, "device"),
        driver=os.path.basename(os.path.realpath(driver)) if os.path.exists(driver) else None,
        generation=_generation(path, "current_link_speed"),
        generation_max=_generation(path, "max_link_speed"),
        width=_lanes(path, "current_link_width"),
        width_max=_lanes(path, "max_link_width"),
        port_generation_max=_generation(port, "max_link_speed"),
        port_width_max=_lanes(port, "max_link_width"),
        ports=tuple(part for part in real.split("/")[:-1] if re.fullmatch(ADDRESS, part)),
    )


def _word(path: str, name: str) -> str:
    return (read_text(path, name) or "").strip()


def _generation(path: str, name: str) -> Optional[int]:
    """From "16.0 GT/s PCIe"; older kernels write "8 GT/s", and "Unknown speed"."""
    found = re.match(r"[\d.]+(?= GT/s)", _word(path, name))
    return _GENERATIONS.get(float(found.group())) if found else None


def _lanes(path: str, name: str) -> Optional[int]:
    word = _word(path, name)
    return int(word) if word.isdigit() and 0 < int(word) <= _MOST_LANES else None
