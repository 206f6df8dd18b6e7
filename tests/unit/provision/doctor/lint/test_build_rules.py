"""The steps of a build: for each rule seeded faults, their twins, and files without a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.catalog.loading import load
from provision.doctor.lint import lint, lint_file
from tests.kit.cases import cases
from tests.kit.twins import twins

CATALOG = load()
WHEELS = CATALOG.pytorch_index("{tag}").replace("/{tag}", "")
NOBLE = "FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04\n"
DEVEL = "FROM nvidia/cuda:12.1.1-devel-ubuntu22.04\n"
OLD = "FROM nvidia/cuda:11.8.0-devel-ubuntu22.04\n"
PYTORCH = "FROM pytorch/pytorch:2.6.0-cuda12.6-cudnn9-runtime\n"
PIXI = "[workspace]\nname = 'a'\n"
LLAMA = "RUN pip install llama-cpp-python\n"
TOKEN = "hf_" + "kQzVbWnRtYpLsDfGhJmXcAeUiOoPqWzEyB"


def rules_of(text: str, path: str = "Dockerfile") -> set[str]:
    return {one.rule for one in lint(path, text, CATALOG)}


# rule, and the text with its fault and without: tests/kit/twins.py
TWINS = {
    "pip of Ubuntu 24.04":
        ("externally-managed", f"{NOBLE}RUN pip3 install [--][+--break-system-packages +]einops\n"),
    "pip of Debian 12, by its module": ("externally-managed", (
        "FROM [-debian:12-slim-][+python:3.12-slim-bookworm+]\n"
        "RUN python3 -m pip install einops\n")),
    "pip of Ubuntu 24.04 and an environment": ("externally-managed", (
        f"{NOBLE}[-ENV PATH=/usr/local/cuda-][+RUN python3 -m venv /v\n"
        "ENV PATH=/v+]/bin:$PATH\nRUN pip install einops\n")),
    "pip of Ubuntu 22.04":
        ("externally-managed", "FROM ubuntu:[-noble-][+22.04+]\nRUN pip install einops\n"),
    "a capability that nvcc does not know yet":
        ("arch-not-of-nvcc", f'{OLD}ENV TORCH_CUDA_ARCH_LIST="8.6 [-12.0-][+9.0+]+PTX"\n'),
    "a capability that nvcc does not know any more": ("arch-not-of-nvcc",
        f"{DEVEL}RUN cmake -B b -DCMAKE_CUDA_ARCHITECTURES='[-35;80-real-][+native+]' .\n"),
    "a capability that a command exports": ("arch-not-of-nvcc",
        f'{OLD}RUN export TORCH_CUDA_ARCH_LIST="8.6 [-12.0-][+9.0+]" && pip install .\n'),
    "a capability in a command of nvcc": ("arch-not-of-nvcc", (
        f"{OLD}RUN [-nvcc -gencode arch=compute_100,code-][+apt-get install -y cuda-nvcc-12-8 "
        "&& nvcc -arch+]=sm_100 a.cu\n")),
    "deepspeed in PyTorch's runtime image": ("nvcc-at-first-use",
        f"[-{PYTORCH}-][+{PYTORCH.replace('-runtime', '-devel')}+]RUN pip install deepspeed\n"),
    "gsplat in a runtime image":
        ("nvcc-at-first-use", f"[-{NOBLE}-][+{DEVEL}+]RUN /v/bin/pip install gsplat\n"),
    "pixi while an image is built": ("conda-without-gpu", (
        "FROM ghcr.io/prefix-dev/pixi:0.55.0\n"
        "[-RUN pixi install -e prod-][+ENV CONDA_OVERRIDE_CUDA=12.8\nRUN pixi install+]\n")),
    "pytorch-gpu of conda-forge while an image is built": ("conda-without-gpu", (
        "FROM condaforge/miniforge3\n"
        "RUN [-mamba install -y pytorch-gpu=2.7-][+CONDA_OVERRIDE_CUDA=12.8 mamba install -y "
        "pytorch-gpu+]\n")),
    "an extension in an isolated build": ("torch-at-build", (
        f"{DEVEL}RUN pip install torch[-==2.5.1\nRUN pip install-][+\n"
        "RUN pip install --no-build-isolation+] causal-conv1d\n")),
    "the old name of llama.cpp's switch": ("llama-cpp-cpu", (
        f'{DEVEL}RUN CMAKE_ARGS="-DLLAMA_CUBLAS=on" pip install '
        "llama-cpp-python[--][+==0.2.20+]\n")),
    "a second CMAKE_ARGS": ("llama-cpp-cpu", (
        f"{DEVEL}ENV CMAKE_ARGS=[--DGGML_CUDA=on\n"
        f'ENV CMAKE_ARGS=-DGGML_NATIVE=off-][+"-DGGML_CUDA=on -DGGML_NATIVE=off"+]\n{LLAMA}')),
    "vllm over PyTorch's image":
        ("torch-replaced", f"{PYTORCH}RUN pip install vllm[--][+==0.8.5+]\n"),
    "xformers over NVIDIA's image": ("torch-replaced", (
        "FROM nvcr.io/nvidia/pytorch:25.03-py3\n"
        "RUN pip install [--][+--no-deps +]xformers==0.0.30\n")),
    "a token": ("secret-in-image",
        f"FROM python:3.12\n[-ENV HF_TOKEN={TOKEN}-][+ARG HF_TOKEN\nENV HF_TOKEN=$HF_TOKEN+]\n"),
    "a CUDA that two majors have followed": ("cuda-tag-ending",
        "FROM nvidia/cuda:[-11.7.1-cudnn8-][+12.4.1-cudnn+]-runtime-ubuntu22.04\n"),
    "onnxruntime-gpu in an image of another CUDA":
        ("package-cuda", f"{DEVEL}RUN pip install onnxruntime-gpu==[-1.27.0-][+1.20.1+]\n"),
    "CuPy in an image of another CUDA, and beside a torch of its own": ("package-cuda",
        f"{DEVEL}RUN pip install [--][+torch==2.12.0\nRUN pip install +]cupy-cuda13x\n"),
    "a page of wheels for another torch than an earlier command's": ("wheels-of-another-torch", (
        f"{DEVEL}RUN pip install torch==[-2.4.1-][+2.2.2+]\n"
        "RUN pip install torch-sparse -f https://data.pyg.org/whl/torch-2.2.0+cu121.html\n")),
    "an extension that is cloned, for a torch without a pin": ("cuda-other", (
        f"{OLD}RUN pip install torch[--][+ --index-url {WHEELS}/cu118+]\n"
        "RUN git clone https://github.com/NVIDIA/apex && cd apex && pip install .\n")),
    "an extension with a variable of its own": ("arch-list-missing", (
        f"{DEVEL}ENV [-TORCH_CUDA_ARCH_LIST=8.0-][+TCNN_CUDA_ARCHITECTURES=80+]\n"
        "RUN pip install --no-build-isolation "
        "git+https://github.com/NVlabs/tiny-cuda-nn/#subdirectory=bindings/torch\n")),
    "conda-forge before the channel pytorch": ("conda-forge-first", (
        "channels: [[-conda-forge, pytorch-][+pytorch, nvidia, conda-forge+]]\n"
        "dependencies: [pytorch=2.4, pytorch-cuda=12.1]\n")),
    "conda-forge first, and the channel named": ("conda-forge-first", (
        "channels: [conda-forge, [-nvidia, pytorch]\ndependencies: [pytorch-][+pytorch]\n"
        "dependencies: ['pytorch::pytorch'+], pytorch-cuda]\n")),
    "pixi: conda-forge before the channel pytorch": ("conda-forge-first", (
        f"{PIXI}channels = ['[-conda-forge', 'pytorch-][+pytorch', 'conda-forge+]']\n"
        "[dependencies]\npytorch = '2.4.*'\npytorch-cuda = '12.1.*'\n")),
    "pixi: a release that the channel never got, in a feature": ("conda-channel-ended", (
        f"{PIXI}channels = ['[-pytorch-][+conda-forge+]']\n[feature.gpu.dependencies]\n"
        "pytorch = '2.6.*'\n")),
    "pixi: CUDA that the file does not declare": ("pixi-without-cuda", (
        f"{PIXI}channels = ['conda-forge']\n[dependencies]\npytorch-gpu = '*'\n"
        "[--][+[system-requirements]\ncuda = '12'\n+]")),
    "pixi: CUDA that only another feature declares": ("pixi-without-cuda", (
        f"{PIXI}channels = ['conda-forge']\n[feature.a.dependencies]\npytorch-gpu = '*'\n"
        "[[-feature.b.system-][+feature.a.system+]-requirements]\ncuda = '12'\n")),
}  # fmt: skip


def _path(text: str) -> str:
    if text.startswith(PIXI):
        return "pixi.toml"
    return "environment.yml" if text.startswith("channels") else "Dockerfile"


@pytest.mark.parametrize(("rule", "text"), TWINS.values(), ids=TWINS)
def test_a_fault_is_found_and_its_twin_is_left_alone(rule: str, text: str) -> None:
    fault, twin = twins(text)
    assert rule in rules_of(fault, _path(fault))
    assert rule not in rules_of(twin, _path(twin))


@cases(
    "text",
    ("uv", f"{NOBLE}COPY --from=ghcr.io/astral-sh/uv /uv /bin/uv\nRUN uv pip install einops\n"),
    ("a directory of its own", f"{NOBLE}RUN pip install --target /a einops\n"),
    ("a command that may fail", f"{NOBLE}RUN pip install einops || true\n"),
    ("the mark removed",
     f"{NOBLE}RUN rm /usr/lib/python3.12/EXTERNALLY-MANAGED\nRUN pip install einops\n"),
    ("by ENV", f"{NOBLE}ENV PIP_BREAK_SYSTEM_PACKAGES=1\nRUN pip install a\n"),
    ("an image of another", "FROM own/python\nRUN pip install einops\n"),
    ("names of generations", f'{DEVEL}ENV TORCH_CUDA_ARCH_LIST="Ampere;9.0"\n'),
    ("a list that is not known", f"{DEVEL}ENV TORCH_CUDA_ARCH_LIST=$LIST\n"),
    ("a capability with a letter", f"{DEVEL}ENV CUDAARCHS=90a-real\n"),
    ("an image without nvcc", "FROM python:3.12\nENV TORCH_CUDA_ARCH_LIST=12.0\n"),
    ("conda without CUDA",
     "FROM condaforge/miniforge3\nRUN conda install -y numpy pytorch-lightning\n"),
    ("an extension as a wheel",
     "FROM python:3.12\nRUN pip install flash-attn -f https://wheels.example/\n"),
    ("llama for CPUs", "FROM python:3.12\nRUN pip install llama-cpp-python\n"),
    ("llama as a wheel",
     (f"{DEVEL}RUN pip install llama-cpp-python "
      "--extra-index-url https://abetlen.github.io/llama-cpp-python/whl/cu121\n")),
    ("CMAKE_ARGS from outside", f"{DEVEL}ARG HOW\nENV CMAKE_ARGS=$HOW\n{LLAMA}"),
    ("nothing replaced", f"{PYTORCH}RUN pip install einops torchvision\n"),
    ("the torch that is there", f"{PYTORCH}RUN pip install torch\n"),
    ("constraints", f"{PYTORCH}RUN pip install -c held.txt vllm\n"),
    ("no token", "FROM python:3.12\nENV HF_TOKEN=your_token_here_please\n"),
    ("other tokens", "FROM python:3.12\nENV MAX_TOKENS=4096 TOKENIZERS=a\n"),
    ("packages that are not seen",
     f"{DEVEL}COPY r.txt .\nRUN pip install -r r.txt onnxruntime-gpu==1.27.0\n"),
)  # fmt: skip
def test_a_file_without_a_mistake_has_no_findings(text: str) -> None:
    assert not rules_of(text)


def test_a_secret_is_not_printed() -> None:
    (found,) = lint("Dockerfile", f"FROM python:3.12\nENV HF_TOKEN={TOKEN}\n", CATALOG)
    assert TOKEN[3:] not in found.message + found.fix


@cases(
    "manifest found",
    ("a manifest with PyTorch", "[dependencies]\npytorch = '*'\n", 1),
    ("a manifest without CUDA", "[dependencies]\nnumpy = '*'\n", 0),
    ("no manifest", None, 1),
)
def test_pixi_in_a_build_matters_only_to_projects_for_gpus(
    manifest: str | None, found: int, tmp_path: Path
) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("FROM ghcr.io/prefix-dev/pixi:0.55.0\nRUN pixi install\n")
    if manifest is not None:
        (tmp_path / "pixi.toml").write_text(manifest)
    assert [one.rule for one in lint_file(path, CATALOG)] == ["conda-without-gpu"] * found
