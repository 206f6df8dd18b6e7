"""The judging halves of the suite: what they say of readings that no machine here can give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from verify.backends.sight import Sight, judge_absent
from verify.checks import CHECKS
from verify.checks.collectives.sums import judge_ranks
from verify.checks.devices.compute import ComputeAnswer, judge_answers
from verify.checks.devices.inventory import (
    Counts,
    judge_architectures,
    judge_count,
    judge_nvml,
    runs_by,
)
from verify.checks.devices.missing import GpuCensus, read_bus
from verify.checks.devices.visible import VisibleCard
from verify.checks.libraries.files import Places, Shadow, find_shadows, judge_files
from verify.checks.libraries.pytorch import (
    _judge_library,
    cudnn_text,
    judge_cuda,
    judge_cudnn,
    judge_framework,
    judge_numpy,
    nccl_text,
)
from verify.checks.training.loss import judge_loss
from verify.device import driver, nvml
from verify.device.machine import Machine
from verify.device.maps import mapped
from verify.device.nvrtc import CompiledKernel, compile_with
from verify.device.pci import PciGpu
from verify.model.check import Check, Outcome, Status
from verify.model.expectations import Expectations, ExpectedGpu
from verify.running.children import Ending
from verify.running.symptoms import explain, kind, last_words

DATA = ROOT / "tests" / "data" / "verify"
PASS, FAIL, SKIP = Status.PASS, Status.FAIL, Status.SKIP
A100 = nvml.NvmlGpu("NVIDIA A100", "GPU-a", "8.0", mig=False)
OTHER = nvml.NvmlGpu("NVIDIA A100", "GPU-b", "8.0", mig=False)
ABSENT = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"


def holds(outcome: Outcome, status: Status, word: str = "") -> None:
    """The status, the telling word somewhere, and a cause and a fix on every failure."""
    assert outcome.status is status
    assert word in " | ".join(filter(None, (outcome.message, outcome.cause, outcome.fix)))
    assert outcome.message
    if status is FAIL:
        assert outcome.cause
        assert outcome.fix
    if status is PASS:
        assert outcome.cause is None
        assert outcome.fix is None


def nvml_of(*gpus: nvml.NvmlGpu, error: str | None = None, found: bool = True) -> nvml.Nvml:
    return nvml.Nvml(found=found, driver="515.65.01", cuda="11.7", gpus=gpus, error=error)


@pytest.mark.parametrize(
    ("seen", "nodes", "expected", "status", "word"),
    [
        pytest.param(nvml_of(A100), 1, None, PASS, "515.65.01", id="a GPU that answers passes"),
        pytest.param(nvml_of(A100), 1, [ExpectedGpu(uuid="GPU-a")], PASS, "",
                     id="the expected GPU passes"),
        pytest.param(nvml_of(A100), 1, [ExpectedGpu(uuid="GPU-z")], FAIL, "GPU-z",
                     id="another UUID than expected fails and is named"),
        pytest.param(nvml_of(A100), 1,
                     [ExpectedGpu(name="NVIDIA A100"), ExpectedGpu(name="NVIDIA A100")], FAIL,
                     "NVIDIA A100", id="two of a name need two"),
        pytest.param(nvml_of(OTHER, A100), 2,
                     [ExpectedGpu(name="NVIDIA A100"), ExpectedGpu(uuid="GPU-b")], PASS, "",
                     id="a nameless wish does not take the GPU that a UUID asks for"),
        pytest.param(nvml_of(A100, nvml.NvmlGpu()), 2, None, FAIL, "GPU 1",
                     id="a GPU that does not answer fails"),
        pytest.param(nvml_of(error=ABSENT, found=False), 0, None, SKIP, "no NVIDIA",
                     id="no driver is a skip"),
        pytest.param(nvml_of(error=ABSENT, found=False), 2, None, FAIL, "2 GPU nodes",
                     id="device nodes without a driver library fail"),
        pytest.param(nvml_of(error=ABSENT, found=False), 0, [ExpectedGpu()], FAIL, "--gpus all",
                     id="GPUs expected but no driver library fails"),
        pytest.param(nvml_of(error="nvmlInit_v2: Driver/library version mismatch (18)"), 0, None,
                     FAIL, "reboot", id="a library that does not match the kernel module fails"),
        pytest.param(nvml_of(error="nvmlInit_v2: Driver Not Loaded (9)"), 0, None, FAIL,
                     "modprobe nvidia", id="a kernel module that is not loaded fails"),
        pytest.param(nvml_of(), 0, [], SKIP, "sees no GPU", id="a driver without GPUs is a skip"),
    ],
)  # fmt: skip
def test_nvml(
    seen: nvml.Nvml,
    nodes: int,
    expected: Sequence[ExpectedGpu] | None,
    status: Status,
    word: str,
) -> None:
    holds(judge_nvml(seen, nodes, expected), status, word)


def on_bus(*drivers: str | None, models: str = "") -> list[PciGpu]:
    """Cards at 0000:01:00.0, 0000:02:00.0, ...; each letter is a model, or all are of one."""
    letters = models or "a" * len(drivers)
    return [
        PciGpu(f"0000:{place:02x}:00.0", device=model, driver=driver)
        for place, (driver, model) in enumerate(zip(drivers, letters, strict=True), start=1)
    ]


def listing(*places: int, **more: Any) -> nvml.Nvml:
    """NVML, with the cards at these places of the bus."""
    rows = [
        nvml.NvmlGpu("A card", f"GPU-{place}", "8.0", bus_id=f"00000000:{place:02X}:00.0")
        for place in places
    ]
    return nvml.Nvml(**{"found": True, "driver": "580.1", "gpus": tuple(rows), **more})


OURS = ("nvidia",)
LOST_ONE = (*(listing(1, 2, 4).gpus), nvml.NvmlGpu(failure="GPU is lost"))


@pytest.mark.parametrize(
    ("seen", "nodes", "pci", "status", "word"),
    [
        pytest.param(listing(1, 2), 2, on_bus(*OURS * 2), PASS, "2 GPUs", id="all are listed"),
        pytest.param(
            listing(*range(1, 8)),
            8,
            on_bus(*OURS * 8),
            FAIL,
            "NVML lists 7 of 8 GPUs, not 0000:08:00.0 (bound to nvidia)",
            id="one of eight is lost, its node is there",
        ),
        pytest.param(
            listing(*range(1, 8)),
            7,
            on_bus(*OURS * 7, None),
            FAIL,
            "dmesg | grep 0000:08:00)",
            id="one of eight failed to start, and has no node",
        ),
        pytest.param(
            listing(3),
            1,
            on_bus(*OURS * 7, None),
            PASS,
            "0000:07:00.0 (not given to this process); 0000:08:00.0 (no driver is bound to it)",
            id="a container with one GPU, on a machine that has lost another",
        ),
        pytest.param(
            listing(1, closed=7), 8, on_bus(*OURS * 8), PASS, "7 more", id="Slurm gave one of eight"
        ),
        pytest.param(
            listing(1),
            8,
            [
                replace(card, closed=card.address != "0000:01:00.0")
                for card in on_bus(*OURS * 7, None)
            ],
            PASS,
            "0000:07:00.0 (not given to this process)",
            id="Slurm gave one of eight, and NVML does not count the others",
        ),
        pytest.param(
            listing(1, closed=6),
            8,
            on_bus(*OURS * 8),
            PASS,
            "6 more",
            id="Slurm gave one, and which of the others is lost is not known",
        ),
        pytest.param(
            listing(1, 2),
            2,
            on_bus("nvidia", "nvidia", "vfio-pci", "nvgrace-gpu-vfio-pci", "xen-pciback"),
            PASS,
            "0000:03:00.0 (bound to vfio-pci, for a virtual machine)",
            id="some are given to virtual machines",
        ),
        pytest.param(
            listing(1),
            1,
            on_bus("nvidia", "nouveau"),
            FAIL,
            "echo 'blacklist nouveau' > /etc/modprobe.d/blacklist-nouveau.conf",
            id="nouveau has an equal card",
        ),
        pytest.param(
            listing(1),
            1,
            on_bus("nvidia", "nouveau", None, models="abc"),
            PASS,
            "02:00.0 (bound to nouveau); 0000:03:00.0 (no driver is bound to it: it is too old",
            id="older cards for the screen",
        ),
        pytest.param(
            listing(1, 2, excluded=("00000000:03:00.0",)),
            2,
            on_bus(*OURS * 3),
            PASS,
            "NVreg_ExcludedGpus",
            id="an option excludes one",
        ),
        pytest.param(
            listing(1, excluded=("00000000:03:00.0",)),
            2,
            on_bus(*OURS * 3),
            FAIL,
            "NVML lists 1 of 2 GPUs, not 0000:02:00.0",
            id="an option excludes one, and another is lost",
        ),
        pytest.param(
            nvml.Nvml(found=True, driver="580.1", gpus=LOST_ONE),
            4,
            on_bus(*OURS * 4),
            FAIL,
            "1 of 4 GPUs cannot be used: GPU 3 (0000:03:00.0): GPU is lost",
            id="the bus tells which one does not answer",
        ),
        pytest.param(listing(1), 0, [], PASS, "1 GPU", id="WSL2, whose bus lists no GPU"),
        pytest.param(nvml_of(A100), 1, [], PASS, "1 GPU", id="a GPU inside the processor (Jetson)"),
        pytest.param(
            nvml_of(A100), 2, on_bus(*OURS * 2), PASS, "1 GPU", id="NVML that tells no bus id"
        ),
        pytest.param(listing(1), 2, None, PASS, "1 GPU", id="a bus that was not recorded"),
        pytest.param(
            nvml_of(error=ABSENT, found=False),
            0,
            on_bus("nouveau", None),
            SKIP,
            "no NVIDIA driver library here; the PCI bus has 2 GPUs (no driver, nouveau)",
            id="a machine without NVIDIA's driver",
        ),
        pytest.param(  # github.com/NVIDIA/open-gpu-kernel-modules/issues/789
            listing(),
            1,
            on_bus("nvidia"),
            FAIL,
            "NVML lists 0 of 1 GPU, not 0000:01:00.0 (bound to nvidia)",
            id="the only card did not start",
        ),
        pytest.param(  # github.com/NVIDIA/aicr/issues/1858
            listing(*range(1, 8)),
            7,
            [*on_bus(*OURS * 7), PciGpu("000a:00:00.0", device="a")],
            FAIL,
            "dmesg | grep 000a:00:00)",
            id="in a cloud each card is alone in its domain, and one did not start",
        ),
        pytest.param(
            listing(),
            0,
            on_bus(*OURS * 8),
            SKIP,
            "NVML sees no GPU; the PCI bus has 8 GPUs (nvidia)",
            id="a container without GPUs",
        ),
    ],
)
def test_the_bus(
    seen: nvml.Nvml, nodes: int, pci: list[PciGpu] | None, status: Status, word: str
) -> None:
    holds(judge_nvml(seen, nodes, None, pci=pci), status, word)


@pytest.mark.parametrize(
    ("pci", "whose"),
    [
        pytest.param(on_bus("nvidia", None), "node", id="a card that did not start"),
        pytest.param(on_bus("nvidia", "nouveau"), "configuration", id="a card that nouveau has"),
        pytest.param(on_bus("nvidia", "nouveau", None), "node", id="both"),
    ],
)
def test_whose_fault_a_missing_card_is(pci: list[PciGpu], whose: str) -> None:
    assert judge_nvml(listing(1), 1, None, pci=pci).at_fault == whose


def test_only_cards_that_nvml_should_list_are_opened() -> None:
    class Bus(Machine):
        """Two cards that NVML lists, one that it does not, and one without a driver."""

        opened: tuple[str, ...] = ()

        def pci(self) -> tuple[PciGpu, ...]:
            return tuple(on_bus("nvidia", "nvidia", "nvidia", None))

        def is_closed(self, gpu: PciGpu) -> bool:
            self.opened += (gpu.address,)
            return True

    machine = Bus()
    cards = read_bus(machine, listing(1, 2), 3)
    assert machine.opened == ("0000:03:00.0", "0000:04:00.0")
    assert [card.closed for card in cards or ()] == [False, False, True, True]
    assert judge_nvml(listing(1, 2), 3, None, pci=cards).status is PASS


def number_of_gpus(outcome: Outcome) -> list[list[Any]]:
    (table,) = outcome.measured["tables"]
    assert table["title"] == "Number of GPUs"
    rows: list[list[Any]] = table["rows"]
    return rows


@pytest.mark.parametrize(
    ("more", "rows"),
    [
        pytest.param(
            {"nvml": 2, "driver": 2, "torch": 2},
            [["CUDA driver", 2, ""], ["torch", 2, ""], ["plan", 3, ""]],
            id="all that NVML lists",
        ),
        pytest.param(
            {"nvml": 2, "driver": 1, "torch": 1, "visible_devices": "1"},
            [["CUDA driver", 1, "CUDA_VISIBLE_DEVICES=1"], ["torch", 1, ""], ["plan", 3, ""]],
            id="a variable hides one",
        ),
        pytest.param(
            {"nvml": 2, "driver": 1, "torch": 1, "mig": True},
            [
                ["CUDA driver", 1, "MIG: a process can use only one MIG device"],
                ["torch", 1, ""],
                ["plan", 3, ""],
            ],
            id="MIG",
        ),
        pytest.param(
            {"nvml": 2, "driver": 1, "torch": 0},
            [
                ["CUDA driver", 1, "a GPU is lost, or this container may not use it"],
                ["torch", 0, "torch does not use what CUDA has"],
                ["plan", 3, ""],
            ],
            id="CUDA has lost one",
        ),
    ],
)
def test_one_table_explains_each_difference(more: dict[str, Any], rows: list[list[Any]]) -> None:
    census = GpuCensus(listing(1, 2, closed=1), 2, on_bus("nvidia", "nvidia", "nvidia", "vfio-pci"))
    answer = driver.CudaDriver(found=True, count=more.pop("driver"))
    look = sight(more["torch"], expected=3)
    passed_on = "bound to vfio-pci, for a virtual machine"
    closed = "1 that this process cannot open"
    outcome = judge_count(Counts(driver=answer, census=census, **more), look)
    assert number_of_gpus(outcome) == [
        ["PCI bus", 4, ""],
        ["device nodes", 2, "this container has some of them"],
        [
            "NVML",
            2,
            f"0000:03:00.0 (not given to this process); 0000:04:00.0 ({passed_on}); {closed}",
        ],
        *rows,
    ]
    assert number_of_gpus(judge_nvml(census.seen, 2, None, pci=census.pci))[3] == ["plan", None, ""]
    ((_, _, why), _) = number_of_gpus(judge_nvml(listing(1), 0, None, pci=[]))[2:]
    assert why == "not on the PCI bus: in WSL2, or in the processor"


@pytest.mark.parametrize(
    ("cut", "status"),
    [
        pytest.param((), PASS, id="nothing was removed"),
        pytest.param(("8.6", "9.0"), PASS, id="code for it was kept"),
        pytest.param(("8.6",), FAIL, id="its code was removed"),
    ],
)
def test_a_gpu_whose_code_was_removed_from_the_image(cut: Sequence[str], status: Status) -> None:
    gpu = nvml.NvmlGpu(name="NVIDIA H100", uuid="GPU-1", compute_capability="9.0")
    outcome = judge_nvml(nvml_of(gpu), 1, None, cut)
    holds(outcome, status, "alone" if status is FAIL else "H100")
    if status is FAIL:
        assert "--cut" in (outcome.fix or "")


def sight(usable: int = 2, **more: Any) -> Sight:
    return Sight(**{"torch_cuda": "11.7", "usable": usable, **more})


CUT = (VisibleCard("GPU-a", mig=True, parts=("MIG-1", "MIG-2")), VisibleCard("GPU-b"))
NO_DRIVER = "RuntimeError: Found no NVIDIA driver on your system. Please check"


@pytest.mark.parametrize(
    ("seen", "status", "word"),
    [
        pytest.param(sight(0, error=NO_DRIVER), SKIP, "no GPU visible", id="nothing hints: a skip"),
        pytest.param(sight(0, error=NO_DRIVER, expected=0), SKIP, "no GPU",
                     id="none expected: a skip"),
        pytest.param(sight(0, error=NO_DRIVER, expected=2), FAIL, "2 expected",
                     id="GPUs expected: a failure"),
        pytest.param(sight(0, error=NO_DRIVER, nodes=1), FAIL, "device nodes",
                     id="device nodes: a failure"),
        pytest.param(sight(0, error=NO_DRIVER, nvml=2), FAIL, "NVML sees 2",
                     id="NVML has GPUs that CUDA cannot use: a failure"),
        pytest.param(sight(0, error="RuntimeError: Error 802: system not yet initialized",
                           driver=True), FAIL, "fabricmanager",
                     id="a fabric that is not up names its service"),
        pytest.param(sight(0, error="RuntimeError: CUDA unknown error - this may be", driver=True),
                     FAIL, "nvidia-modprobe", id="error 999 names the missing module"),
        pytest.param(sight(0, torch_cuda=None), FAIL, "CPU build",
                     id="a CPU build fails without a GPU too"),
        pytest.param(sight(0, torch_cuda=None, rocm="6.4.2"), FAIL, "AMD's GPUs",
                     id="a build for AMD's GPUs is no CPU build"),
        pytest.param(sight(0, nodes=1), FAIL, "no device", id="CUDA starting with no device fails"),
    ],
)  # fmt: skip
def test_no_usable_gpu(seen: Sight, status: Status, word: str) -> None:
    outcome = judge_absent(seen)
    assert outcome is not None
    holds(outcome, status, word)


def test_usable_gpus_let_a_check_go_on() -> None:
    assert judge_absent(sight(1)) is None


BUSY = "Error 46: CUDA-capable device(s) is/are busy or unavailable"


def counts(have_nvml: int | None, have_driver: int | None, torch: int, **more: Any) -> Counts:
    seen = driver.CudaDriver(found=True, count=have_driver, error=more.pop("error", None))
    return Counts(nvml=have_nvml, driver=seen, torch=torch, **more)


@pytest.mark.parametrize(
    ("seen", "look", "status", "word"),
    [
        pytest.param(counts(2, 2, 2), sight(2), PASS, "2 GPUs", id="all agree"),
        pytest.param(counts(2, 2, 2), sight(2, expected=2), PASS, "", id="all agree with the plan"),
        pytest.param(counts(None, 2, 2), sight(2), PASS, "",
                     id="no NVML is another check's matter"),
        pytest.param(counts(2, None, 2), sight(0, error=NO_DRIVER, nvml=2), FAIL,
                     "CUDA cannot use any", id="torch believes NVML alone"),
        pytest.param(
            counts(2, None, 0,
                   error="Error 803: unsupported display driver / cuda driver combination"),
            sight(0, error="RuntimeError: Unexpected error", nvml=2), FAIL, "cuda-compat",
            id="the driver's own error is explained"),
        pytest.param(counts(1, 1, 0, error=BUSY),
                     sight(0, nvml=1), SKIP, "busy", id="in use"),
        pytest.param(counts(1, 1, 0, default=True, error=BUSY),
                     sight(0, nvml=1), FAIL, "look for NVRM in the host's kernel log",
                     id="in default mode it is not in use: it needs a reset"),
        pytest.param(counts(2, 1, 2), sight(2), FAIL, "torch counts 2",
                     id="torch is over the driver"),
        pytest.param(counts(2, 1, 1, promised=2), sight(1), FAIL, "torch counts 2",
                     id="torch promises more"),
        pytest.param(counts(8, 1, 1, promised=8, mig=True,
                            cards=(VisibleCard("a", mig=True, parts=("x",)),) * 8), sight(1), PASS,
                     "torch.cuda.device_count() is 8 all the same: name a MIG device's UUID",
                     id="eight GPUs in MIG mode, of which CUDA offers one part"),
        pytest.param(counts(2, 1, 1), sight(1), FAIL, "NVML shows 2",
                     id="the driver has lost a GPU"),
        pytest.param(counts(2, 1, 1, visible_devices="1"), sight(1), PASS, "",
                     id="one of two was chosen"),
        pytest.param(counts(2, 1, 1, visible_devices="1"), sight(1, expected=2), FAIL,
                     "CUDA_VISIBLE_DEVICES=1", id="a chosen one is too few for the plan"),
        pytest.param(counts(2, 0, 0, visible_devices=""),
                     sight(0, error="RuntimeError: No CUDA GPUs are available", nvml=2), FAIL,
                     "hides every GPU", id="an empty CUDA_VISIBLE_DEVICES hides them all"),
        pytest.param(counts(2, 2, 2), sight(2, expected=1), FAIL, "1 expected",
                     id="more than the plan's"),
        pytest.param(counts(1, 1, 1, mig=True), sight(1, expected=1), PASS, "",
                     id="a MIG slice is one"),
        pytest.param(counts(2, 1, 1, mig=True, cards=CUT), sight(1, expected=2), PASS,
                     "one MIG device",
                     id="cards cut by MIG are counted as cards, and CUDA shows one slice"),
        pytest.param(counts(2, 1, 1, mig=True, cards=CUT, visible_devices="GPU-b"),
                     sight(1, expected=1), PASS, "", id="the card beside one that MIG cuts"),
        pytest.param(counts(2, 1, 1, mig=True, cards=CUT, visible_devices="MIG-1"),
                     sight(1, expected=1), PASS, "", id="a slice that was chosen"),
        pytest.param(counts(2, 1, 1, mig=True, cards=CUT), sight(1, expected=1), FAIL, "1 expected",
                     id="two cards with MIG on one are more than the plan's"),
        pytest.param(counts(2, 1, 1, mig=True,
                            cards=(VisibleCard("GPU-a", mig=True), VisibleCard("GPU-b"))),
                     sight(1, expected=2), FAIL, "nvidia-smi mig -cgi",
                     id="a card in MIG mode without slices is missing in the plan"),
        pytest.param(counts(2, 3, 3, mig=True, cards=CUT), sight(3), PASS, "",
                     id="all slices and the rest"),
        pytest.param(counts(2, 4, 4, mig=True, cards=CUT), sight(4), FAIL,
                     "NVML shows 2 MIG devices", id="more than all slices and the rest"),
        pytest.param(counts(1, 0, 0, mig=True, cards=(VisibleCard("GPU-a", mig=True),)),
                     sight(0, error="RuntimeError: No CUDA GPUs are available", nvml=1), FAIL,
                     "nvidia-smi mig -cgi", id="MIG without slices"),
        pytest.param(counts(2, 1, 1, mig=True,
                            cards=(VisibleCard("GPU-a", mig=True), VisibleCard("GPU-b"))), sight(1),
                     PASS, "", id="a card in MIG mode without slices is left out"),
        pytest.param(counts(0, 0, 0), sight(0, error=NO_DRIVER), SKIP, "no GPU visible",
                     id="no GPU: a skip"),
        pytest.param(counts(2, 2, 0), sight(0, torch_cuda=None), FAIL, "CPU build",
                     id="a CPU build of torch"),
    ],
)  # fmt: skip
def test_count(seen: Counts, look: Sight, status: Status, word: str) -> None:
    holds(judge_count(seen, look), status, word)


def test_another_frameworks_count_is_told_by_its_name() -> None:
    holds(judge_count(counts(2, 2, 1), sight(2), "JAX"), FAIL, "JAX counts 1")


def test_another_frameworks_architectures_are_told_by_its_name() -> None:
    holds(judge_architectures([(9, 0)], CU117, framework="TensorFlow"), FAIL, "TensorFlow was")


CU117 = ["sm_37", "sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86"]


@pytest.mark.parametrize(
    ("capability", "architectures", "how"),
    [
        pytest.param((8, 6), CU117, "sm_86", id="its own binary"),
        pytest.param((8, 9), CU117, "sm_86", id="an older minor of the same major"),
        pytest.param((8, 0), ["sm_86"], None, id="a newer minor does not run"),
        pytest.param((9, 0), CU117, None, id="a newer major does not run"),
        pytest.param((9, 0), [*CU117, "compute_86"], "PTX compute_86", id="PTX runs on newer"),
        pytest.param((8, 6), ["compute_90"], None, id="PTX does not run on older"),
        pytest.param((9, 0), ["sm_90a"], "sm_90a", id="an a-binary runs on its own"),
        pytest.param((12, 1), ["sm_120a"], None, id="an a-binary runs nowhere else"),
        pytest.param((12, 1), ["sm_120f"], "sm_120f", id="an f-binary runs in its family"),
        pytest.param((10, 0), ["compute_90a"], None, id="a-PTX is no way forward"),
        pytest.param((12, 0), ["sm_120"], "sm_120", id="three digits are 12.0"),
        pytest.param((8, 0), [], None, id="no code at all"),
        pytest.param((8, 0), ["gfx90a"], None, id="another maker's code"),
    ],
)
def test_what_runs(capability: tuple[int, int], architectures: list[str], how: str | None) -> None:
    assert runs_by(capability, architectures) == how


@pytest.mark.parametrize(
    ("capabilities", "expected", "status", "word"),
    [
        pytest.param([(8, 6)], [], PASS, "8.6 runs sm_86", id="covered"),
        pytest.param([(8, 6), (9, 0)], [], FAIL, "9.0", id="one of two is not covered"),
        pytest.param([(8, 6)], ["8.0"], FAIL, "expected 8.0", id="another GPU than the plan's"),
        pytest.param([(8, 6)], [None], PASS, "", id="an unknown capability is not compared"),
        pytest.param([(8, 6)], ["8.6"] * 8, PASS, "", id="one of eight is shown, or a part of one"),
        pytest.param(
            [(7, 5)], ["8.6", "7.5"], PASS, "7.5 runs sm_75", id="one of two kinds is shown"
        ),
    ],
)
def test_architectures(
    capabilities: list[tuple[int, int]], expected: list[str | None], status: Status, word: str
) -> None:
    holds(judge_architectures(capabilities, CU117, expected), status, word)


NO_IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"


@pytest.mark.parametrize(
    ("answers", "status", "word"),
    [
        pytest.param([ComputeAnswer(0, "A", "sum", 0, 1)], PASS, "1 GPU: sum", id="right"),
        pytest.param([ComputeAnswer(0, "A", "sum", 0, 1), ComputeAnswer(1, "A", "sum", 1, 1)], FAIL,
                     "GPU 1 (A), sum: 1 of 1", id="the second GPU is wrong"),
        pytest.param([ComputeAnswer(0, "A", "sum", error=NO_IMAGE)], FAIL,
                     "compiled for sm_37 sm_50", id="no kernel image shows both sides"),
        pytest.param([ComputeAnswer(0, "A", "sum", error="RuntimeError: CUDA error: Xid")], FAIL,
                     "Xid", id="an unknown error still has a fix"),
        pytest.param([ComputeAnswer(0, "A", "sum", 0, 0)], FAIL, "0 of 0", id="nothing compared"),
        pytest.param([], FAIL, "nothing was computed", id="no answer at all"),
    ],
)  # fmt: skip
def test_known_answers(answers: list[ComputeAnswer], status: Status, word: str) -> None:
    holds(judge_answers(answers, ["9.0", "9.0"], CU117), status, word)


LOCKED = Expectations(framework="2.0.1", wheel_tag="cu117", python="3.11")


@pytest.mark.parametrize(
    ("version", "cuda", "python", "stray", "status", "word"),
    [
        pytest.param("2.0.1+cu117", "11.7", "3.11.2", None, PASS, "2.0.1", id="as locked"),
        pytest.param("2.0.1", "11.7", "3.11.2", None, PASS, "cu117", id="told by its CUDA"),
        pytest.param("2.1.0+cu117", "11.7", "3.11.2", None, FAIL, "2.1.0", id="another version"),
        pytest.param("2.0.1+cu118", "11.8", "3.11.2", None, FAIL, "cu118", id="another build"),
        pytest.param("2.0.1+cu117", "11.7", "3.10.4", None, FAIL, "3.10", id="another Python"),
        pytest.param("2.0.1+cpu", None, "3.11.2", None, FAIL, "CPU build", id="a CPU build"),
        pytest.param(
            "2.0.1+cu117", "11.7", "3.11.2", "/h/t", FAIL, "PYTHONNOUSERSITE", id="from a home"
        ),
    ],
)
def test_framework(
    version: str, cuda: str | None, python: str, stray: str | None, status: Status, word: str
) -> None:
    holds(judge_framework(version, cuda, python, LOCKED, stray=stray), status, word)


def test_nothing_expected_is_said() -> None:
    holds(judge_framework("2.0.1", "11.7", "3.11.2", Expectations()), PASS, "no expectation")


@pytest.mark.parametrize(
    ("compiled", "runtime", "expected", "status", "word"),
    [
        pytest.param("11.7", 11070, "11.7", PASS, "runtime 11.7", id="as locked"),
        pytest.param("11.7", None, "11.7", PASS, "unknown", id="the runtime did not say"),
        pytest.param("11.7", 11080, None, PASS, "11.8", id="a newer minor runs"),
        pytest.param("11.8", 11070, None, FAIL, "LD_LIBRARY_PATH", id="an older minor does not"),
        pytest.param("11.7", 12010, None, FAIL, "12.1", id="another major does not"),
        pytest.param("11.8", 11080, "11.7", FAIL, "11.7", id="another build than asked for"),
        pytest.param(None, None, None, FAIL, "without CUDA", id="a CPU build"),
    ],
)
def test_cuda(
    compiled: str | None, runtime: int | None, expected: str | None, status: Status, word: str
) -> None:
    holds(judge_cuda(compiled, runtime, expected), status, word)


@pytest.mark.parametrize(
    ("number", "error", "expected", "status", "word"),
    [
        pytest.param(8500, None, "8.5.0.96", PASS, "8.5.0", id="the fourth number is not told"),
        pytest.param(90100, None, "9.1.0.70", PASS, "9.1.0", id="cuDNN 9 counts wider"),
        pytest.param(8500, None, "8.7.0.84", FAIL, "8.7.0.84", id="another cuDNN"),
        pytest.param(8500, None, None, PASS, "no expectation", id="nothing expected"),
        pytest.param(None, None, None, FAIL, "without cuDNN", id="no cuDNN"),
        pytest.param(
            None,
            "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (8, 5, 0)",
            None, FAIL, "LD_LIBRARY_PATH", id="torch's own complaint is explained"),
    ],
)  # fmt: skip
def test_cudnn(
    number: int | None, error: str | None, expected: str | None, status: Status, word: str
) -> None:
    holds(judge_cudnn(number, error, expected), status, word)


@pytest.mark.parametrize(
    ("number", "text"), [(8500, "8.5.0"), (7605, "7.6.5"), (8907, "8.9.7"), (91002, "9.10.2")]
)
def test_cudnn_numbers(number: int, text: str) -> None:
    assert cudnn_text(number) == text


@pytest.mark.parametrize(
    ("said", "text"), [((2, 14, 3), "2.14.3"), (21403, "2.14.3"), (2708, "2.7.8")]
)
def test_nccl_numbers(said: object, text: str) -> None:
    assert nccl_text(said) == text


def test_another_nccl_fails() -> None:
    holds(_judge_library("NCCL", "2.14.3", None, "2.18.1"), FAIL, "2.18.1")


SITE = "/opt/venv/lib/python3.11/site-packages"
OWN = ("libcudart", SITE + "/nvidia/cuda_runtime/lib/libcudart.so.11.0")
OUT = ("libcudnn", "/usr/local/cuda/lib64/libcudnn.so.8")
PLACES = Places((SITE,), library_path=("/usr/local/cuda/lib64/",))


@pytest.mark.parametrize(
    ("found", "places", "status", "word"),
    [
        pytest.param([OWN], PLACES, PASS, "1 CUDA libraries", id="its own file"),
        pytest.param([OWN, OUT], PLACES, FAIL, "LD_LIBRARY_PATH entry /usr/local/cuda/lib64/",
                     id="shadowed through LD_LIBRARY_PATH"),
        pytest.param([OUT], Places((SITE,)), FAIL, "ld.so.conf", id="the system's in its place"),
        pytest.param([OUT], Places((SITE,), preload=OUT[1]), FAIL, "LD_PRELOAD",
                     id="brought by LD_PRELOAD"),
        pytest.param([OWN, ("libcudart", SITE + "/torch/lib/libcudart-d0da41ae.so.11.0")], PLACES,
                     FAIL, "CUDA twice: libcudart", id="one library from two packages"),
        pytest.param([OWN, ("libcuda", "/usr/local/cuda/lib64/stubs/libcuda.so.1")], PLACES, FAIL,
                     "stub", id="a stub of the driver"),
        pytest.param([OWN, ("libcuda", "/usr/lib/x86_64-linux-gnu/libcuda.so.1")], PLACES, PASS, "",
                     id="the driver's library is the host's"),
        pytest.param([], PLACES, SKIP, "linked into", id="no file at all"),
        pytest.param([("libcudart", SITE + "-old/libcudart.so.12")], PLACES, FAIL, "outside",
                     id="a folder whose name only begins alike"),
    ],
)  # fmt: skip
def test_files(found: list[tuple[str, str]], places: Places, status: Status, word: str) -> None:
    holds(judge_files(found, places, "11.7", convolved=True), status, word)


OPS = "/opt/other/libcudnn_ops.so.9"


@pytest.mark.parametrize(
    ("shadow", "found", "status", "word"),
    [
        pytest.param(Shadow("libcudnn_ops", OPS, SITE + "/nvidia/cudnn/lib/libcudnn_ops.so.9",
                            "/opt/other"), [OWN], FAIL, "LD_LIBRARY_PATH entry /opt/other",
                     id="a part of cuDNN that will be loaded from there"),
        pytest.param(Shadow("libcudnn_ops", OPS, SITE + "/libcudnn_ops.so.9", "/opt/other",
                            copy=True), [OWN], PASS, "not used: /opt/other",
                     id="a copy of it is told"),
        pytest.param(Shadow("libcudnn_ops", OPS, SITE + "/libcudnn_ops.so.9", "/opt/other"),
                     [OWN, ("libcudnn_ops", SITE + "/libcudnn_ops.so.9")], PASS,
                     "not used: /opt/other", id="it has been loaded from its own place"),
        pytest.param(Shadow("libcudart", "/opt/other/libcudart.so.11.0", OWN[1], "/opt/other"), [],
                     SKIP, "linked into", id="torch finds libcudart by its RPATH"),
    ],
)  # fmt: skip
def test_a_shadow(shadow: Shadow, found: list[tuple[str, str]], status: Status, word: str) -> None:
    holds(judge_files(found, PLACES, "12.8", convolved=False, shadows=[shadow]), status, word)


BUILTINS = "libnvrtc-builtins"


@pytest.mark.parametrize(
    ("file", "status"),
    [
        # As on an H200 with CUDA 13.0 installed, where JAX's own libnvrtc 13.0 finds that one.
        pytest.param("libnvrtc-builtins.so.13.0.88", PASS, id="of the version that is asked for"),
        pytest.param("libnvrtc-builtins.so", FAIL, id="a name without a version"),
    ],
)
def test_nvrtc_s_second_library_from_a_toolkit(file: str, status: Status) -> None:
    path = f"/usr/local/cuda-13.0/lib64/{file}"
    holds(judge_files([OWN, (BUILTINS, path)], Places((SITE,)), "13.0", convolved=True), status)
    shadow = Shadow(BUILTINS, path, f"{SITE}/nvidia/cu13/lib/{file}", "/usr/local/cuda-13.0/lib64")
    found = judge_files([OWN], Places((SITE,)), "13.0", convolved=True, shadows=[shadow])
    assert found.status is status


NVRTC = f"{SITE}/nvidia/cu13/lib/libnvrtc.so.13"


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        pytest.param(None, PASS, "each once", id="it compiles"),
        pytest.param(
            "nvrtc: error: failed to open libnvrtc-builtins.so.13.0.",
            FAIL,
            f"LD_LIBRARY_PATH={SITE}/nvidia/cu13/lib",
            id="its second library is not found",
        ),
        pytest.param("undefined symbol: nvrtcCreateProgram", FAIL, "undefined", id="another"),
    ],
)
def test_nvrtc_compiles(error: str | None, status: Status, words: str) -> None:
    compiled = CompiledKernel(NVRTC, error)
    outcome = judge_files([OWN], Places((SITE,)), "13.0", convolved=True, compiled=compiled)
    holds(outcome, status)
    assert words in f"{outcome.message} {outcome.cause} {outcome.fix}"
    assert outcome.measured["nvrtc"] == (error or "compiles")


def test_nvrtc_is_asked_only_where_it_is_loaded() -> None:
    assert compile_with([OWN]) is None
    broken = compile_with([("libnvrtc", "/nowhere/libnvrtc.so.13")])
    assert broken is not None
    assert "/nowhere/libnvrtc.so.13" in (broken.error or "")


def test_shadows_are_found_by_name(tmp_path: Path) -> None:
    own = tmp_path / "site" / "nvidia" / "cudnn" / "lib"
    other, link = tmp_path / "other", tmp_path / "link"
    for folder in (own, other, link):
        folder.mkdir(parents=True)
    (own / "libcudnn_ops.so.9").write_bytes(b"own")
    (other / "libcudnn_ops.so.9").write_bytes(b"another")
    (other / "libcudnn_ops.so.8").write_bytes(b"of another name")
    (other / "libz.so.1").write_bytes(b"no CUDA library")
    (link / "libcudnn_ops.so.9").symlink_to(own / "libcudnn_ops.so.9")
    (link / "libcudnn_gone.so.9").symlink_to(tmp_path / "nowhere")
    paths = (str(other), str(link), str(tmp_path / "no directory"))
    found = find_shadows(Places((str(tmp_path / "site"),), library_path=paths))
    assert [(s.stem, s.path, s.copy) for s in found] == [
        ("libcudnn_ops", str(other / "libcudnn_ops.so.9"), False)
    ]


def test_files_of_a_cpu_build() -> None:
    holds(judge_files([], PLACES, None, convolved=False), FAIL, "CPU build")


def test_parts_that_were_not_seen_are_said() -> None:
    holds(judge_files([OWN], PLACES, "11.7", convolved=False), PASS, "not checked")


def test_a_real_map_is_read() -> None:
    found = mapped((DATA / "maps-torch-2.0.1+cu117.txt").read_text())
    stems = [stem for stem, _ in found]
    assert len(stems) == len(set(stems)) == 12
    assert {"libcudart", "libcudnn", "libcudnn_ops_infer", "libcublasLt", "libnccl"} <= set(stems)
    holds(judge_files(found, PLACES, "11.7", convolved=False), PASS)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("libcudart-d0da41ae.so.11.0", "libcudart"),
        ("libnvrtc-builtins.so.11.7", "libnvrtc-builtins"),
        ("libcudnn_cnn_infer.so.8 (deleted)", "libcudnn_cnn_infer"),
        ("libcuda.so.515.65.01", "libcuda"),
        ("libnccl-net.so", None),
        ("libc10_cuda.so", None),
    ],
)
def test_names_in_a_map(name: str, stem: str | None) -> None:
    found = mapped("7f00-7f01 r-xp 00000000 00:1f 42    /a folder/" + name + "\n")
    assert [row[0] for row in found] == ([stem] if stem else [])


def rank(wrong: int = 0, **more: Any) -> Ending:
    return Ending(**{"value": {"wrong": wrong}, "returned": True, **more})


def gone(**more: Any) -> Ending:
    return Ending(**{"timed_out": True, "seconds": 60.0, **more})


NCCL_LOG = "h:1:9 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a\nmore"


@pytest.mark.parametrize(
    ("endings", "backend", "status", "word"),
    [
        pytest.param([rank(), rank()], "nccl", PASS, "2 ranks", id="right on every rank"),
        pytest.param([rank()], "nccl", PASS, "no transfer between", id="one rank says so"),
        pytest.param([rank(), rank()], "gloo", PASS, "NCCL not tested", id="gloo proves no NCCL"),
        pytest.param([rank(), rank(3)], "nccl", FAIL, "rank 1", id="a wrong sum names its rank"),
        pytest.param([gone(), gone()], "nccl", FAIL, "hang", id="a hang"),
        pytest.param([gone(output=NCCL_LOG), gone()], "nccl", FAIL, "failed to extend",
                     id="a hang quotes NCCL's warning"),
        pytest.param([gone(), Ending(signal="SIGSEGV", seconds=1.0)], "nccl", FAIL,
                     "rank 1 of 2 killed by SIGSEGV", id="the rank that fell first is named"),
        pytest.param([Ending(raised="RuntimeError: x", output="Error: Duplicate GPU detected"),
                      gone()], "nccl", FAIL, "CUDA_VISIBLE_DEVICES",
                     id="a known error is explained"),
        pytest.param([Ending(raised="RuntimeError: no route", code=0)], "gloo", FAIL, "loopback",
                     id="gloo"),
    ],
)  # fmt: skip
def test_ranks(endings: list[Ending], backend: str, status: Status, word: str) -> None:
    holds(judge_ranks(endings, backend), status, word)


@pytest.mark.parametrize(
    ("losses", "status", "word"),
    [
        pytest.param([1.0, 0.01], PASS, "on the GPU", id="down far enough"),
        pytest.param([1.0, 0.1], PASS, "", id="the factor itself is enough"),
        pytest.param([1.0, 0.5], FAIL, "10-fold", id="not far enough"),
        pytest.param([1.0, 2.0], FAIL, "10-fold", id="up"),
        pytest.param([1.0, float("nan"), 0.01], FAIL, "nan at step 1", id="not a number between"),
        pytest.param([float("inf"), 0.01], FAIL, "inf at step 0", id="infinite"),
        pytest.param([], FAIL, "no step", id="no step"),
    ],
)
def test_loss(losses: list[float], status: Status, word: str) -> None:
    holds(judge_loss(losses, "cuda"), status, word)


def test_loss_on_the_cpu_says_so() -> None:
    outcome = judge_loss([1.0, 0.01], "cpu")
    holds(outcome, PASS, "on the CPU: no GPU visible")
    assert outcome.measured["device"] == "cpu"


@pytest.mark.parametrize(
    ("version", "error", "total", "status", "word"),
    [
        pytest.param("1.26.4", None, 10.0, PASS, "1.26.4", id="there and back"),
        pytest.param(None, None, None, SKIP, "not installed", id="no NumPy"),
        pytest.param(
            "2.1.0", "RuntimeError: Numpy is not available", None, FAIL, "numpy<2", id="wrong ABI"
        ),
        pytest.param("1.26.4", None, 11.0, FAIL, "corrupted", id="another sum"),
        pytest.param(None, "ImportError: no C API", None, FAIL, "broken", id="NumPy itself broken"),
    ],
)
def test_numpy(
    version: str | None, error: str | None, total: float | None, status: Status, word: str
) -> None:
    holds(judge_numpy(version, error, total), status, word)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("OSError: libcublas.so.11: cannot open shared object file", "libcublas.so.11"),
        ("libcuda.so.1: cannot open shared object file", "started without GPUs"),
        ("The NVIDIA driver on your system is too old (found version 10020)", "older"),
        ("CUDNN_STATUS_NOT_INITIALIZED", "mixed cuDNN"),
        ("Error while creating shared memory segment /dev/shm/nccl-x", "too small"),
        ("Unexpected error from cudaGetDeviceCount(): Error 801: operation not", "no licence"),
        ("failed to get primary CUDA context: operation not supported (801)", "no licence"),
        ("RuntimeError: CUDA error: operation not supported", "no licence"),
        ("CUDA_ERROR_NOT_SUPPORTED: operation not supported", "no licence"),
        ("804: forward compatibility was attempted on non supported HW", "data-centre"),
        ("/lib/libm.so.6: version `GLIBC_2.35' not found", "older than"),
        ("undefined symbol: cublasLtGetStatusString", "damaged"),
    ],
)
def test_symptoms(text: str, word: str) -> None:
    cause, fix = explain(text)
    assert cause is not None
    assert word in cause
    assert fix


def test_an_unknown_text_is_not_explained() -> None:
    assert explain("all is well") == (None, None)
    assert explain("OSError: [Errno 95] Operation not supported") == (None, None)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        (NCCL_LOG, NCCL_LOG.splitlines()[0]),
        ("Traceback\nValueError: bad\nbye", "ValueError: bad"),
    ],
)
def test_last_words(output: str, words: str) -> None:
    assert last_words(output) == words


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.", "hardware"),
        ("GPU is lost. Reboot the system to recover this GPU", "hardware"),
        ("CUDA error: uncorrectable ECC error encountered", "hardware"),
        ("CUDA_ERROR_ECC_UNCORRECTABLE", "hardware"),
        (
            "Invalid access of peer GPU memory over nvlink or a uncorrectable NVLink error",
            "hardware",
        ),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "config"),
        ("FIND was unable to find an engine to execute this computation", "kernel"),
        ("RuntimeError: No valid engine configs for Matmul_MUL_GEN_INDEX", "kernel"),
        ("No execution plans support the graph.", "kernel"),
        ("CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`", "kernel"),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "memory"),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", "memory"),
        ("the provided PTX was compiled with an unsupported toolchain.", "pairing"),
        ("CUDA error: invalid device ordinal", "config"),
        ("CUDA error: an illegal memory access was encountered", "program"),
        ("peer access is not supported between these two devices", "topology"),
        ("all is well", None),
    ],
)
def test_a_text_says_where_its_cause_lies(text: str, where: str | None) -> None:
    assert kind(text) == where


@pytest.mark.parametrize(
    "error",
    [
        "CUDA error: all CUDA-capable devices are busy or unavailable",
        "Error 46: all CUDA-capable devices are busy or unavailable",
        "CUDA_ERROR_DEVICES_UNAVAILABLE",
    ],
)
def test_a_gpu_that_another_process_has_to_itself_is_no_fault(error: str) -> None:
    taken = Sight(torch_cuda="12.8", usable=0, error=error, nvml=1)
    outcome = judge_absent(taken)
    assert outcome is not None
    assert (outcome.status, outcome.cause) == (SKIP, explain(error)[0])


def test_what_is_asked_of_several_frameworks_is_declared_once() -> None:
    found: dict[str, Check] = {}
    for checks in CHECKS.values():
        assert len({check.id for check in checks}) == len(checks)
        for check in checks:
            assert found.setdefault(check.id, check) is check
