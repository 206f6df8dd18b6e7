"""What the kernel says in /sys, /proc and /dev: driver, GPUs on the bus, WSL.

Formats of /proc/driver/nvidia/version, both of which state the kernel module's version:

    NVRM version: NVIDIA UNIX x86_64 Kernel Module  515.65.01  Wed Jul 20 14:00:58 UTC 2022
    NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  (...)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from provision.host.reading import Reading, children, one_line, read_text, version_or_none
from provision.model.plan import Gpu

SYS_VERSION = "/sys/module/nvidia/version"
PROC_VERSION = "/proc/driver/nvidia/version"
PROC_GPUS = "/proc/driver/nvidia/gpus"
PCI_DEVICES = "/sys/bus/pci/devices"

_NVRM = re.compile(
    r"^NVRM version:.*?Kernel Module\b(?: for \S+)?\s+([0-9]+(?:\.[0-9]+)+)",
    re.MULTILINE,
)
_FIELD = re.compile(r"^(?P<key>[^:\n]+):[ \t]*(?P<value>.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PciGpu:
    """An NVIDIA display or 3D controller on the bus: address "0000:01:00.0", id "10de:2204"."""

    address: str
    id: str


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


def read_sys_version(root: Path) -> Reading:
    text, why = read_text(_under(root, SYS_VERSION))
    version = version_or_none(text)
    if version is None and text is not None:
        why = f"not a version: {one_line(text, limit=60)!r}"
    return Reading(source=SYS_VERSION, gives=("driver",), driver=version, failed=why or None)


def read_proc_version(root: Path) -> Reading:
    text, why = read_text(_under(root, PROC_VERSION))
    version = parse_nvrm(text) if text is not None else None
    if version is None and text is not None:
        why = f"no NVRM version in it: {one_line(text, limit=60)!r}"
    return Reading(source=PROC_VERSION, gives=("driver",), driver=version, failed=why or None)


def read_proc_gpus(root: Path) -> Reading:
    """Names and UUIDs, when NVML and nvidia-smi could not be asked."""
    entries, why = children(_under(root, PROC_GPUS))
    gpus: list[Gpu] = []
    for entry in entries or ():
        text, why = read_text(entry / "information")
        gpu = parse_gpu_information(text) if text is not None else None
        if gpu is not None:
            gpus.append(gpu)
    if not gpus:
        why = why or "it lists no GPU"
        return Reading(source=PROC_GPUS, gives=("gpus",), failed=why)
    return Reading(source=PROC_GPUS, gives=("gpus",), gpus=tuple(gpus))


def read_pci_gpus(root: Path) -> tuple[PciGpu, ...] | None:
    """NVIDIA GPUs on the PCI bus (vendor 10de, class 03xx); None: the bus cannot be read."""
    entries, _ = children(_under(root, PCI_DEVICES))
    if entries is None:
        return None
    found = []
    for entry in entries:
        vendor, kind, device = (
            (read_text(entry / name)[0] or "").strip().lower()
            for name in ("vendor", "class", "device")
        )
        if vendor == "0x10de" and kind.startswith("0x03"):
            found.append(PciGpu(address=entry.name, id=f"10de:{device.removeprefix('0x')}"))
    return tuple(found)


def read_bus(root: Path, *, wsl: bool | None) -> Reading:
    """GPUs "none" only where that is certain; else why it is not.

    A GPU that is not on PCI would be missed: WSL2 shows one as /dev/dxg, a Tegra has it on chip.
    """
    source = PCI_DEVICES
    pci = read_pci_gpus(root)
    nodes = _nvidia_nodes(root)
    if pci is None:
        why = "the PCI bus cannot be read"
    elif pci:
        ids = ", ".join(sorted({gpu.id for gpu in pci}))
        noun = "an NVIDIA GPU is" if len(pci) == 1 else f"{len(pci)} NVIDIA GPUs are"
        loaded = _under(root, SYS_VERSION).exists() or _under(root, PROC_VERSION).exists()
        end = "the driver does not answer" if loaded else "no driver is loaded"
        why = f"{noun} on the PCI bus ({ids}) but {end}"
    elif nodes:
        why = f"{nodes[0]} is there, so a GPU may be"
    elif wsl and _under(root, "/dev/dxg").exists():
        why = "WSL2 with /dev/dxg: its GPU is not on the PCI bus"
    elif _is_tegra(root):
        why = "a Tegra: its GPU is not on the PCI bus"
    else:
        return Reading(source=source, gives=("gpus",), gpus=())
    return Reading(source=source, gives=("gpus",), failed=why)


def read_wsl(root: Path) -> bool | None:
    interop = ("WSLInterop", "WSLInterop-late")
    if any(_under(root, f"/proc/sys/fs/binfmt_misc/{name}").exists() for name in interop):
        return True
    text, _ = read_text(_under(root, "/proc/version"))
    return None if text is None else parse_wsl(text)


def _nvidia_nodes(root: Path) -> tuple[str, ...]:
    entries, _ = children(_under(root, "/dev"))
    return tuple(f"/dev/{e.name}" for e in entries or () if re.fullmatch(r"nvidia\d+", e.name))


def _is_tegra(root: Path) -> bool:
    if _under(root, "/etc/nv_tegra_release").exists():
        return True
    text, _ = read_text(_under(root, "/proc/device-tree/compatible"))
    return text is not None and "nvidia,tegra" in text


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
