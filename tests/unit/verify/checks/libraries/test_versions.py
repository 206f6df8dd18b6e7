"""Versions of libraries, libcuda and its kernel module, compilers, torchvision: the judging."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.cases import cases
from tests.unit.verify.checks.test_judges import FAIL, PASS, SKIP, holds
from verify.checks.libraries.compat import LoadedLibrary, judge_compat, version_in
from verify.checks.libraries.compiler import CompilerTrial, Promise, judge_compiler
from verify.checks.libraries.versions import Library, judge_versions, own_version
from verify.checks.libraries.vision import KEPT, POOLED, Vision, judge_vision
from verify.device.driver import CudaDriver
from verify.device.machine import kernel_version
from verify.model.check import Status

CUBLAS = Library(
    "libcublas", "/s/libcublas.so.12", "12.8.4", "12.8", "nvidia-cublas-cu12", "12.8.4.1"
)
LT = replace(CUBLAS, stem="libcublasLt", path="/s/libcublasLt.so.12")
CUDNN = Library("libcudnn", "/s/libcudnn.so.9", "9.10.2", "12.9", "nvidia-cudnn-cu12", "9.10.2.21")
LINK = Library("libnvJitLink", "/s/libnvJitLink.so.12", "12.8", None, None, None)
CUFFT = Library("libcufft", "/s/libcufft.so.11", "11.3.3", None, "nvidia-cufft-cu12", "11.3.3.83")


@cases(
    "found cuda status word",
    ("as installed", [CUBLAS, LT, CUDNN, LINK, CUFFT], "12.8", PASS, "5 of 5"),
    ("no CUDA is known", [CUBLAS], None, PASS, "CUDA unknown"),
    ("it does not say", [Library("libcupti", "/s/c")], "12.8", PASS, "0 of 1"),
    ("the file is not the package's", [replace(CUBLAS, version="12.8.3")], "12.8", FAIL,
     "nvidia-cublas-cu12 is 12.8.4.1"),
    ("another CUDA's", [replace(CUDNN, made_for="11.8")], "12.8", FAIL, "from CUDA 11.8"),
    ("another CUDA by its own number",
     [replace(CUBLAS, version="11.11.3", made_for=None, package_version=None)], "12.8", FAIL,
     "from CUDA 11.11.3"),
    ("cuFFT counts its own versions", [replace(CUFFT, version="10.9.0", package_version=None)],
     "12.8", PASS, ""),
    ("an nvJitLink too old", [LINK], "12.9", FAIL, "older than CUDA 12.9"),
    ("a newer nvJitLink serves", [LINK], "12.6", PASS, ""),
    ("cuBLAS of two casts", [CUBLAS, replace(LT, version="12.9.1", package_version=None)], "12.8",
     FAIL, "parts of one library"),
    ("cuDNN of two casts",
     [CUDNN, replace(CUDNN, stem="libcudnn_ops", version="9.1.0", package_version=None)], "12.8",
     FAIL, "libcudnn_ops 9.1.0 stands beside libcudnn 9.10.2"),
    ("no library is mapped", [], "12.8", SKIP, "nothing to compare"),
)  # fmt: skip
def test_versions(found: list[Library], cuda: str | None, status: Status, word: str) -> None:
    holds(judge_versions(found, cuda), status, word)


class FakeLibrary:
    """Functions as the libraries have them, by ctypes' calling convention."""

    def __init__(self, *, failed: int = 0) -> None:
        self.failed = failed
        self.cudnnGetVersion = lambda: 91002

    def cublasGetProperty(self, kind: Any, out: Any) -> int:  # noqa: N802
        out._obj.value = (12, 8, 4)[kind.value]
        return self.failed

    def cudaRuntimeGetVersion(self, out: Any) -> int:  # noqa: N802
        out._obj.value = 12080
        return self.failed

    def nvJitLinkVersion(self, major: Any, minor: Any) -> int:  # noqa: N802
        major._obj.value, minor._obj.value = 12, 8
        return self.failed


@pytest.mark.parametrize(
    ("stem", "version"),
    [("libcublas", "12.8.4"), ("libcudart", "12.8"), ("libnvJitLink", "12.8")],
)
def test_a_library_says_its_version_or_nothing(stem: str, version: str) -> None:
    assert own_version(stem, FakeLibrary()) == version
    assert own_version(stem, FakeLibrary(failed=35)) is None


class Cudnn:
    class cudnnGetVersion:  # noqa: N801
        restype: Any = None

        def __new__(cls) -> Any:
            assert cls.restype is ctypes.c_size_t
            return 91002


def test_cudnn_and_its_parts_say_one_version() -> None:
    assert own_version("libcudnn", Cudnn) == own_version("libcudnn_ops", Cudnn) == "9.10.2"


@pytest.mark.parametrize("stem", ["libcupti", "libnccl", "libcudnn_ops"])
def test_a_library_without_such_a_function_says_nothing(stem: str) -> None:
    assert own_version(stem, object()) is None


# libcuda

HOST = "/usr/lib/x86_64-linux-gnu/libcuda.so.535.104.05"
COMPAT = "/usr/local/cuda-12.8/compat/libcuda.so.570.86.10"
WELL, E803 = (
    CudaDriver(found=True, version="12.8", count=1),
    "Error 803: system has unsupported display driver",
)
E804 = "Error 804: forward compatibility was attempted on non supported HW"


def loaded(
    path: str | None, kernel: str | None, error: str | None = None, *cards: str
) -> LoadedLibrary:
    answer = replace(WELL, error=error, count=None) if error else WELL
    return LoadedLibrary(path, version_in(path or ""), kernel, answer, cards)


@cases(
    "seen status word",
    ("host's own", loaded(HOST, "535.104.05"), PASS, "kernel module 535.104.05"),
    ("no /proc, as in WSL", loaded(HOST, None), PASS, "of unknown version"),
    ("newer", loaded(COMPAT, "535.104.05"), PASS, "forward compatibility works"),
    ("cuda-compat on a GeForce", loaded(COMPAT, "535.104.05", E804, "NVIDIA GeForce RTX 4090"),
     FAIL, "not on NVIDIA GeForce RTX 4090"),
    ("cuda-compat on a workstation card", loaded(COMPAT, "535.104.05", E804, "NVIDIA RTX A4000"),
     FAIL, "data-centre GPUs only"),
    ("the host's driver has overtaken cuda-compat", loaded(COMPAT, "580.65.06", E803), FAIL,
     "older than the kernel module 580.65.06"),
    ("the host's driver was upgraded without a reboot", loaded(HOST, "470.57.02", E803), FAIL,
     "its kernel module 470.57.02 stayed loaded"),
    ("another error keeps its own cause", loaded(HOST, "535.104.05", "Error 999: unknown error"),
     FAIL, "nvidia-modprobe"),
    ("stub", loaded("/usr/local/cuda/lib64/stubs/libcuda.so", "535.104.05"), FAIL, "stub"),
    ("no libcuda", loaded(None, None), SKIP, "no libcuda.so.1"),
    ("it starts and has no device: another check's finding",
     replace(loaded(HOST, "535.104.05"), answer=CudaDriver(found=True, version="12.2", count=0)),
     PASS, ""),
)  # fmt: skip
def test_compat(seen: LoadedLibrary, status: Status, word: str) -> None:
    holds(judge_compat(seen), status, word)


@cases(
    "text version",
    ("the closed module",
     ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC\n"
      "GCC version:  gcc version 12.2.0\n"), "535.104.05"),
    ("the open module",
     "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build",
     "570.86.10"),
    ("two", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  450.80\n", "450.80"),
    ("another file", "nonsense 1.2.3 here", None),
    ("empty", "", None),
)  # fmt: skip
def test_the_kernel_modules_version(text: str, version: str | None) -> None:
    assert kernel_version(text) == version


def test_a_link_without_a_version_says_none() -> None:
    assert version_in("/usr/lib/libcuda.so.1") is None
    assert version_in(HOST) == "535.104.05"


# Compilers

C, CXX = CompilerTrial("C", "/usr/bin/gcc", 42), CompilerTrial("C++", "/usr/bin/g++", 42)
NO_C, NO_CXX = CompilerTrial("C"), CompilerTrial("C++")


@cases(
    "trials promise status word",
    ("both work", (C, CXX), Promise(), PASS, "C by /usr/bin/gcc"),
    ("none: told", (NO_C, NO_CXX), Promise(), SKIP, "torch.compile will not"),
    ("none in C: told", (NO_C, CXX), Promise(triton=True), SKIP, "Triton"),
    ("old torch", (NO_C, NO_CXX), Promise(compiles=False), SKIP, "extensions that users"),
    ("a devel image without a compiler", (NO_C, NO_CXX), Promise(nvcc="/usr/local/cuda/bin/nvcc"),
     FAIL, "apt-get install"),
    ("no headers of Python",
     (replace(C, answer=None, error="answer.c:1: fatal error: Python.h: No such"), CXX), Promise(),
     FAIL, "libpython3-dev"),
    ("a part is missing",
     (C, replace(CXX, answer=None, error="g++: error: cannot execute cc1plus")), Promise(), FAIL,
     "is incomplete"),
    ("wrong code", (C, replace(CXX, answer=41)), Promise(), FAIL, "printed 41"),
    ("CC names nothing", (replace(C, answer=None, error="FileNotFoundError: no /opt/cc"), CXX),
     Promise(), FAIL, "unset CC"),
)  # fmt: skip
def test_compiler(
    trials: tuple[CompilerTrial, ...], promise: Promise, status: Status, word: str
) -> None:
    holds(judge_compiler(trials, promise), status, word)


# torchvision

SOUND = Vision("0.20.0", "2.5.0", "2.5.0+cu124", None, KEPT, POOLED)


@cases(
    "seen status word",
    ("right", SOUND, PASS, "on the GPU"),
    ("not installed", Vision(torch="2.5.0"), SKIP, "not installed"),
    ("a build of one's own has no pin", replace(SOUND, needs=None), PASS, ""),
    ("for another", replace(SOUND, needs="2.4.0"), FAIL, "requires torch 2.4.0"),
    ("its operators do not load",
     replace(SOUND, error="RuntimeError: operator torchvision::nms does not exist", kept=()), FAIL,
     "another torch or another CUDA"),
    ("nms keeps too much", replace(SOUND, kept=(3, 0, 1, 2)), FAIL, "nms gives"),
    ("a wrong mean", replace(SOUND, pooled=(5.5, 7.5, 25.5, 27.6)), FAIL, "roi_align"),
    ("one is missing", replace(SOUND, pooled=POOLED[:3]), FAIL, "roi_align"),
)  # fmt: skip
def test_vision(seen: Vision, status: Status, word: str) -> None:
    holds(judge_vision(seen, "cuda"), status, word)


def test_vision_on_the_cpu_says_so() -> None:
    outcome = judge_vision(SOUND, "cpu")
    holds(outcome, PASS, "on the CPU")
    assert outcome.measured["device"] == "cpu"
