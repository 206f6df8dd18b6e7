"""GPUs: whether NVML, the driver and the framework see them, and whether there is code for them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.backends.base import of
from verify.backends.sight import START_WITH_GPUS, Sight, is_taken, judge_absent, short
from verify.checks.devices.missing import (
    CountRow,
    GpuCensus,
    count_table,
    judge_gone,
    listed,
    missing,
    read_bus,
)
from verify.checks.devices.visible import CHECKS as VISIBLE
from verify.checks.devices.visible import Selection, VisibleCard, cards_of, select
from verify.checks.health.sensors import judge_sensors, read_sensors
from verify.checks.libraries.compat import CHECKS as COMPAT
from verify.device import driver, nvml
from verify.device.machine import Machine
from verify.device.pci import PciGpu
from verify.model.check import (
    CONFIGURATION,
    IMAGE,
    UNKNOWN,
    Check,
    Context,
    Outcome,
    Status,
    gpus,
)
from verify.model.expectations import ExpectedGpu
from verify.model.measures import pack
from verify.running.faults import of_text
from verify.running.symptoms import explain

NO_PARTS = "in MIG mode, CUDA cannot use a GPU without MIG devices"
MAKE_PARTS = "on the host: nvidia-smi mig -cgi 0 -C creates one, nvidia-smi -mig 0 turns MIG off"

# NVML


def check_nvml(context: Context) -> Outcome:
    """Query NVML, which needs no framework, and the PCI bus."""
    machine, expect = context.machine, context.expect
    seen = nvml.read(machine.load)
    nodes = len(machine.nodes())
    pci = read_bus(machine, seen, nodes)
    found = judge_nvml(seen, nodes, expect.gpus, expect.cut, pci)
    return judge_sensors(found, read_sensors(machine)) if found.status is Status.PASS else found


def judge_nvml(
    seen: nvml.Nvml,
    nodes: int,
    expected: Optional[Sequence[ExpectedGpu]],
    cut: Sequence[str] = (),
    pci: Optional[Sequence[PciGpu]] = None,
) -> Outcome:
    """Whether NVML works and lists the expected GPUs, and those on the PCI bus; and none whose code
    was removed from the image, which has that for `cut` alone if there are any ("8.6").
    """
    census = GpuCensus(seen, nodes, pci)
    plan = ("plan", None if expected is None else len(expected), "")
    measured = {**_describe(seen), "on_pci": None if pci is None else len(pci)}
    measured.update(pack(tables=[count_table((*census.rows(), plan))]))
    wanted = {"gpus": None if expected is None else [gpu.uuid or gpu.name for gpu in expected]}
    gone = judge_gone(census)
    if gone:
        return replace(gone, measured=measured, expected=wanted)
    if seen.error or not seen.gpus:
        hint = "/dev has {} GPU nodes".format(nodes) if nodes else ""
        hint = "GPUs are expected" if expected else hint
        return _judge_no_nvml(seen, hint, measured, wanted, pci or ())
    unseen = missing(seen.gpus, expected or ())
    if unseen:
        message = "not visible: " + ", ".join(unseen)
        cause = "the container has other GPUs than the plan"
        fix = START_WITH_GPUS + ", or plan again for this machine"
        return Outcome(Status.FAIL, message, cause, fix, measured, wanted)
    bare = [gpu for gpu in seen.gpus if cut and gpu.compute_capability not in (None, *cut)]
    if bare:
        message = "{} has compute capability {}, the image has code for {} alone".format(
            bare[0].name, bare[0].compute_capability, ", ".join(cut)
        )
        cause = "the code for other GPUs was removed from its libraries (provision build --cut)"
        fix = "build an image for this GPU, too: provision build --cut, or without --cut"
        return Outcome(Status.FAIL, message, cause, fix, measured, wanted, IMAGE)
    kinds = ", ".join(sorted({str(gpu.name) for gpu in seen.gpus}))
    message = "{} ({}), driver {}".format(gpus(len(seen.gpus)), kinds, seen.driver)
    if seen.closed:
        message += "; {} more that this process cannot open".format(seen.closed)
    elif census.unlisted():
        message += "; on the PCI bus, too: " + listed(census.unlisted())
    return Outcome(Status.PASS, message, measured=measured, expected=wanted)


def _describe(seen: nvml.Nvml) -> Dict[str, Any]:
    rows = [
        {"name": g.name, "uuid": g.uuid, "compute_capability": g.compute_capability, "mig": g.mig}
        for g in seen.gpus
    ]
    read = {"driver": seen.driver, "cuda_driver": seen.cuda, "gpus": rows, "error": seen.error}
    return {**read, "closed": seen.closed}


def _judge_no_nvml(
    seen: nvml.Nvml,
    hint: str,
    measured: Dict[str, Any],
    wanted: Dict[str, Any],
    pci: Sequence[PciGpu],
) -> Outcome:
    if seen.found and seen.error:
        cause, fix = explain(seen.error)
        fix = fix or "look at nvidia-smi on the host"
        message = "NVML fails: " + seen.error
        whose = of_text(seen.error) or UNKNOWN
        return Outcome(Status.FAIL, message, cause or seen.error, fix, measured, wanted, whose)
    message = "NVML sees no GPU" if seen.found else "no NVIDIA driver library here"
    if seen.closed:
        message = "this process cannot open any of the {}".format(gpus(seen.closed))
        hint = ""
    message += ", yet " + hint if hint else ""
    if pci:
        drivers = sorted({gpu.driver or "no driver" for gpu in pci})
        message += "; the PCI bus has {} ({})".format(gpus(len(pci)), ", ".join(drivers))
    if hint:
        cause = "the container was started without GPUs, or without their libraries"
        fix = START_WITH_GPUS + "; NVIDIA_DRIVER_CAPABILITIES must hold utility"
        return Outcome(Status.FAIL, message, cause, fix, measured, wanted)
    return Outcome(Status.SKIP, message, fix=START_WITH_GPUS, measured=measured, expected=wanted)


# Counts


@dataclass(frozen=True)
class Counts:
    """How many GPUs NVML, the driver and the framework see."""

    nvml: Optional[int]
    driver: driver.CudaDriver
    torch: int  # what the framework can use
    visible_devices: Optional[str] = None  # CUDA_VISIBLE_DEVICES
    uuids: Tuple[str, ...] = ()
    mig: bool = False
    cards: Tuple[VisibleCard, ...] = ()  # NVML's GPUs with their MIG devices
    default: bool = False  # by NVML, every GPU admits several processes
    promised: Optional[int] = None  # from torch.cuda.device_count(), which may use NVML
    census: Optional[GpuCensus] = None

    def selection(self) -> Optional[Selection]:
        """Which of NVML's GPUs CUDA should show; None if that is not known."""
        if self.nvml is None or (self.mig and not self.cards):
            return None
        named = self.cards or tuple(VisibleCard(uuid) for uuid in self.uuids)
        return select(self.visible_devices, named or (VisibleCard(),) * self.nvml)


def read_counts(framework: int, machine: Machine) -> Counts:
    """Query NVML and the CUDA driver; `framework` is the framework's count."""
    seen, now = nvml.read(machine.load), machine.state()
    nodes = len(machine.nodes())
    known = not any(gpu.mig and gpu.mig_devices is None for gpu in now.gpus)
    cards = cards_of(now) if known else ()
    return Counts(
        nvml=len(seen.gpus) if seen.found and not seen.error else None,
        driver=driver.read(machine.load),
        torch=framework,
        visible_devices=machine.environ().get("CUDA_VISIBLE_DEVICES"),
        uuids=tuple(gpu.uuid or "" for gpu in seen.gpus),
        mig=any(gpu.mig for gpu in seen.gpus),
        default=bool(now.gpus) and all(gpu.compute_mode == "default" for gpu in now.gpus),
        cards=cards if len(cards) == len(seen.gpus) else (),
        census=GpuCensus(seen, nodes, read_bus(machine, seen, nodes)),
    )


def check_count(context: Context) -> Outcome:
    """Query NVML, the CUDA driver and the framework."""
    backend = of(context)
    seen = backend.look(context)
    if seen.torch_cuda is None:
        absent = backend.absent(seen)
        assert absent is not None
        return replace(absent, expected={"gpus": seen.expected})
    counts = read_counts(seen.usable, context.machine)
    return judge_count(replace(counts, promised=backend.promised()), seen, backend.counts_as)


def judge_count(counts: Counts, sight: Sight, framework: str = "torch") -> Outcome:
    """Whether all agree, once CUDA starts at all."""
    measured = {
        "nvml": counts.nvml,
        "driver": counts.driver.count,
        framework: counts.torch,
        "usable": sight.usable,
        "visible_devices": counts.visible_devices,
        "mig": counts.mig,
        "mig_devices": [part for card in counts.cards for part in card.parts],
        "driver_error": counts.driver.error,
    }
    if counts.census:
        rows = _count_rows(counts, sight, framework)
        measured.update(pack(tables=[count_table((*counts.census.rows(), *rows))]))
    expected = {"gpus": sight.expected}
    lie = _judge_lie(counts, sight)
    absent = lie or judge_absent(sight)
    if absent:
        whole = {**absent.measured, **measured}
        return replace(absent, measured=whole, expected=expected)
    faults = _disagreements(counts, sight, framework)
    if faults:
        return Outcome(Status.FAIL, *faults[0], measured, expected)
    message = "{}, by the driver and by {}".format(gpus(counts.torch), framework)
    note = "; MIG: a process can use only one MIG device" if measured["mig_devices"] else ""
    if counts.promised not in (None, counts.torch):
        said = ", and torch.cuda.device_count() is {} all the same: name a MIG device's UUID"
        note += said.format(counts.promised)
    return Outcome(Status.PASS, message + note, measured=measured, expected=expected)


def _count_rows(counts: Counts, sight: Sight, framework: str) -> List[CountRow]:
    have, hidden = counts.driver.count, counts.visible_devices
    why = "a GPU is lost, or this container may not use it"
    why = "MIG: a process can use only one MIG device" if counts.mig else why
    why = why if hidden is None else "CUDA_VISIBLE_DEVICES={}".format(hidden)
    fewer = "{} does not use what CUDA has".format(framework)
    return [
        ("CUDA driver", have, counts.driver.error or ("" if have == counts.nvml else why)),
        (framework, counts.torch, "" if counts.torch == have else sight.error or fewer),
        ("plan", sight.expected, ""),
    ]


def _judge_lie(counts: Counts, sight: Sight) -> Optional[Outcome]:
    """NVML has GPUs and CUDA has none: the case that device_count() alone would pass."""
    if sight.torch_cuda is None or sight.usable or not counts.nvml:
        return None
    picked = counts.selection()
    if picked and not picked.most and counts.visible_devices is not None:
        hider = "CUDA_VISIBLE_DEVICES={!r} hides every GPU".format(counts.visible_devices)
        said, hidden = "no GPU usable", "unset CUDA_VISIBLE_DEVICES"
        return Outcome(Status.FAIL, said, hider, hidden, at_fault=CONFIGURATION)
    if picked and not picked.most:
        said = "no GPU usable: MIG is on"
        return Outcome(Status.FAIL, said, NO_PARTS, MAKE_PARTS, at_fault=CONFIGURATION)
    error = short(counts.driver.error or sight.error or "no reason given")
    cause, fix = explain("{}\n{}".format(sight.error, counts.driver.error))
    message = "NVML sees {}, CUDA cannot use any: {}".format(gpus(counts.nvml), error)
    status = Status.SKIP if is_taken(error) and not counts.default else Status.FAIL
    return Outcome(status, message, cause or error, fix or START_WITH_GPUS)


def _disagreements(counts: Counts, sight: Sight, framework: str) -> "list[tuple[str, str, str]]":
    found = []
    have = counts.driver.count
    promised = counts.torch if counts.promised is None or counts.mig else counts.promised
    if promised != have or counts.torch != have:
        shown = promised if promised != have else counts.torch
        message = "{} counts {} GPUs, the CUDA driver {}".format(framework, shown, have)
        cause = "torch counts with NVML, which does not know what CUDA can use"
        fix = "unset PYTORCH_NVML_BASED_CUDA_CHECK; look for a lost GPU in nvidia-smi"
        if framework != "torch":
            cause = "{} does not use a GPU that the driver has".format(framework)
            fix = "check its output at startup: a library may be missing"
        found.append((message, cause, fix))
    picked = counts.selection()
    if picked is not None and not picked.least <= (have or 0) <= picked.most:
        found.append(_lost(counts, picked))
    if sight.expected is not None and not _as_expected(counts, sight.expected):
        message = "{} visible, {} expected".format(gpus(counts.torch), sight.expected)
        cause = "the container has another number of GPUs than the plan"
        if counts.visible_devices is not None:
            cause = "CUDA_VISIBLE_DEVICES={}".format(counts.visible_devices)
        elif sight.expected == counts.nvml and any(card.mig for card in counts.cards):
            return [*found, (message, NO_PARTS, MAKE_PARTS)]
        found.append((message, cause, START_WITH_GPUS + ", or plan again for this machine"))
    return found


def _as_expected(counts: Counts, expected: int) -> bool:
    """Whether the count is the plan's, which counts cards; with MIG, CUDA shows one slice."""
    cut = any(card.parts for card in counts.cards)
    meant = not cut or counts.visible_devices is not None
    return (cut and expected == counts.nvml) or (meant and expected == counts.torch)


def _lost(counts: Counts, picked: Selection) -> "tuple[str, str, str]":
    have = counts.driver.count
    if any(card.parts for card in counts.cards):
        parts = sum(len(card.parts) for card in counts.cards)
        message = "NVML shows {} MIG devices to CUDA, the CUDA driver has {}".format(parts, have)
        cause = "the container has a MIG device without access rights"
        return message, cause, "name MIG devices by UUID: --gpus device=MIG-..., as nvidia-smi -L"
    message = "NVML shows {} GPUs to CUDA, the CUDA driver has {}".format(picked.most, have)
    cause = "a GPU is lost, or CUDA_VISIBLE_DEVICES names one that does not exist"
    return message, cause, "look at nvidia-smi on the host and CUDA_VISIBLE_DEVICES"


# Architectures


def check_code(context: Context) -> Outcome:
    """Compare each GPU's capability with what the framework was compiled for."""
    backend = of(context)
    absent, places = backend.find_gpus(context)
    have = backend.architectures()
    if absent:
        return replace(absent, measured={**absent.measured, "architectures": have})
    capabilities = [place.capability for place in places if place.capability]
    expected = [gpu.compute_capability for gpu in context.expect.gpus or ()]
    return judge_architectures(capabilities, have, expected, framework=backend.counts_as)


def judge_architectures(
    capabilities: Sequence[Tuple[int, int]],
    architectures: Sequence[str],
    expected: Sequence[Optional[str]] = (),
    framework: str = "torch",
) -> Outcome:
    """Whether a binary or PTX runs on each GPU, and whether the GPUs are the plan's."""
    said = ["{}.{}".format(*capability) for capability in capabilities]
    runs = {text: runs_by(pair, architectures) for text, pair in zip(said, capabilities)}
    wanted = sorted(text for text in expected if text)
    measured = {"capabilities": said, "architectures": list(architectures), "runs": runs}
    aim = {"capabilities": wanted or None}
    bare = [text for text, how in runs.items() if how is None]
    if bare:
        message = "no code for compute capability {}".format(", ".join(bare))
        have = " ".join(architectures) or "no GPU"
        cause = "{} was compiled for {} only".format(framework, have)
        fix = "choose a build whose architectures cover this GPU: provision plan names one"
        return Outcome(Status.FAIL, message, cause, fix, measured, aim)
    if wanted and not set(said) <= set(wanted):  # CUDA_VISIBLE_DEVICES and MIG show a part
        message = "GPUs of capability {}, expected {}".format(", ".join(said), ", ".join(wanted))
        cause = "the plan is for other GPUs"
        fix = "plan again for this machine, or give the container the GPUs of the plan"
        return Outcome(Status.FAIL, message, cause, fix, measured, aim, CONFIGURATION)
    message = ", ".join("{} runs {}".format(text, how) for text, how in runs.items())
    return Outcome(Status.PASS, message, measured=measured, expected=aim)


def runs_by(capability: Tuple[int, int], architectures: Sequence[str]) -> Optional[str]:
    """What runs on a GPU of this capability: the nearest binary, else PTX, else None.

    A binary runs on GPUs with its major version and the same or a higher minor; 'a' means only that
    capability, 'f' that family. PTX without these suffixes is compiled at first use for any GPU as
    new or newer.
    """
    binaries: List[Tuple[Tuple[int, int], str]] = []
    ptx: List[Tuple[Tuple[int, int], str]] = []
    for text in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", text)
        if not match:
            continue
        have = (int(match.group(2)), int(match.group(3)))
        exact, kind = match.group(4), match.group(1)
        near = have == capability if exact == "a" else have <= capability
        if near and (have[0] == capability[0] or (kind == "compute" and not exact)):
            (binaries if kind == "sm" else ptx).append((have, text))
    if binaries:
        return max(binaries)[1]
    return "PTX " + max(ptx)[1] if ptx else None


WITHOUT_FRAMEWORK = (
    Check(
        "devices.nvml",
        "NVML lists the GPUs",
        check_nvml,
        framework=False,
        gpu=True,
        shares=True,
        replays=True,
    ),
    *VISIBLE,
    *COMPAT,
)
COUNT = Check(
    "devices.count",
    "NVML, CUDA and the framework see the same GPUs",
    check_count,
    gpu=True,
    shares=True,
)
CODE = Check(
    "devices.architectures",
    "The framework has code for the GPUs",
    check_code,
    gpu=True,
    shares=True,
)
