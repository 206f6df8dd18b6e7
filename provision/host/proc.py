"""What the kernel says in /sys, /proc and /dev: driver, GPUs on the bus, WSL.

Formats of /proc/driver/nvidia/version, both of which state the kernel module's version:

    NVRM version: NVIDIA UNIX x86_64 Kernel Module  515.65.01  Wed Jul 20 14:00:58 UTC 2022
    NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  (...)
"""

from __future__ import annotations

import re
from typing import NamedTuple

from provision.host.machine import ProbedMachine
from provision.host.source_facts import SourceFacts, one_line, version_or_none
from provision.model.plan import Gpu

SYS_VERSION = "/sys/module/nvidia/version"
PROC_VERSION = "/proc/driver/nvidia/version"
PROC_GPUS = "/proc/driver/nvidia/gpus"
PCI_DEVICES = "/sys/bus/pci/devices"

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_OTHER_BRIDGE = "0x0680"
_PCI_BRIDGE = "0x0604"
_NVRM = re.compile(
    r"^NVRM version:.*?Kernel Module\b(?: for \S+)?\s+([0-9]+(?:\.[0-9]+)+)",
    re.MULTILINE,
)
_FIELD = re.compile(r"^(?P<key>[^:\n]+):[ \t]*(?P<value>.*)$", re.MULTILINE)


class PciDevice(NamedTuple):
    """A device on the bus: its folder below /sys, and vendor, class and device as the kernel
    writes them ("0x10de", "0x030200", "0x2330").
    """

    folder: str
    vendor: str
    kind: str
    device: str

    @property
    def id(self) -> str:
        """As lspci and the PCI ID database write it: "10de:2330"."""
        return f"{self.vendor.replace('0x', '', 1)}:{self.device.replace('0x', '', 1)}"

    @property
    def is_gpu(self) -> bool:
        """NVIDIA's (10de) and of class 03, display controllers; GPUs without a display are, too."""
        return self.vendor == _NVIDIA and self.kind.startswith(_DISPLAY)

    @property
    def is_switch(self) -> bool:
        """An NVSwitch: NVIDIA's bridge of a non-standard class."""
        return self.vendor == _NVIDIA and self.kind.startswith(_OTHER_BRIDGE)

    @property
    def is_bridge(self) -> bool:
        return self.kind.startswith(_PCI_BRIDGE)


def parse_nvrm(text: str) -> str | None:
    """The version in /proc/driver/nvidia/version, of either module flavour."""
    found = _NVRM.search(text)
    return found.group(1) if found else None


def parse_gpu_information(text: str) -> Gpu | None:
    """Name and UUID from one /proc/driver/nvidia/gpus/*/information."""
    fields = {m["key"].strip(): one_line(m["value"]) for m in _FIELD.finditer(text)}
    name, uuid = fields.get("Model"), fields.get("GPU UUID")
    if uuid and "?" in uuid:  # the module prints GPU-????????-... until the GPU was first opened
        uuid = None
    return Gpu(name=name or None, uuid=uuid or None) if name or uuid else None


def parse_wsl(version: str) -> bool:
    """Whether /proc/version is of Microsoft's kernel."""
    return "microsoft" in version.lower()


def read_sys_version(machine: ProbedMachine) -> SourceFacts:
    text = machine.text(SYS_VERSION)
    version = version_or_none(text)
    return _driver(SYS_VERSION, version, _why(machine, SYS_VERSION, text, "not a version"))


def read_proc_version(machine: ProbedMachine) -> SourceFacts:
    text = machine.text(PROC_VERSION)
    version = parse_nvrm(text or "")
    return _driver(PROC_VERSION, version, _why(machine, PROC_VERSION, text, "no NVRM version"))


def loaded_version(machine: ProbedMachine) -> tuple[str | None, str]:
    """The version of the kernel module that runs, and the file that says so."""
    version = version_or_none(machine.text(SYS_VERSION))
    if version is not None:
        return version, SYS_VERSION
    return parse_nvrm(machine.text(PROC_VERSION) or ""), PROC_VERSION


def read_proc_gpus(machine: ProbedMachine) -> SourceFacts:
    """Names and UUIDs, used if NVML and nvidia-smi could not be queried."""
    names = machine.names(PROC_GPUS)
    texts = (machine.text(f"{PROC_GPUS}/{name}/information") for name in names or ())
    gpus = tuple(gpu for text in texts if text and (gpu := parse_gpu_information(text)))
    if not gpus:
        why = machine.why(PROC_GPUS) if names is None else "it lists no GPU"
        return SourceFacts(source=PROC_GPUS, gives=("gpus",), failed=why)
    return SourceFacts(source=PROC_GPUS, gives=("gpus",), gpus=gpus)


def read_pci(machine: ProbedMachine) -> tuple[PciDevice, ...] | None:
    """All devices on the PCI bus; None: the bus cannot be read."""
    names = machine.names(PCI_DEVICES)
    if names is None:
        return None
    return tuple(_device(machine, f"{PCI_DEVICES}/{name}") for name in names)


def read_bus(machine: ProbedMachine) -> SourceFacts:
    """An empty list of GPUs only if that is certain; else the reason why it is not.

    A GPU that is not on PCI would be missed: WSL2 shows one as /dev/dxg, a Tegra has it on chip.
    """
    source = PCI_DEVICES
    bus = read_pci(machine)
    gpus = [device for device in bus or () if device.is_gpu]
    nodes = machine.paths("/dev", r"nvidia\d+")
    if bus is None:
        why = "the PCI bus cannot be read"
    elif gpus:
        ids = ", ".join(sorted({gpu.id for gpu in gpus}))
        noun = "an NVIDIA GPU is" if len(gpus) == 1 else f"{len(gpus)} NVIDIA GPUs are"
        loaded = machine.exists(SYS_VERSION) or machine.exists(PROC_VERSION)
        end = "the driver does not answer" if loaded else "no driver is loaded"
        why = f"{noun} on the PCI bus ({ids}) but {end}"
    elif nodes:
        why = f"{nodes[0]} is there, so a GPU may be"
    elif read_wsl(machine) and machine.exists("/dev/dxg"):
        why = "WSL2 with /dev/dxg: its GPU is not on the PCI bus"
    elif is_tegra(machine):
        why = "a Tegra: its GPU is not on the PCI bus"
    else:
        return SourceFacts(source=source, gives=("gpus",), gpus=())
    return SourceFacts(source=source, gives=("gpus",), failed=why)


def read_wsl(machine: ProbedMachine) -> bool | None:
    """Whether this is WSL, of either version; None: the kernel does not say."""
    interop = ("WSLInterop", "WSLInterop-late")
    if any(machine.exists(f"/proc/sys/fs/binfmt_misc/{name}") for name in interop):
        return True
    text = machine.text("/proc/version")
    return None if text is None else parse_wsl(text)


def is_tegra(machine: ProbedMachine) -> bool:
    """Whether this is a Tegra, whose GPU is on the chip and not on the PCI bus."""
    if machine.exists("/etc/nv_tegra_release"):
        return True
    return "nvidia,tegra" in (machine.text("/proc/device-tree/compatible") or "")


def _device(machine: ProbedMachine, folder: str) -> PciDevice:
    vendor, kind, device = (
        (machine.word(f"{folder}/{name}") or "").lower() for name in ("vendor", "class", "device")
    )
    return PciDevice(folder=folder, vendor=vendor, kind=kind, device=device)


def _driver(source: str, version: str | None, why: str) -> SourceFacts:
    failed = None if version else why
    return SourceFacts(source=source, gives=("driver",), driver=version, failed=failed)


def _why(machine: ProbedMachine, path: str, text: str | None, what: str) -> str:
    return machine.why(path) if text is None else f"{what} in it: {one_line(text, limit=60)!r}"
