"""Two things that a log says of its machine and that do not go together."""

from __future__ import annotations

import json

import pytest

from provision.doctor import diagnose
from tests import DATA
from tests.kit.cases import cases

BLACKWELL = "NVIDIA GeForce RTX 5090, 12.0, 580.95.05\n"
NVCC = "Cuda compilation tools, release {}, V1\n"
FLASHINFER = "RuntimeError: FlashInfer requires GPUs with sm75 or higher\n"
EXTENSION = (
    '  File "/v/torch/utils/cpp_extension.py", line 1, in build_extensions\nRuntimeError: no\n'
)
TORCH = "PyTorch version              : {}\n"
DRIVER = "Nvidia driver version        : {}\n"
GPU = "GPU models and configuration : GPU 0: {}\n"
NODE = "n1   Ready   5.15.0   containerd://{}\n"
CHART = "gpu-operator  default  1  deployed  gpu-operator-v{}\n"
COMPILE = "/usr/local/cuda-{}/bin/nvcc -I/usr/local/cuda-{}/include -c a.cu\n"
WHEELS = "nvidia-cuda-nvcc     {}.33\nnvidia-cuda-runtime  {}.96\n"


def found(text: str) -> list[tuple[str, str]]:
    said = diagnose([("a", text)]).contradictions
    return [
        (" / ".join(f"{line.says} [{line.where}]" for line in one.evidence), one.says)
        for one in said
    ]


@cases(
    "text lines says",
    ("FlashInfer's compiler is too old for the GPU", BLACKWELL + NVCC.format("12.8") + FLASHINFER,
     "compute capability 12.0 [a:1] / nvcc 12.8 [a:2]", "FlashInfer"),
    ("the GPU's name stands for its compute capability",
     GPU.format("NVIDIA GeForce RTX 5090") + NVCC.format("12.8") + FLASHINFER,
     "compute capability 12.0 [a:1] / nvcc 12.8 [a:2]", "FlashInfer"),
    ("headers of another minor, which CUDA 13 compares", COMPILE.format("13.3", "13.0"),
     "nvcc 13.3 [a:1] / CUDA headers 13.0 [a:1]", "another release"),
    ("headers of another major", COMPILE.format("12.8", "11.8"),
     "nvcc 12.8 [a:1] / CUDA headers 11.8 [a:1]", "its own CUDA"),
    ("packages of two releases", WHEELS.format("13.3", "13.0"),
     "nvidia-cuda-nvcc 13.3 [a:1] / nvidia-cuda-runtime 13.0 [a:2]", "another release"),
    ("an extension compiled by another major",
     NVCC.format("13.0") + TORCH.format("2.8.0+cu128") + EXTENSION,
     "nvcc 13.0 [a:1] / torch for CUDA 12.8 [a:2]", "own CUDA's major"),
    ("a driver below the oldest of that CUDA",
     GPU.format("NVIDIA GeForce RTX 3090") + DRIVER.format("470.86") + TORCH.format("2.8.0+cu128"),
     "driver 470.86 [a:2] / torch 2.8.0+cu128 [a:3]", "needs driver"),
    ("a GPU newer than the build",
     GPU.format("NVIDIA GeForce RTX 5090") + TORCH.format("2.5.1+cu121"),
     "GPU NVIDIA GeForce RTX 5090 [a:1] / torch 2.5.1+cu121 [a:2]", "has no code for"),
    ("a runtime without CDI under an operator that uses it",
     CHART.format("25.10.1") + NODE.format("1.6.39"),
     "GPU Operator 25.10.1 [a:1] / containerd 1.6.39 [a:2]", "CDI"),
)  # fmt: skip
def test_what_does_not_go_together(text: str, lines: str, says: str) -> None:
    ((evidence, reason),) = found(text)
    assert evidence == lines
    assert says in reason


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(BLACKWELL + NVCC.format("12.9") + FLASHINFER, id="a compiler that is enough"),
        pytest.param(BLACKWELL + NVCC.format("12.8"), id="nobody compiles"),
        pytest.param(
            BLACKWELL + "NVIDIA GeForce RTX 4090, 8.9, 580.95.05\n" + NVCC.format("12.8")
            + FLASHINFER, id="GPUs of two kinds: which is used is not said",
        ),
        pytest.param(
            BLACKWELL + NVCC.format("12.8") + NVCC.format("12.9") + FLASHINFER,
            id="two compilers: which is used is not said",
        ),
        pytest.param(COMPILE.format("12.8", "12.6"), id="CUDA 12 does not compare minors"),
        pytest.param(COMPILE.format("13.0", "13.0"), id="a compiler and its headers"),
        pytest.param(NVCC.format("13.0") + TORCH.format("2.8.0+cu128"),
                     id="no extension is compiled"),
        pytest.param(
            NVCC.format("13.0") + TORCH.format("2.8.0+cu128")
            + EXTENSION.replace("build_extensions", "load"),
            id="an extension compiled when it is loaded, for which PyTorch compares nothing",
        ),
        pytest.param(DRIVER.format("525.60.13") + TORCH.format("2.8.0+cu128"),
                     id="minor-version compatibility"),
        pytest.param(DRIVER.format("470.86") + TORCH.format("2.8.0+cu128"),
                     id="a container may bring cuda-compat for a GPU that is not named"),
        pytest.param(
            GPU.format("NVIDIA GeForce RTX 3090") + DRIVER.format("470.86")
            + TORCH.format("2.8.0+cu128") + "Linux 5.15-microsoft-standard-WSL2\n",
            id="a driver of Windows",
        ),
        pytest.param(GPU.format("NVIDIA GeForce RTX 5090") + TORCH.format("2.8.0+cu128"),
                     id="a build with code for the GPU"),
        pytest.param(GPU.format("NVIDIA Unheard 1") + TORCH.format("2.5.1+cu121"),
                     id="a GPU that nobody knows"),
        pytest.param(GPU.format("NVIDIA GeForce RTX 5090") + TORCH.format("9.9.9+cu121"),
                     id="a build that nobody knows"),
        pytest.param(CHART.format("25.3.2") + NODE.format("1.6.39"),
                     id="an operator that does not need CDI"),
        pytest.param(CHART.format("25.10.1") + NODE.format("1.6.39") + NODE.format("2.1.4"),
                     id="nodes with several runtimes"),
    ],
)  # fmt: skip
def test_what_goes_together(text: str) -> None:
    assert found(text) == []


def test_runs_that_ended_well_contradict_nothing() -> None:
    runs = json.loads((DATA / "doctor" / "successful.json").read_text(encoding="utf-8"))["runs"]
    for run in runs:
        assert diagnose([("log", run["text"])]).contradictions == (), run["id"]
