"""Rules over requirements: for each a seeded fault, and a twin that differs in the fault alone."""

from __future__ import annotations

import pytest

from provision.catalog.loading import load
from provision.doctor.lint import LintFinding, lint
from tests.kit.cases import cases
from tests.kit.twins import twins

CATALOG = load()
WHEELS = CATALOG.pytorch_index("{tag}").replace("/{tag}", "")
JAX_PAGE = "https://storage.googleapis.com/jax-releases/jax_cuda_releases.html"


def findings_of(text: str, path: str = "requirements.txt") -> list[LintFinding]:
    return lint(path, text, CATALOG)


# rule, and the text with its fault and without: tests/kit/twins.py
TWINS = {
    "tensorflow-gpu without a version":
        ("tensorflow-gpu-retired", "numpy\ntensorflow[--gpu-][+[and-cuda]+]\n"),
    "tensorflow-gpu of the empty release":
        ("tensorflow-gpu-retired", "tensorflow-gpu==[-2.12.0-][+2.10.0+]\n"),
    "tensorflow-gpu in a range that ends before the empty release":
        ("tensorflow-gpu-retired", "tensorflow_gpu>=2.8[--][+,<2.12+]\n"),
    "nvidia-tensorrt": ("package-retired", "[-nvidia--][++]tensorrt\n"),
    "the placeholder called pytorch": ("package-retired", "pytorch[--][+-lightning+]>=2\n"),
    "torchvision of another torch":
        ("torch-pair", "torch==2.1.0\ntorchvision==[-0.15.2-][+0.16.0+]\n"),
    "torchaudio of another torch, with local versions": ("torch-pair", (
        f"-f {WHEELS}/torch_stable.html\ntorch==2.1.0+cu118\n"
        "torchaudio==[-2.0.2-][+2.1.0+]+cu118\n")),
    "a torchvision that nothing is known of":
        ("torch-pair", "torch==2.1.0\ntorchvision==[-0.14.1-][+0.99.0+]\n"),
    "a CUDA that PyTorch never had wheels for": ("torch-build-missing", (
        f"--extra-index-url {WHEELS}/[-cu122\ntorch==2.1.0+cu122-][+cu121\n"
        "torch==2.1.0+cu121+]\n")),
    "a CUDA that is younger than the release": ("torch-build-missing",
        f"--extra-index-url {WHEELS}/cu128\ntorch==[-2.4.0-][+2.7.0+]+cu128\n"),
    "a CUDA that is older than the release": ("torch-build-missing", (
        f"--extra-index-url {WHEELS}/[-cu117\ntorch==2.4.0+cu117-][+cu115\n"
        "torch==1.11.0+cu115+]\n")),
    "a local version without its index": ("torch-index-missing",
        f"[--][+--find-links {WHEELS}/torch_stable.html\n+]torch==2.1.0+cu118\n"),
    "a local version that is an address": ("torch-index-missing", (
        "[-torchvision==0.16.0+cu118-][+torch @ "
        f"{WHEELS}/cu118/torch-2.1.0%2Bcu118-cp310-cp310-linux_x86_64.whl+]\n")),
    "the index of another CUDA": ("torch-index-other", (
        f"--extra-index-url {WHEELS}/cu121\n[--][+-i https://mirror.example/simple\n"
        "+]torch==2.1.0+cu118\n")),
    "a torch for CPUs beside what needs a GPU": ("torch-cpu-wheel", (
        f"--extra-index-url {WHEELS}/cpu\ntorch==2.1.0+cpu\n[-flash-attn-][+transformers\n"
        "faiss-cpu+]\n")),
    "NumPy 2 beside an old torch": ("torch-numpy", "torch==[-2.1.0-][+2.3.0+]\nnumpy==2.0.1\n"),
    "NumPy 2 by its lower bound": ("torch-numpy", "torch==2.1.0\nnumpy>=[-2.0-][+1.26,<2+]\n"),
    "NumPy 2 by a star": ("torch-numpy", "torch==2.1.0\nnumpy[-=-][+!+]=2.*\n"),
    "a library of another CUDA major":
        ("cuda-mixed", "torch==2.5.1\nnvidia-cudnn-[-cu11==8.9.6.50-][+cu12+]\n"),
    "a library in another version than torch's":
        ("cuda-pin-conflict", "torch==2.5.1\nnvidia-cudnn-cu12==[-8.9.2.26-][+9.1.0.70+]\n"),
    "a Python that the release has no wheels for":
        ("python-without-wheel", 'torch==1.13.1 ; python_version [->=-][+<+] "3.12"\n'),
    "an extra that jax no longer has": ("jax-extra-retired", "jax[cuda11_pip][--][+==0.4.14+]\n"),
    "an extra that jax no longer has, in a range":
        ("jax-extra-retired", "jax[cuda11_pip][->=0.4.14-][+<0.4.20+]\n"),
    "the page of old jax builds": ("jax-old-index",
        f"-f {JAX_PAGE}\njax[-[cuda12]-][+==0.4.26\njaxlib==0.4.26+cuda12.cudnn89+]\n"),
    "onnxruntime twice": ("onnxruntime-twice", "onnxruntime[-\nonnxruntime-][++]-gpu\n"),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "text"), TWINS.values(), ids=TWINS)
def test_a_fault_is_found_and_its_twin_is_left_alone(rule: str, text: str) -> None:
    fault, twin = twins(text)
    assert rule in {one.rule for one in findings_of(fault)}
    assert rule not in {one.rule for one in findings_of(twin)}


@cases(
    "text",
    ("not on Linux", 'torch==2.1.0 ; sys_platform == "win32"\ntorchvision==0.15.2\n'),
    ("one of two",
     ('torch==2.1.0 ; python_version < "3.12"\ntorch==2.4.0 ; python_version >= "3.12"\n'
      "torchvision==0.16.0\n")),
    ("by stars", "torch==2.1.*\ntorchvision==0.15.*\n"),
    ("without a pin", "torch>=2.1.0\ntorchvision==0.15.2\n"),
    ("of ROCm", "torch==2.1.0+rocm5.6\ntorchvision==0.16.0+rocm5.6 # a comment\n"),
    ("with another file",
     "-e git+https://example.org/a.git#egg=a\n./here\n-r other.txt\ntorch==2.1.0+cu118\n"),
    ("nothing", "\\\n"),
    ("no requirements", "torch==\n!!!\n-\n--\n-i\n"),
)  # fmt: skip
def test_what_cannot_be_told_is_left_alone(text: str) -> None:
    assert not findings_of(text)


def test_a_pair_is_put_right_by_its_replacement() -> None:
    text = "torch==2.1.0\ntorchvision==0.15.2  # pictures\n"
    (found,) = findings_of(text)
    assert found.replacement == "torchvision==0.16.0  # pictures"
    assert not findings_of(f"torch==2.1.0\n{found.replacement}\n")


def test_hashes_and_continued_lines_belong_to_their_requirement() -> None:
    text = "torch==2.1.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\nnumpy==2.0.1\n"
    (found,) = findings_of(text)
    assert (found.rule, found.line) == ("torch-numpy", 4)


@cases(
    "name levels",
    ("nothing says for what it is", "requirements.txt", ["note"]),
    ("a user's name says nothing", "/home/amd/web/requirements.txt", ["note"]),
    ("nor does the architecture", "requirements-amd64.txt", ["note"]),
    ("the name says GPU", "requirements-gpu.txt", ["warning"]),
    ("the name says CPU", "requirements-cpu.txt", []),
    ("the directory says AMD", "docker/rocm/requirements.txt", []),
    ("CI has no GPU", ".ci/requirements.txt", []),
    ("nor has what builds documents", "docs/requirements.txt", []),
)
def test_wheels_for_cpus_matter_by_what_a_file_is_for(name: str, levels: list[str]) -> None:
    found = findings_of(f"--extra-index-url {WHEELS}/cpu\ntorch==2.1.0+cpu\n", name)
    assert [one.level for one in found] == levels


def test_a_constraints_file_names_no_index() -> None:
    assert not findings_of("torch==2.1.0+cu118\n", "constraints.txt")


def test_every_release_of_the_catalog_goes_with_its_own_companions() -> None:
    for release in CATALOG.torch_releases:
        lines = [f"torch=={release.version}"]
        lines += [f"torchvision=={release.torchvision}"] if release.torchvision else []
        lines += [f"torchaudio=={release.torchaudio}"] if release.torchaudio else []
        assert not findings_of("\n".join(lines)), release.version


def test_every_build_of_the_catalog_is_taken_from_its_index() -> None:
    for build in CATALOG.torch:
        pins = "\n".join(pin for pin in build.pins if "==" in pin)
        index = CATALOG.pytorch_index(build.tag)
        text = f"--index-url {index}\ntorch=={build.version}+{build.tag}\n{pins}\n"
        assert build.cuda is None or not findings_of(text), (build.version, build.tag)


@pytest.mark.timeout(30)
@cases(
    "text",
    ("blanks at the end", f"torch==2.1.0{' ' * 900_000}\n"),
    ("blanks within", f"torch==2.1.0{' ' * 900_000}x\n"),
    ("a version with many digits", f"torch=={'9' * 5000}\n"),
    ("brackets by the thousand", f"torch; {'(' * 3000}\n"),
)
def test_no_line_takes_long_or_is_a_bug(text: str) -> None:
    assert not findings_of(text)
