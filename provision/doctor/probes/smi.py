"""What `nvidia-smi -q -x` reports about the GPUs: their state, which the NVML reading does not
have.

Labels have changed over the years; both old and new ones are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.doctor.probes import commands
from provision.host.machine import ProbedMachine
from provision.host.source_facts import one_line, version_or_none

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

WHERE = "nvidia-smi -q -x"

_UNKNOWN = frozenset({"", "N/A", "[N/A]", "None", "Requested functionality has been deprecated"})
# The longest word first: "hw_slowdown" is set with each of the others.
_SLOWDOWNS = (
    ("hw_thermal_slowdown", "thermal"),
    ("hw_power_brake_slowdown", "power brake"),
    ("hw_slowdown", "hardware"),
)
_UNCORRECTED = frozenset(
    {"dram_uncorrectable", "sram_uncorrectable", "sram_uncorrectable_parity"}
    | {"sram_uncorrectable_secded"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiGpu:
    """One GPU's state; None if nvidia-smi does not report it."""

    name: str | None = None
    compute_mode: str | None = None
    mig: bool | None = None
    mig_instances: int = 0
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    slowdown: str | None = None  # of the hardware; None also if there is none
    virtual: bool | None = None
    licensed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Smi:
    """All that it reports; `failed` is its last output if it gave no report."""

    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[SmiGpu, ...] = ()
    failed: str | None = None


def read_smi(machine: ProbedMachine) -> Smi | None:
    """None if there is no nvidia-smi, or it may not be run."""
    done = commands.ask(machine, commands.SMI)
    if done is None:
        return None
    found = parse_smi(done.out)
    if found is None:
        return Smi(failed=done.message)
    return found


def parse_smi(text: str) -> Smi | None:
    """The XML report. None: invalid. Entities are refused, because they can expand without
    limit.
    """
    from xml.etree.ElementTree import ParseError, fromstring

    if "<!ENTITY" in text:
        return None
    start = text.find("<nvidia_smi_log")
    if start < 0:
        return None
    try:
        root = fromstring(text[start:])  # noqa: S314  no entities, no document type
    except (ParseError, ValueError):
        return None
    return Smi(
        driver=version_or_none(_text(root, "driver_version")),
        cuda=version_or_none(_text(root, "cuda_version")),
        gpus=tuple(_gpu(element) for element in root.findall("gpu")),
    )


def _gpu(gpu: Element) -> SmiGpu:
    mig = _text(gpu, "mig_mode/current_mig")
    virtual = _text(gpu, "gpu_virtualization_mode/virtualization_mode")
    licence = _text(gpu, "vgpu_software_licensed_product/license_status")
    return SmiGpu(
        name=_text(gpu, "product_name"),
        compute_mode=_text(gpu, "compute_mode"),
        mig=None if mig is None else mig == "Enabled",
        mig_instances=len(gpu.findall("mig_devices/mig_device")),
        ecc_uncorrected=_uncorrected(gpu),
        remap_pending=_yes(_text(gpu, "remapped_rows/remapped_row_pending")),
        remap_failed=_yes(_text(gpu, "remapped_rows/remapped_row_failure")),
        slowdown=_slowdown(gpu),
        virtual=None if virtual is None else virtual in {"VGPU", "vGPU"},
        licensed=None if licence is None else licence.startswith("Licensed"),
    )


def _uncorrected(gpu: Element) -> int | None:
    """Since the driver was loaded: errors of a GPU's whole life may long be repaired."""
    volatile = gpu.find("ecc_errors/volatile")
    if volatile is None:
        return None
    texts = [element.text for element in volatile if element.tag in _UNCORRECTED]
    texts += [element.text for element in volatile.findall("double_bit/total")]
    numbers = [int(text) for text in texts if text and text.strip().isdecimal()]
    return sum(numbers) if numbers else None


def _slowdown(gpu: Element) -> str | None:
    for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
        reasons = gpu.find(name)
        if reasons is None:
            continue
        active = {e.tag.removeprefix(f"{name[:-1]}_") for e in reasons if e.text == "Active"}
        return next((word for tag, word in _SLOWDOWNS if tag in active), None)
    return None


def _yes(text: str | None) -> bool | None:
    return {"Yes": True, "No": False}.get(text or "")


def _text(element: Element, path: str) -> str | None:
    text = one_line(element.findtext(path) or "")
    return None if text in _UNKNOWN else text


def any_of(values: Iterable[bool | None]) -> bool | None:
    """True if any is; None if none is known."""
    known = [value for value in values if value is not None]
    return any(known) if known else None


def worst_mode(modes: Sequence[str]) -> str | None:
    """The most restrictive compute mode of several GPUs."""
    return next((mode for mode in modes if mode != "Default"), modes[0] if modes else None)


def names_of(smi: Smi | None) -> Iterator[str]:
    for gpu in smi.gpus if smi else ():
        if gpu.name:
            yield gpu.name
