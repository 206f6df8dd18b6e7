"""GPUs: on the bus, their names, and their state."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

from provision.catalog.catalog import Catalog
from provision.catalog.loading import load
from provision.catalog.rows.nvidia import OpenModules
from provision.doctor.probes import commands
from provision.doctor.probes.fact import Found, fact
from provision.doctor.probes.smi import WHERE, Smi, any_of, names_of, read_smi, worst_mode
from provision.host.machine import Answer, ProbedMachine
from provision.host.nvml import SOURCE as NVML
from provision.host.proc import (
    PCI_DEVICES,
    PROC_GPUS,
    PciDevice,
    is_tegra,
    parse_gpu_information,
    read_pci,
    read_wsl,
)
from provision.host.source_facts import one_line

_LSPCI = re.compile(r"^[0-9a-f:.]+ [^\[]*\[03(?:00|02)\]:.*?\[([^\]]+)\] \[10de:[0-9a-f]{4}\]")
_LINE_LIMIT = 512
_EXTENDED_AT, _ACS, _P2P_REDIRECT = 0x100, 0x000D, 0x0C
_BRIDGES_LIMIT = 64
_FALLEN = ("GPU is lost", "fallen off the bus")


def read_bus(machine: ProbedMachine) -> tuple[PciDevice, ...] | None:
    """None if the bus cannot be read, or does not show all GPUs: on WSL and Tegra they are not on
    it.
    """
    return None if read_wsl(machine) or is_tegra(machine) else read_pci(machine)


def read_gpus(machine: ProbedMachine) -> tuple[PciDevice, ...] | None:
    bus = read_bus(machine)
    return None if bus is None else tuple(device for device in bus if device.is_gpu)


def probe_bus(machine: ProbedMachine) -> Iterator[Found]:
    gpus = read_gpus(machine)
    if gpus is None:
        return
    yield from fact("gpu.count", len(gpus), PCI_DEVICES)
    if not gpus:
        return
    bound = tuple(dict.fromkeys(_bound_to(machine, gpu) for gpu in gpus))
    yield from fact("gpu.bound_to", bound, f"{gpus[0].folder}/driver")
    narrow = [_narrow(machine, gpu) for gpu in gpus]
    where = _where(gpus, narrow, "current_link_width")
    yield from fact("gpu.link_narrow", any_of(narrow), where)
    translated = any_of(_translated(machine, gpu) for gpu in gpus)
    yield from fact("iommu.enabled", translated, f"{gpus[0].folder}/iommu_group/type")
    yield from _lost(machine, gpus)


def probe_acs(machine: ProbedMachine) -> Iterator[Found]:
    """Only root may read the part of a bridge's configuration that has ACS."""
    bus = read_bus(machine) or ()
    if not any(device.is_gpu for device in bus):
        return
    bridges = [device for device in bus if device.is_bridge][:_BRIDGES_LIMIT]
    found = [acs_redirects(machine.data(f"{b.folder}/config") or b"") for b in bridges]
    yield from fact("pcie.acs", any_of(found), _where(bridges, found, "config"))


def acs_redirects(config: bytes) -> bool | None:
    """Whether a bridge's ACS control sends peer-to-peer requests or completions up to the root
    (PCI Express Base Specification, "ACS Extended Capability"). None: unreadable, or no such
    capability.
    """
    at, seen = _EXTENDED_AT, 0
    while at and len(config) >= at + 8 and seen < 48:
        header = struct.unpack_from("<I", config, at)[0]
        if header & 0xFFFF == _ACS:
            return bool(struct.unpack_from("<H", config, at + 6)[0] & _P2P_REDIRECT)
        at, seen = header >> 20, seen + 1
    return None


def is_narrow(current: str | None, *both_ends: str | None) -> bool | None:
    """Whether a link has fewer lanes than both its ends support. Speed is not judged: an idle GPU
    lowers it itself.
    """
    widths = [int(text) for text in (current, *both_ends) if text and text.isdecimal()]
    if len(widths) != 3 or 0 in widths:
        return None
    return widths[0] < min(widths[1:])


def is_gone(config: bytes | None) -> bool | None:
    """A device that does not answer reads as all ones."""
    return None if not config or len(config) < 4 else config[:4] == b"\xff" * 4


def probe_names(machine: ProbedMachine) -> Iterator[Found]:
    """Names from the driver, and what follows from a name; if no driver runs, also from lspci."""
    names, where = _names(machine)
    yield from fact("gpu.names", names or None, where)
    if not names:
        names, where = _names_by_lspci(machine)

    catalog = load()
    told = _capabilities_by_nvml(machine)
    known = told or capabilities(catalog, names)
    place = NVML if told else f"the catalogue, by the names of {where}"
    yield from fact("gpu.compute_capabilities", known, place)
    yield from fact("gpu.geforce", is_consumer(catalog, names), place if names else where)
    modules = open_modules(catalog, names, known or ())
    needs = "required" in modules if modules else None
    yield from fact("gpu.needs_open_modules", needs, place)
    yield from fact("gpu.before_open_modules", "unsupported" in modules if modules else None, place)


def capabilities(catalog: Catalog, names: Iterable[str]) -> tuple[str, ...] | None:
    """From the catalogue, each once; None if it does not know one of the names."""
    found = [catalog.find_gpu(name).compute_capability for name in names]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    return tuple(dict.fromkeys("{}.{}".format(*one) for one in known))


def is_consumer(catalog: Catalog, names: Iterable[str]) -> bool | None:
    """Whether one of them is a GeForce or a Titan; None if a name may be either."""
    answers: list[bool | None] = []
    for name in names:
        kinds = {row.kind in {"geforce", "titan"} for row in catalog.find_gpu(name).rows}
        answers.append(kinds.pop() if len(kinds) == 1 else None)
    if any(answers):
        return True
    return None if not answers or None in answers else False


def open_modules(
    catalog: Catalog, names: Iterable[str], known: Iterable[str]
) -> frozenset[OpenModules]:
    """How the GPUs here relate to the open kernel modules: "unsupported", "optional", "required".

    By name if the catalogue has all of them (Grace Hopper differs from Hopper), else by compute
    capability; empty if neither is known, and for Jetson.
    """
    matches = [catalog.find_gpu(name) for name in names]
    if matches and all(match.compute_capability and match.rows for match in matches):
        pairs = [(row.compute_capability, row.name) for one in matches for row in one.rows]
    else:
        parts = [text.partition(".") for text in known]
        pairs = [((int(major), int(minor)), "") for major, _, minor in parts]
    found = (catalog.open_modules(capability, name) for capability, name in pairs)
    return frozenset(one for one in found if one is not None)


def probe_state(machine: ProbedMachine) -> Iterator[Found]:
    """What nvidia-smi reports about their state."""
    smi = read_smi(machine)
    if smi is None or not smi.gpus:
        return
    yield from _state(smi)


def _state(smi: Smi) -> Iterator[Found]:
    gpus = smi.gpus
    yield from fact("mig.enabled", any_of(gpu.mig for gpu in gpus), WHERE)
    yield from fact("mig.instances", sum(gpu.mig_instances for gpu in gpus), WHERE)
    modes = [gpu.compute_mode for gpu in gpus if gpu.compute_mode]
    yield from fact("gpu.compute_mode", worst_mode(modes), WHERE)
    errors = [gpu.ecc_uncorrected for gpu in gpus if gpu.ecc_uncorrected is not None]
    yield from fact("gpu.ecc_uncorrected", sum(errors) if errors else None, WHERE)
    yield from fact("gpu.remap_pending", any_of(gpu.remap_pending for gpu in gpus), WHERE)
    yield from fact("gpu.remap_failed", any_of(gpu.remap_failed for gpu in gpus), WHERE)
    reason = next((gpu.slowdown for gpu in gpus if gpu.slowdown), None)
    yield from fact("gpu.throttled", reason, WHERE)
    virtual = any_of(gpu.virtual for gpu in gpus)
    yield from fact("vgpu", virtual, WHERE)
    if virtual:
        yield from fact("vgpu.licensed", any_of(gpu.licensed for gpu in gpus), WHERE)


def parse_lspci(text: str) -> tuple[str, ...]:
    """Models in brackets of `lspci -nn`: "GeForce RTX 4090" of "AD102 [GeForce RTX 4090]"."""
    return tuple(m[1] for line in text.splitlines() if (m := _LSPCI.match(line[:_LINE_LIMIT])))


def _bound_to(machine: ProbedMachine, gpu: PciDevice) -> str:
    link = machine.link(f"{gpu.folder}/driver")
    return link.rpartition("/")[2] if link else "none"


def _narrow(machine: ProbedMachine, gpu: PciDevice) -> bool | None:
    real = machine.real(gpu.folder)
    if real is None or _sleeps(machine, gpu):
        return None
    port = real.rpartition("/")[0]
    return is_narrow(
        machine.word(f"{gpu.folder}/current_link_width"),
        machine.word(f"{gpu.folder}/max_link_width"),
        machine.word(f"{port}/max_link_width"),
    )


def _translated(machine: ProbedMachine, gpu: PciDevice) -> bool | None:
    """Whether its addresses are translated: "identity" is an IOMMU in pass-through mode."""
    kind = machine.word(f"{gpu.folder}/iommu_group/type")
    if kind is None:
        groups = machine.names("/sys/class/iommu")
        return False if groups == () else None
    return kind.startswith("DMA")


def _lost(machine: ProbedMachine, gpus: Sequence[PciDevice]) -> Iterator[Found]:
    """Reading a sleeping GPU would wake it, so those are skipped."""
    smi = read_smi(machine)
    if smi is not None and smi.failed and any(word in smi.failed for word in _FALLEN):
        yield from fact("gpu.lost", value=True, where=WHERE)
        return
    awake = [gpu for gpu in gpus if not _sleeps(machine, gpu)]
    gone = [is_gone(machine.data(f"{gpu.folder}/config")) for gpu in awake]
    yield from fact("gpu.lost", any_of(gone), _where(awake, gone, "config"))


def _sleeps(machine: ProbedMachine, gpu: PciDevice) -> bool:
    return machine.word(f"{gpu.folder}/power/runtime_status") == "suspended"


def _where(devices: Sequence[PciDevice], found: Sequence[bool | None], name: str) -> str:
    """The file that decided, else the first."""
    decided = [d for d, value in zip(devices, found, strict=True) if value] or list(devices)
    return f"{decided[0].folder}/{name}" if decided else PCI_DEVICES


def _names(machine: ProbedMachine) -> tuple[tuple[str, ...], str]:
    by_nvml = tuple(name for gpu in _nvml_gpus(machine) if isinstance(name := gpu["name"], str))
    if by_nvml:
        return by_nvml, NVML
    by_smi = tuple(names_of(read_smi(machine)))
    if by_smi:
        return by_smi, WHERE
    texts = [
        machine.text(f"{PROC_GPUS}/{name}/information") for name in machine.names(PROC_GPUS) or ()
    ]
    found = [parse_gpu_information(text) for text in texts if text is not None]
    return tuple(gpu.name for gpu in found if gpu is not None and gpu.name), PROC_GPUS


def _names_by_lspci(machine: ProbedMachine) -> tuple[tuple[str, ...], str]:
    done = commands.ask(machine, commands.LSPCI)
    names = parse_lspci(done.out) if done is not None else ()
    return tuple(one_line(name) for name in names), "lspci"


def _capabilities_by_nvml(machine: ProbedMachine) -> tuple[str, ...] | None:
    found = [gpu.get("capability") for gpu in _nvml_gpus(machine)]
    known = [one for one in found if isinstance(one, str)]
    return tuple(dict.fromkeys(known)) if known and len(known) == len(found) else None


def _nvml_gpus(machine: ProbedMachine) -> list[Mapping[str, Answer]]:
    answer = machine.nvml()
    gpus = answer.get("gpus") if answer is not None else None
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
