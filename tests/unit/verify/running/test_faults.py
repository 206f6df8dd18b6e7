"""What is at fault when a check fails: by its judge, by the text, by its id; and for a machine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.cases import cases
from tests.unit.verify.checks.numerics.test_numerics import reading
from verify.backends.sight import Sight, judge_absent
from verify.checks import CHECKS
from verify.checks.collectives.sums import judge_ranks
from verify.checks.devices.compute import ComputeAnswer, judge_answers
from verify.checks.devices.inventory import judge_architectures, judge_nvml
from verify.checks.devices.peers import PeerCopy, judge_copies
from verify.checks.health.condition import judge_mode
from verify.checks.health.gpu_memory import judge_memory
from verify.checks.libraries.compat import LoadedLibrary, judge_compat
from verify.checks.libraries.pytorch import judge_framework
from verify.checks.memory.free import judge_free
from verify.checks.numerics.accuracy import judge_accuracy
from verify.checks.speed.slowness import why_slow
from verify.device import driver, nvml
from verify.device.telemetry import GpuState, State
from verify.model.check import FAULTS, Check, Outcome, Result, Status, demand
from verify.model.expectations import Expectations, ExpectedGpu
from verify.running.children import Ending
from verify.running.faults import CheckFault, decisive, fault_of, with_fault
from verify.running.runner import judge_ending, judge_import, judge_stage

GPU = nvml.NvmlGpu("NVIDIA H100", "GPU-1", "9.0")
SEEN = nvml.Nvml(found=True, driver="580.1", gpus=(GPU,))
LOST = nvml.Nvml(found=True, driver="580.1", gpus=(nvml.NvmlGpu(failure="GPU is lost"),))
WRONG = Ending(seconds=1.0, returned=True, value={"wrong": 3, "device": "cuda"})


def at_fault(name: str, outcome: Outcome | None) -> str | None:
    """What the runner writes into the report."""
    assert outcome is not None
    result = Result(Check(name, name, lambda _: outcome), outcome, 0.0)
    return with_fault(result).as_dict().get("at_fault")


def library(**more: Any) -> LoadedLibrary:
    answer = driver.CudaDriver(found=True, error=more.pop("error"))
    return LoadedLibrary(answer=answer, kernel="550.54", **more)


def text(message: str) -> Outcome:
    return Outcome(Status.ERROR, message, "it broke")


@pytest.mark.parametrize(
    ("name", "outcome", "whose"),
    [
        pytest.param("health.memory",
                     judge_memory(State(gpus=(GpuState(index=0, ecc_uncorrected=3),))), "node",
                     id="ECC errors are the node's"),
        pytest.param("health.mode",
                     judge_mode(State(found=True,
                                      gpus=(GpuState(index=0, compute_mode="prohibited"),))),
                     "node", id="a compute mode that forbids programs is the node's"),
        pytest.param(
            "health.mode",
            judge_mode(State(found=True, gpus=(GpuState(index=0, mig=True, mig_devices=()),))),
            "configuration", id="MIG without a device for the container is the configuration's"),
        pytest.param("devices.nvml", judge_nvml(LOST, 1, None), "node", id="a lost GPU"),
        pytest.param("devices.nvml", judge_nvml(SEEN, 1, [ExpectedGpu(uuid="GPU-2")]),
                     "configuration", id="the container has another GPU than the node"),
        pytest.param("devices.nvml", judge_nvml(nvml.Nvml(found=False), 8, None), "configuration",
                     id="no library of the driver beside device nodes: started without GPUs"),
        pytest.param("devices.nvml",
                     judge_nvml(nvml.Nvml(found=True, error="Driver/library version mismatch"), 8,
                                None), "node",
                     id="the driver was upgraded and its module stayed loaded"),
        pytest.param("devices.nvml",
                     judge_nvml(nvml.Nvml(found=True, error="Unknown Error"), 8, None), "unknown",
                     id="NVML fails for a reason that nobody knows"),
        pytest.param("devices.nvml", judge_nvml(SEEN, 1, None, ("8.6",)), "image",
                     id="the image's code for this GPU was removed"),
        pytest.param("devices.architectures", judge_architectures([(9, 0)], ["sm_50"]), "image",
                     id="compiled for other GPUs"),
        pytest.param("devices.architectures", judge_architectures([(9, 0)], ["sm_90"], ["8.0"]),
                     "configuration", id="the container has other GPUs than the plan"),
        pytest.param("devices.architectures",
                     judge_absent(Sight("12.1", 0, "CUDA error: strange", nvml=8)), "unknown",
                     id="CUDA does not start for an unknown reason, whichever check asks"),
        pytest.param("numerics.matmul", judge_absent(Sight(None, 0)), "image",
                     id="a CPU build, whichever check asks"),
        pytest.param("devices.kernel",
                     judge_answers([ComputeAnswer(0, "H100", "sum", wrong=1, total=1)], ["9.0"],
                                   []), "node", id="a known sum is wrong on a GPU"),
        pytest.param("devices.kernel",
                     judge_answers([ComputeAnswer(0, "H100", "sum", error="CUDA error: odd")],
                                   ["9.0"], []), "unknown",
                     id="a kernel fails for an unknown reason"),
        pytest.param("devices.kernel",
                     judge_answers([ComputeAnswer(0, "H", "sum",
                                                  error="no kernel image is available")], ["9.0"],
                                   []), "image", id="a kernel has no code for the GPU"),
        pytest.param("devices.convolution", text("CUDA error: uncorrectable ECC error encountered"),
                     "node", id="a check breaks at an ECC error"),
        pytest.param("devices.convolution", text("RuntimeError: CUDNN_STATUS_NOT_INITIALIZED"),
                     "unknown", id="cuDNN does not start: mixed files, or no memory"),
        pytest.param(
            "devices.peer-copies",
            judge_copies([PeerCopy(0, 1, True, 3, 10)]),  # noqa: FBT003
            "node",
            id="a copy between GPUs arrives with other bits",
        ),
        pytest.param("collectives.nccl", judge_ranks([WRONG, WRONG], "nccl"), "node",
                     id="NCCL adds up wrongly between GPUs"),
        pytest.param("collectives.gloo", judge_ranks([WRONG, WRONG], "gloo"), "unknown",
                     id="gloo adds up wrongly on the CPU"),
        pytest.param("numerics.matmul", judge_accuracy("products", [reading("fp32", 0.5, gpu=0)]),
                     "node", id="a product is far off on a GPU"),
        pytest.param("numerics.matmul", judge_accuracy("products", [reading("fp32", 0.5)]),
                     "unknown", id="a product is far off on the CPU"),
        pytest.param("libraries.framework",
                     judge_framework("2.0", "11.7", "3.11", Expectations(), stray="/home/a/torch"),
                     "configuration", id="the framework comes from a mounted home"),
        pytest.param("libraries.framework",
                     judge_framework("2.0", "11.7", "3.11", Expectations(framework="2.1")), "image",
                     id="another version than that of the lock"),
        pytest.param("libraries.compat",
                     judge_compat(library(path="/a/libcuda.so.530.1", version="530.1",
                                          error="803")), "image",
                     id="a libcuda of the image that is older than the driver"),
        pytest.param("libraries.compat",
                     judge_compat(library(path="/a/libcuda.so.560.1", version="560.1",
                                          error="803")), "node",
                     id="the host's libcuda is newer than its kernel module"),
        pytest.param("libraries.compat",
                     judge_compat(library(path="/compat/libcuda.so.560.1", version="560.1",
                                          error="804")), "image",
                     id="cuda-compat of the image on a card that it does not support"),
        pytest.param("memory.free", judge_free([]), "unknown", id="no GPU reports its memory"),
        pytest.param("loading.shm", Outcome(Status.FAIL, "/dev/shm has 64 MiB", "too small"),
                     "configuration", id="the shared memory that the start gives is too small"),
        pytest.param("libraries.numpy",
                     judge_import("ImportError: libcuda.so.1: cannot open shared object file",
                                  "torch"), "configuration",
                     id="the import needs the driver's library, which the start does not mount"),
        pytest.param("training.loss", judge_import("ImportError: cannot import name 'x'", "torch"),
                     "image", id="the framework cannot be imported"),
        pytest.param("training.loss", judge_stage(Ending(signal="SIGILL"), "torch", imported=False),
                     "image", id="the framework has instructions that this CPU lacks"),
        pytest.param("training.loss", judge_ending(Ending(signal="SIGKILL")), "unknown",
                     id="killed, most likely for its memory"),
        pytest.param("health.memory", judge_ending(Ending(raised="TypeError: x")), "unknown",
                     id="a check of the hardware that breaks has measured nothing"),
        pytest.param("parallel.ddp", Outcome(Status.FAIL, "none of 8 ranks finished", "hang"),
                     "unknown", id="a hang"),
        pytest.param("health.memory", Outcome(Status.SKIP, "no NVML"), None,
                     id="a skip blames nobody"),
    ],
)  # fmt: skip
def test_a_failure_says_what_is_at_fault(
    name: str, outcome: Outcome | None, whose: str | None
) -> None:
    assert at_fault(name, outcome) == whose


@pytest.mark.parametrize(
    ("state", "metric", "whose"),
    [
        (None, "gemm", None),
        (GpuState(index=0, throttle_reasons=("hw_slowdown",)), "gemm", "node"),
        (GpuState(index=0, throttle_reasons=("sw_thermal_slowdown",)), "gemm", "node"),
        (GpuState(index=0, throttle_reasons=("applications_clocks_setting",)), "gemm", None),
        (GpuState(index=0, throttle_reasons=()), "gemm", None),
        (GpuState(index=0, pcie_width=4, pcie_width_max=16), "h2d_pinned", "node"),
        (GpuState(index=0, pcie_width=16, pcie_width_max=16), "h2d_pinned", None),
    ],
)
def test_a_slow_card_is_the_nodes_fault_only_with_evidence(
    state: GpuState | None, metric: str, whose: str | None
) -> None:
    assert why_slow(metric, state)[2] == whose


def test_a_required_check_that_did_not_run_blames_nobody() -> None:
    skipped = Outcome(Status.SKIP, "no NVIDIA driver library here")
    found = demand(Result(Check("health.memory", "x", lambda _: skipped), skipped, 0.0), ["x"])
    assert with_fault(found).outcome.at_fault is None
    found = demand(found, ["health.memory"])
    assert with_fault(found).outcome.at_fault == "unknown"


def row(name: str, status: str = "fail", message: str = "x", **more: Any) -> Any:
    return {"id": name, "status": status, "message": message, "cause": "y", **more}


@cases(
    "found whose",
    ("hardware", row("health.memory"), "node"),
    ("a library", row("libraries.cuda"), "image"),
    ("a limit", row("loading.files"), "configuration"),
    ("wrong results without a judge's word", row("devices.kernel"), "unknown"),
    ("a check that broke", row("libraries.cuda", "error"), "unknown"),
    ("a lost GPU", row("numerics.matmul", "error", "GPU is lost"), "node"),
    ("said", row("libraries.cuda", at_fault="configuration"), "configuration"),
)
def test_a_report_of_an_earlier_version_is_read_by_ids_and_texts(found: Any, whose: str) -> None:
    assert fault_of(found).at_fault == whose


def test_every_check_has_an_answer() -> None:
    names = {check.id for checks in CHECKS.values() for check in checks}
    assert {fault_of(row(name)).at_fault for name in names} == set(FAULTS)


def fault(check: str, at_fault: str, kind: str = "fail") -> CheckFault:
    return CheckFault(check, at_fault, kind)


@cases(
    "found check",
    ("nothing failed", [], None),
    ("a broken image computes wrong results, too",
     [fault("libraries.cudnn", "image"), fault("numerics.matmul", "node")], "libraries.cudnn"),
    ("no image can cause an ECC error",
     [fault("libraries.cudnn", "image"), fault("health.memory", "node")], "health.memory"),
    ("nor a GPU that is lost in the middle of a kernel",
     [fault("libraries.cudnn", "image"), fault("devices.kernel", "node", "hardware")],
     "devices.kernel"),
    ("little shared memory does not make a GPU compute wrongly",
     [fault("loading.shm", "configuration"), fault("devices.kernel", "node")], "devices.kernel"),
    ("what is known before what is not",
     [fault("training.amp", "unknown"), fault("loading.shm", "configuration")], "loading.shm"),
    ("of equals the first", [fault("health.log", "node"), fault("health.memory", "node")],
     "health.log"),
)  # fmt: skip
def test_one_fault_decides(found: list[CheckFault], check: str | None) -> None:
    decided = decisive(found)
    assert (decided and decided.check) == check
