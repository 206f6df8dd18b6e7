"""What TensorFlow's checks, and those it shares with JAX, say of readings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
from tests.unit.verify.checks.test_judges import holds
from verify.backends import base, tensorflow
from verify.backends.tensorflow import architectures
from verify.checks import CHECKS
from verify.checks.devices.inventory import judge_architectures
from verify.checks.libraries.dialect import (
    FoundLibraries,
    as_asked,
    judge_cudnn,
    judge_framework,
    listed,
    older,
)
from verify.checks.libraries.pytorch import judge_numpy
from verify.checks.libraries.tensorflow import OpenedLibrary, judge_opened, sonames
from verify.checks.loading.pipeline import PipelineRun, judge_pipeline, recommend
from verify.checks.training.keras import KerasFit, judge_fit
from verify.checks.training.mirrored import judge_mirrored
from verify.device import driver, machine, nvml
from verify.model.check import Context, Status
from verify.model.expectations import Expectations, ExpectedGpu
from verify.model.measures import median

PASS, FAIL, SKIP = Status.PASS, Status.FAIL, Status.SKIP
GONE = "cannot open shared object file: No such file or directory"
FOUND = FoundLibraries("2.21.0", "12.5.1", None, "3.11.7")


# Words and versions


@cases(
    "found expect status word",
    ("no plan passes", FOUND, Expectations(), PASS, "no expectation"),
    ("what the plan names passes", FOUND, Expectations(framework="2.21.0", python="3.11"), PASS,
     "for CUDA 12.5.1"),
    ("another version fails", FOUND, Expectations(framework="2.20.0"), FAIL,
     "2.21.0 instead of the requested 2.20.0"),
    ("another Python fails", FOUND, Expectations(python="3.12"), FAIL, "Python 3.11.7"),
    ("a CPU build fails with what to install", replace(FOUND, cuda=None), Expectations(), FAIL,
     "tensorflow[and-cuda]"),
    ("a module of the user's own fails", replace(FOUND, stray="/root/.local/lib/tensorflow"),
     Expectations(), FAIL, "PYTHONNOUSERSITE"),
)  # fmt: skip
def test_framework(found: FoundLibraries, expect: Expectations, status: Status, word: str) -> None:
    holds(judge_framework(found, expect, tensorflow.BACKEND), status, word)


def test_numpy_is_judged_in_the_words_of_the_framework() -> None:
    for version, error, total in (("2.0", None, 10.0), ("2.0", None, 9.0), (None, "no ABI", None)):
        said = judge_numpy(version, error, total, "TensorFlow")
        words = " ".join(filter(None, (said.message, said.cause, said.fix)))
        assert "torch" not in words
        assert "TensorFlow" in words


@cases(
    "version error expected compiled status word",
    ("the plan's passes", "9.3.0", None, "9.3.0", "9", PASS, "cuDNN 9.3.0"),
    ("two parts are compared as two", "8.6.0", None, "8.6", "8", PASS, ""),
    ("no plan passes", "9.3.0", None, None, None, PASS, "no expectation"),
    ("another minor fails", "9.5.0", None, "9.3", "9", FAIL, "instead of the requested 9.3"),
    ("an old major fails", "8.9.7", None, None, "9", FAIL, "compiled against 9"),
    ("an old minor fails", "9.1.0", None, None, "9.8.0", FAIL, "or a later 9.x"),
    ("absence fails", None, "libcudnn.so.9: " + GONE, None, "9", FAIL, "does not load"),
)
def test_cudnn(
    version: str | None,
    error: str | None,
    expected: str | None,
    compiled: str | None,
    status: Status,
    word: str,
) -> None:
    holds(judge_cudnn(version, error, expected, compiled), status, word)


numbers = st.lists(st.integers(0, 99), min_size=1, max_size=4)


@given(numbers, st.integers(1, 4))
def test_a_version_is_as_asked_by_any_of_its_beginnings(parts: list[int], kept: int) -> None:
    version = ".".join(map(str, parts))
    assert as_asked(version, ".".join(map(str, parts[:kept])))
    assert as_asked(version, None)
    assert not as_asked(version, ".".join(map(str, [parts[0] + 1, *parts[1:kept]])))
    assert as_asked(version, version + ".42")  # which a library does not tell


@given(numbers)
def test_a_library_serves_what_was_compiled_against_itself(parts: list[int]) -> None:
    version = ".".join(map(str, parts))
    assert not older(version, version)


@pytest.mark.parametrize(
    ("names", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")],
)
def test_names_are_listed(names: list[str], text: str) -> None:
    assert listed(names) == text


# Where there ought to be a GPU


@cases(
    "cuda usable asked expected status word",
    ("a usable GPU is there", "12.5", 1, None, None, None, ""),
    ("no driver and no hint is a skip", "12.5", 0,
     driver.CudaDriver(found=False, error="libcuda.so.1: " + GONE), None, SKIP, "no GPU visible"),
    ("a driver without GPUs is a skip", "12.5", 0, driver.CudaDriver(found=True, count=0), None,
     SKIP, "no GPU visible"),
    ("GPUs that the framework does not take fail", "12.5", 0,
     driver.CudaDriver(found=True, count=2), None, FAIL, "it lists none"),
    ("a driver that does not start fails with its reason", "12.5", 0,
     driver.CudaDriver(found=True, error="Error 802: system not yet initialized"), None, FAIL,
     "fabric"),
    ("an expected GPU that is not there fails", "12.5", 0, driver.CudaDriver(found=True, count=0),
     [ExpectedGpu()], FAIL, "1 expected"),
    ("a CPU build fails", None, 0, None, None, FAIL, "CPU build of TensorFlow"),
)  # fmt: skip
def test_absence(
    monkeypatch: pytest.MonkeyPatch,
    cuda: str | None,
    usable: int,
    asked: driver.CudaDriver | None,
    expected: list[ExpectedGpu] | None,
    status: Status | None,
    word: str,
) -> None:
    monkeypatch.setattr(nvml, "read", lambda _: nvml.Nvml(found=False))
    monkeypatch.setattr(machine, "device_nodes", list)
    monkeypatch.setattr(driver, "read", lambda _: asked)
    context = Context(Expectations(gpus=None if expected is None else tuple(expected)))
    seen = base.see(context, cuda, usable, "it lists none")
    monkeypatch.setattr(tensorflow, "look", lambda _: seen)
    absent = tensorflow.BACKEND.absent(seen)
    assert (absent.status if absent else None) is status
    if absent and status is FAIL:
        holds(absent, FAIL, word)
    failing = status is FAIL and cuda is not None
    assert (tensorflow.BACKEND.find(context)[0] is not None) is failing


# Libraries


@cases(
    "cuda cudnn some",
    ("11", "11.2", "8", {"libcudart.so.11.0", "libcufft.so.10", "libcudnn.so.8"}),
    ("12", "12.5.1", "9", {"libcudart.so.12", "libcusolver.so.11"}),
    ("13", "13.0", "9", {"libcusolver.so.12", "libcublas.so.13"}),
)
def test_names_of_libraries(cuda: str, cudnn: str, some: set[str]) -> None:
    names = sonames({"cuda_version": cuda, "cudnn_version": cudnn})
    assert len(names) == 7
    assert some <= set(names)


def test_a_cuda_that_is_not_known_asks_for_no_names_of_its_own() -> None:
    assert sonames({"cuda_version": "unknown"}) == []
    holds(judge_opened([], "99.0"), SKIP, "not known")


FINE = OpenedLibrary("libcudart.so.12")
SOLVER = "libcusolver.so.11"


@cases(
    "rows status word",
    ("all that open pass", [FINE], PASS, "all 1 required libraries"),
    ("a file that lies elsewhere is told with its folder",
     [FINE, OpenedLibrary(SOLVER, SOLVER + ": " + GONE, ("/opt/nvidia/cusolver/lib",))], FAIL,
     "LD_LIBRARY_PATH=/opt/nvidia/cusolver/lib"),
    ("a file that is not there is to be installed",
     [FINE, OpenedLibrary(SOLVER, SOLVER + ": " + GONE)], FAIL, "base image with CUDA 12.5"),
    ("what a library needs itself is named",
     [OpenedLibrary(SOLVER, "libnvJitLink.so.12: " + GONE, ("/opt/nvidia/cusolver/lib",))], FAIL,
     "libcusolver.so.11 needs libnvJitLink.so.12"),
    ("two troubles are both told",
     [OpenedLibrary(SOLVER, SOLVER + ": " + GONE, ("/opt/nvidia/cusolver/lib",)),
      OpenedLibrary("libcudnn.so.9", "libcudnn.so.9: " + GONE)], FAIL,
     "which has libcusolver.so.11; the image does not have libcudnn.so.9"),
)  # fmt: skip
def test_opening(rows: list[OpenedLibrary], status: Status, word: str) -> None:
    holds(judge_opened(rows, "12.5.1"), status, word)


# Devices


def test_a_compute_capability_is_binary_code_and_ptx() -> None:
    have = architectures({"cuda_compute_capabilities": ["sm_60", "sm_89", "compute_90"]})
    assert have == ["sm_60", "sm_89", "sm_90", "compute_90"]
    outcome = judge_architectures([(12, 0)], have, framework="TensorFlow")
    holds(outcome, PASS, "PTX compute_90")
    assert architectures({"cuda_compute_capabilities": ["3.5"]}) == ["sm_35"]
    assert architectures({}) == []


# Training


FIT = KerasFit((0.5, 0.1, 0.01), 0.009, 0.009, 24, 24)


@cases(
    "fit status word",
    ("a falling loss passes", FIT, PASS, "0.5 to 0.01"),
    ("a high loss fails", replace(FIT, evaluated=0.2, by_hand=0.2), FAIL, "not down"),
    ("two losses that differ fail", replace(FIT, evaluated=0.0091), FAIL, "evaluate says"),
    ("a lost batch fails", replace(FIT, batches=23), FAIL, "23 steps"),
    ("no loss fails", replace(FIT, losses=()), FAIL, "no loss"),
    ("a loss that is NaN fails", replace(FIT, losses=(float("nan"),)), FAIL, "NaN"),
    ("lost predictions fail", replace(FIT, by_hand=float("nan")), FAIL, "too few rows"),
)
def test_fit(fit: KerasFit, status: Status, word: str) -> None:
    holds(judge_fit(fit, "cuda"), status, word)


RUN = {"losses": [1.0, 0.5], "weights": {"weight 0": [2.0]}}
ALONE = {**RUN, "before": {"weight 0": [1.0]}}


@cases(
    "runs held status word",
    ("equal", [RUN, RUN], ["GPU:0", "GPU:1"], PASS, "as on one device"),
    ("one replica for two GPUs", [RUN], ["GPU:0"], FAIL, "made 1 replicas"),
    ("all on one GPU", [RUN, RUN], ["GPU:0", "GPU:0"], FAIL, "held by 1"),
    ("replicas that drift apart", [RUN, {**RUN, "weights": {"weight 0": [2.1]}}],
     ["GPU:0", "GPU:1"], FAIL, "NCCL_P2P_DISABLE"),
)  # fmt: skip
def test_mirrored(runs: list[dict[str, Any]], held: list[str], status: Status, word: str) -> None:
    holds(judge_mirrored(ALONE, runs, held, 2, "cuda"), status, word)


# Data


def piped(parallel: int, **more: Any) -> PipelineRun:
    return PipelineRun(parallel, **{"numbers": (0, 1, 2, 3), "rates": (100.0, 110.0, 90.0), **more})


@cases(
    "found status word",
    ("all samples pass", [piped(1), piped(-1)], PASS, "by 1 parallel calls"),
    ("lost", [piped(1, numbers=(0, 1, 3))], FAIL, "1 of 4 samples are missing"),
    ("twice", [piped(2, numbers=(0, 1, 2, 3, 3))], FAIL, "were repeated"),
    ("mixed up", [piped(2, numbers=(0, 2, 1, 3))], FAIL, "a different order"),
    ("damaged", [piped(-1, damaged=2)], FAIL, "AUTOTUNE parallel calls: 2 of 4"),
    ("a setting that fails",
     [piped(1), piped(2, numbers=(), rates=(), error="InvalidArgumentError: not JPEG")], FAIL,
     "not JPEG"),
    ("nothing tried", [], FAIL, "no setting"),
)  # fmt: skip
def test_pipeline(found: list[PipelineRun], status: Status, word: str) -> None:
    holds(judge_pipeline(found, 4), status, word)


@given(st.dictionaries(st.sampled_from([1, 2, 4, 8, -1]), st.floats(1, 1e6), min_size=1))
def test_the_fewest_calls_that_are_nearly_the_best_are_recommended(rates: dict[int, float]) -> None:
    found = [piped(parallel, rates=(rate,)) for parallel, rate in rates.items()]
    chosen = recommend(found)
    enough = 0.95 * max(rates.values())
    assert median(chosen.rates) >= enough
    numbered = [parallel for parallel, rate in rates.items() if parallel > 0 and rate >= enough]
    assert chosen.parallel == min(numbered, default=-1)


# The lists


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_names_and_titles_fit_the_page(framework: str) -> None:
    checks = CHECKS[framework]
    assert len({check.id for check in checks}) == len(checks)
    assert all(len(check.id) <= 22 and len(check.title) <= 48 for check in checks)
    needed = {check.id for check in checks if check.gpu}
    assert {"devices.count", "devices.kernel", "numerics.matmul", "training.loss"} <= needed
