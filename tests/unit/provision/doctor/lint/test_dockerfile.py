"""Rules over Dockerfiles: for each a seeded fault, and a twin that differs in the fault alone."""

from __future__ import annotations

import pytest

from provision.catalog.loading import load
from provision.doctor.lint import lint
from provision.doctor.lint.dockerfile import read_dockerfile
from tests.kit.cases import cases
from tests.kit.twins import twins

CATALOG = load()
DEVEL = "FROM nvidia/cuda:12.1.1-devel-ubuntu22.04\n"
CUDNN = "RUN apt-get install -y libcudnn8=8.9.0.131-1+cuda12.1\n"
CONDA = "FROM continuumio/miniconda3\nRUN conda install -c pytorch "
RUNTIME = "FROM nvidia/cuda:12.1.1-runtime-ubuntu22.04\n"
REPOS = "https://developer.download.nvidia.com/compute/cuda/repos"
WHEELS = CATALOG.pytorch_index("{tag}").replace("/{tag}", "")


def rules_of(text: str, path: str = "Dockerfile") -> set[str]:
    return {one.rule for one in lint(path, text, CATALOG)}


# rule, and the text with its fault and without: tests/kit/twins.py
TWINS = {
    "an image name without a tag":
        ("cuda-tag-none", "FROM nvidia/cuda[--][+:12.1.1-base-ubuntu22.04+]\n"),
    "the tag latest": ("cuda-tag-none", "FROM [-docker.io/nvidia-][+someone+]/cuda:latest\n"),
    "a tag without a system":
        ("cuda-tag-unknown", "FROM nvidia/cuda:12.1.1-devel[--][+-ubuntu22.04+]\n"),
    "a system that this CUDA never had":
        ("cuda-tag-unknown", "FROM nvidia/cuda:[-12.1.1-][+99.1.1+]-devel-ubuntu24.04\n"),
    "a tag that an ARG before FROM completes": ("cuda-tag-unknown",
        "ARG CUDA[-=12.1.1-][++]\nFROM nvidia/cuda:${CUDA}-devel-ubuntu24.04\n"),
    "a system past its end":
        ("base-ended", "FROM nvidia/cuda:11.8.0-base-[-ubuntu18.04-][+ubuntu22.04+]\n"),
    "nvcc in a runtime image": ("nvcc-missing", f"[-{RUNTIME}-][+{DEVEL}+]RUN nvcc -o a a.cu\n"),
    "nvcc in a runtime image, after a toolkit was installed": ("nvcc-missing", (
        f"{RUNTIME}RUN apt-get [-update \\\n # why\n"
        " && nvcc --version-][+install -y cuda-nvcc-12-1 && nvcc -o a a.cu+]\n")),
    "flash-attn in a runtime image": ("nvcc-missing",
        f"{RUNTIME}RUN pip install flash-attn --[-no-build-isolation-][+only-binary :all:+]\n"),
    "a build with CUDA in a runtime image":
        ("nvcc-missing", f"{RUNTIME}RUN cmake -B build -DGGML_CUDA=[-ON-][+OFF+] .\n"),
    "an extension for a torch of another CUDA major": ("cuda-other", (
        f"{DEVEL}RUN pip install torch==2.1.0 --index-url {WHEELS}/[-cu118-][+cu121+]\n"
        "RUN pip install git+https://github.com/NVIDIA/apex\n")),
    "wheels that bring CUDA into an image that has it": ("cuda-twice", (
        f"[-{RUNTIME}-][+FROM nvidia/cuda:12.1.1-base-ubuntu22.04\n"
        "+]RUN pip install torch==2.1.0\n")),
    "cuDNN of the system beside that of the wheels":
        ("cudnn-twice", f"{DEVEL}{CUDNN}[-RUN pip install torch==2.1.0\n-][++]"),
    "the driver in an image": ("driver-in-image", (
        "FROM ubuntu:22.04[-\n"
        "RUN apt-get update && apt-get install -y nvidia-driver-535-][+ AS builder\n"
        "RUN apt-get install -y nvidia-driver-535\nFROM ubuntu:22.04\n"
        "COPY --from=builder /a /a+]\n")),
    "nvidia-smi while an image is built":
        ("gpu-at-build", f"{DEVEL}RUN nvidia-smi[--][+ || true\nCMD nvidia-smi+]\n"),
    "an assertion of a GPU while an image is built": ("gpu-at-build", (
        f'{DEVEL}RUN python -c "import torch; [-assert '
        'torch.cuda.is_available(-][+print(torch.cuda.is_available()+])"\n')),
    "nvidia-smi in a here document": ("gpu-at-build",
        f"{DEVEL}[-RUN <<EOF\nset -e-][+COPY <<EOF /start.sh+]\nnvidia-smi\nEOF\n"),
    "nvidia-smi in the exec form":
        ("gpu-at-build", f'{DEVEL}RUN ["[-nvidia-smi", "-L-][+echo", "nvidia-smi+]"]\n'),
    "nvidia-smi in a shell of its own":
        ("gpu-at-build", f"{DEVEL}RUN [-bash -lc-][+echo+] 'cd / && nvidia-smi'\n"),
    "torch from conda and from pip":
        ("torch-conda-and-pip", f"{CONDA}[-pytorch-][+faiss+]\nRUN pip install torch\n"),
    "the retired key": ("cuda-key-retired", (
        "FROM ubuntu:20.04\n"
        f"RUN apt-key [-adv --fetch-keys {REPOS}/ubuntu2004/x86_64/7fa2af80.pub-][+del "
        f"7fa2af80; curl {REPOS}/a/3bf863cc.pub+]\n")),
    "a repository of another release": ("cuda-repository-other", (
        "FROM ubuntu:22.04\n"
        f"RUN wget {REPOS}/[-ubuntu1804-][+ubuntu2204+]/x86_64/cuda-keyring_1.0-1_all.deb\n")),
    "an extension without a list of architectures": ("arch-list-missing", (
        f"{DEVEL}[--][+ENV TORCH_CUDA_ARCH_LIST=8.0\n"
        "+]RUN pip install git+https://github.com/facebookresearch/pytorch3d.git\n")),
    "driver capabilities without compute": ("capabilities-without-compute",
        f"{DEVEL}ENV NVIDIA_DRIVER_CAPABILITIES[-=utility,video-][+ compute,utility+]\n"),
    "no visible devices": ("visible-devices-none",
        f"{DEVEL}ENV A=[-1 NVIDIA_VISIBLE_DEVICES=void-][+void NVIDIA_VISIBLE_DEVICES=all+]\n"),
    "stubs on the library path": ("library-path-stubs",
        f"{DEVEL}ENV [-LD_-][++]LIBRARY_PATH=/usr/local/cuda/lib64/stubs[-:$LD_PATH-][++]\n"),
    "stubs on the library path of the image that ships": ("library-path-stubs", (
        f"[-{DEVEL}ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs-][+{DEVEL.strip()} AS "
        "builder\n"
        "ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs\nFROM ubuntu:22.04\n"
        "COPY --from=builder /a /a+]\n")),
    "compatibility libraries on the library path": ("library-path-compat",
        f"{DEVEL}ENV LD_LIBRARY_PATH=/usr/local/cuda/[-compat:/usr/lib-][+lib64+]\n"),
    "a torch without wheels for the Python of the image": ("python-without-wheel",
        "FROM python:[-3.13-][+3.11+]-slim\nRUN pip install torch==2.1.0\n"),
    "wheels for CPUs in a CUDA image": ("torch-cpu-wheel", (
        f"[-{RUNTIME}-][+FROM python:3.11 AS cpu\n"
        f"+]RUN pip install torch --index-url {WHEELS}/cpu\n")),
    "wheels for CPUs beside cuda-compat": ("torch-cpu-wheel", (
        "FROM python:3.11-slim\nRUN apt-get install -y cuda-compat-12-4\n"
        f"RUN pip install torch --index-url {WHEELS}/[-cpu-][+cu124+]\n")),
    "wheels for CPUs, and nothing says for what": ("torch-cpu-wheel", (
        f"FROM python:3.11\n[-RUN pip install torch --index-url {WHEELS}/cpu-][+ARG D=cpu\n"
        "RUN if [ $D = gpu ]; then pip install torch; else pip install torch --index-url "
        f"{WHEELS}/cpu; fi+]\n")),
    "torch of the default index on ARM": ("torch-cpu-wheel", (
        f"[-{RUNTIME.replace('FROM', 'FROM --platform=linux/arm64')}-][+{RUNTIME}+]RUN pip "
        "install torch==2.4.0\n")),
    "a local version without its index": ("torch-index-missing", (
        f"FROM python:3.11\n[--][+ENV PIP_EXTRA_INDEX_URL={WHEELS}/cu118\n"
        "+]RUN pip install torch==2.1.0+cu118\n")),
    "a version from a variable": ("torch-index-missing",
        "FROM python:3.11\nARG TORCH[-=2.1.0+cu118-][++]\nRUN pip install torch==${TORCH}\n"),
    "jax alone in a CUDA image":
        ("jax-cpu", f"{RUNTIME}RUN pip install [-jax-][+'jax[cuda12]'+]\n"),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "text"), TWINS.values(), ids=TWINS)
def test_a_fault_is_found_and_its_twin_is_left_alone(rule: str, text: str) -> None:
    fault, twin = twins(text)
    assert rule in rules_of(fault)
    assert rule not in rules_of(twin)


def test_the_place_is_that_of_the_word_in_a_continued_line() -> None:
    text = f"{DEVEL}RUN apt-get update && \\\n    # a comment\n    nvidia-smi -L\n"
    (found,) = lint("Dockerfile", text, CATALOG)
    assert (found.line, found.column) == (4, 5)


def test_a_replacement_is_the_line_as_it_should_be() -> None:
    text = "FROM nvidia/cuda:12.1.1-devel-ubuntu24.04 AS build\n"
    (found,) = lint("Dockerfile", text, CATALOG)
    assert found.replacement == "FROM nvidia/cuda:12.1.1-devel-ubuntu22.04 AS build"
    assert not lint("Dockerfile", found.replacement, CATALOG)


@cases(
    "text",
    ("the line before", f"{DEVEL}# provision: ignore=gpu-at-build\nRUN nvidia-smi\n"),
    ("before a long instruction",
     f"{DEVEL}# provision: ignore=a,gpu-at-build\nRUN a && \\\n  b && \\\n nvidia-smi\n"),
    ("the line itself", f"{DEVEL}RUN nvidia-smi # provision: ignore=gpu-at-build\n"),
)  # fmt: skip
def test_a_comment_silences_a_rule(text: str) -> None:
    assert not lint("Dockerfile", text, CATALOG)


def test_a_comment_silences_no_other_rule() -> None:
    text = f"{DEVEL}# provision: ignore=cuda-other\nRUN nvidia-smi\n"
    assert rules_of(text) == {"gpu-at-build"}


def test_another_escape_character_joins_lines() -> None:
    text = f"# escape=`\n{DEVEL}RUN echo a `\n && nvidia-smi\n"
    assert rules_of(text) == {"gpu-at-build"}


def test_a_stage_inherits_image_and_environment() -> None:
    file = read_dockerfile(
        "Dockerfile",
        "ARG TAG=12.1.1-devel-ubuntu22.04\nFROM nvidia/cuda:$TAG AS one\nENV A=1\n"
        "FROM one AS two\nENV B=${A}2 C=${NOT_SET:-3}\nRUN echo $B\n",
    )
    two = file.stages[1]
    assert two.root_image == "nvidia/cuda:12.1.1-devel-ubuntu22.04"
    assert {name: value for name, (value, _) in two.environment().items()} == {
        "A": "1",
        "B": "12",
        "C": "3",
    }
    assert [word.text for word in next(two.all_commands()).words] == ["echo", "12"]
    assert file.shipped() == (two,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "FROM",
        "FROM a AS",
        "FROM a\nRUN <<EOF\nno end",
        "FROM a\nRUN \\",
        "FROM a\nENV",
        "FROM a\nENV A",
        "FROM a\nRUN '",
        "FROM a\nRUN $(",
        'FROM a\nRUN ["',
        "FROM a\nRUN ${",
        "FROM a\nRUN pip install -i",
        "FROM $",
        "FROM a\nCOPY --from= a b",
        "FROM a AS a\nFROM a AS a\nRUN nvidia-smi",
    ],
)
def test_a_broken_dockerfile_does_no_harm(text: str) -> None:
    assert isinstance(lint("Dockerfile", text, CATALOG), list)


def test_no_devel_image_is_named_that_does_not_exist() -> None:
    text = "FROM nvidia/cuda:{}\nRUN nvcc a.cu\n"
    known = lint("Dockerfile", text.format("12.1.1-base-ubuntu22.04"), CATALOG)
    unknown = lint("Dockerfile", text.format("99.1.1-base-ubuntu22.04"), CATALOG)
    assert "nvidia/cuda:12.1.1-devel-ubuntu22.04" in known[0].fix
    assert "a devel image" in unknown[0].fix


@cases(
    "image more fix",
    ("a Python without the extra", "ubuntu:20.04", "", "tensorflow==2.13.1"),
    ("the same of an official image", "python:3.8", "", "tensorflow==2.13.1"),
    ("a Python that has it", "ubuntu:22.04", "", "Write tensorflow[and-cuda]"),
    ("another Python is installed", "ubuntu:20.04", "RUN apt-get install -y python3.11",
     "Write tensorflow[and-cuda]"),
    ("no Python is known", "own/image", "", "Write tensorflow[and-cuda]"),
)  # fmt: skip
def test_a_fix_is_for_the_python_of_the_image(image: str, more: str, fix: str) -> None:
    text = f"FROM {image}\n{more}\nRUN pip3 install tensorflow-gpu\n"
    found = [one for one in lint("Dockerfile", text, CATALOG) if "tensorflow-gpu" in one.rule]
    assert [fix in one.fix for one in found] == [True]


def test_wheels_for_another_cuda_than_the_base_are_said() -> None:
    text = (
        "FROM nvidia/cuda:11.7.1-cudnn8-runtime-ubuntu22.04\n"
        "RUN pip install torch==2.3.0 --index-url https://download.pytorch.org/whl/cu121\n"
    )
    assert "cuda-other" in {one.rule for one in lint("Dockerfile", text, CATALOG)}
