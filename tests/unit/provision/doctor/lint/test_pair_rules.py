"""Two packages that an installer puts together and that do not work together."""

from __future__ import annotations

import re

import pytest

from provision.catalog.loading import load
from provision.doctor.lint import LintFinding, lint
from provision.doctor.lint.findings import table
from tests.kit.cases import cases
from tests.kit.twins import twins

CATALOG = load()
WHEELS = CATALOG.pytorch_index("{tag}").replace("/{tag}", "")


def findings_of(text: str, path: str = "requirements.txt") -> list[LintFinding]:
    return lint(path, text, CATALOG)


# rule, and the text with its fault and without: tests/kit/twins.py
TWINS = {
    "xformers for another torch":
        ("package-pair", "torch==[-2.4.0-][+2.5.0+]\nxformers==0.0.28.post2\n"),
    "vllm for another torch": ("package-pair", "vllm==0.9.1\ntorch==[-2.6.0-][+2.7.0+]\n"),
    "vllm without a pin: the installer finds one":
        ("package-pair", "vllm[-==0.8.5-][++]\ntorch==2.7.0\n"),
    "torchcodec for another torch, patch releases aside":
        ("package-pair", "torch==2.7.1\ntorchcodec==[-0.2.1-][+0.5.0+]\n"),
    "torchtext for another torch":
        ("package-pair", "torch==[-2.4.0-][+2.3.1+]\ntorchtext==0.18.0\n"),
    "fbgemm-gpu for another torch":
        ("package-pair", "torch==2.6.0\nfbgemm-gpu==[-1.0.0-][+1.1.0+]\n"),
    "bitsandbytes without a library for torch's CUDA":
        ("package-cuda", "torch==2.5.1\nbitsandbytes==[-0.41.0-][+0.43.1+]\n"),
    "bitsandbytes of a torch for a CUDA that it has a library for": ("package-cuda", (
        f"[-torch==2.5.1-][+--extra-index-url {WHEELS}/cu121\ntorch==2.5.1+cu121+]\n"
        "bitsandbytes==0.42.0\n")),
    "bitsandbytes beside the torch of today":
        ("package-cuda", "torch\nbitsandbytes==0.43.0\n[--][+vllm==0.9.1\n+]"),
    "onnxruntime-gpu of CUDA 12 beside a torch of CUDA 13":
        ("package-cuda", "torch==2.12.0\nonnxruntime-gpu[--][+[cuda,cudnn]+]==1.22.0\n"),
    "onnxruntime-gpu of today beside a torch of CUDA 12":
        ("package-cuda", "torch==2.8.0\nonnxruntime-gpu[--][+<1.27+]\n"),
    "CuPy of CUDA 12 beside a torch of CUDA 13, which brings its libraries":
        ("package-cuda", "torch==2.12.0\ncupy-cuda12x\n[--][+nvidia-cublas-cu12\n+]"),
    "CuPy beside a torch without a pin": ("package-cuda", "cupy-cuda12x\n[-torch\n-][++]"),
    "transformers of today beside an old torch":
        ("torch-too-old", "torch==2.2.0\ntransformers>=4.40[--][+,<5+]\n"),
    "a pinned transformers beside an old torch":
        ("torch-too-old", "torch==1.13.1\ntransformers==[-4.53.0-][+4.47.1+]\n"),
    "another package may hold transformers":
        ("torch-too-old", "torch==2.2.0\ntransformers\n[-tqdm==4.66.1-][+trl==0.7.0+]\n"),
    "NumPy without a bound": ("torch-numpy", "numpy\ntorch==[-2.0.1-][+2.4.0+]\n"),
    "NumPy that another package may hold":
        ("torch-numpy", "numpy>=1.21\ntorch==2.0.1\n[--][+scipy==1.10.1\n+]"),
    "NumPy that a constraint may hold": ("torch-numpy",
        "[-numpy\ntorch==2.0.1\nPyYAML==6.0-][+-c held.txt\nnumpy\ntorch==2.0.1+]\n"),
    "an index that pip passes over": ("torch-index-passed-over",
        f"--extra-index-url {WHEELS}/cu118\ntorch>=2.0[--][+,<=2.7.1+]\n"),
    "an index that is the only one":
        ("torch-index-passed-over", f"--[-extra--][++]index-url {WHEELS}/cu121\ntorch\n"),
    "a release after the end of its index":
        ("torch-build-missing", f"--index-url {WHEELS}/cu121\ntorch==[-2.6.0-][+2.5.1+]\n"),
    "a release before the first of its index":
        ("torch-build-missing", f"--index-url {WHEELS}/cu126\ntorch==[-2.5.1-][+2.6.0+]\n"),
    "jax and torch with different cuDNN":
        ("jax-torch-cudnn", "jax[cuda12]==[-0.6.1-][+0.4.34+]\ntorch==2.5.1\n"),
    "a page of wheels for another torch": ("wheels-of-another-torch", (
        "-f https://data.pyg.org/whl/torch-2.3.0+cu121.html\ntorch==[-2.4.0-][+2.3.1+]\n"
        "torch-sparse\n")),
    "a page of wheels that names CUDA first": ("wheels-of-another-torch", (
        "-f https://wheels.example/dist/cu118/[-torch2.0-][+torch2.1+]/index.html\n"
        "torch==2.1.0\nmmcv\n")),
    "flash-attn beside torch": ("torch-at-build", "[-torch==2.6.0\n-][++]flash-attn==2.7.4\n"),
    "an extension whose wheels are on a page": ("torch-at-build", (
        "[--][+-f https://data.pyg.org/whl/torch-2.3.0+cu121.html\n+]torch==2.3.0\n"
        "torch-scatter\n")),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "text"), TWINS.values(), ids=TWINS)
def test_a_fault_is_found_and_its_twin_is_left_alone(rule: str, text: str) -> None:
    fault, twin = twins(text)
    assert rule in {one.rule for one in findings_of(fault)}
    assert rule not in {one.rule for one in findings_of(twin)}


@cases(
    "text",
    ("vllm's own torch", "torch==2.8.0\nvllm==0.10.2\ntorchvision==0.23.0\n"),
    ("all of today", "torch\nnumpy\ntransformers\naccelerate\n"),
    ("no torch", "numpy\ntransformers\n"),
    ("what a lock takes", "torch==2.1.0\nnumpy==1.26.4\ntransformers==4.55.4\n"),
    ("a torch that today's accepts", "torch==2.6.0\nnumpy\ntransformers\n"),
    ("a torch without a pin", "torch>=2.0\nnumpy\ntransformers>=4\n"),
    ("both of CUDA 12", "torch==2.7.0\nonnxruntime-gpu==1.22.0\n"),
    ("no torch, no image", "onnxruntime-gpu==1.22.0\n"),
    ("it takes the nearest CUDA", "torch==2.9.1\nbitsandbytes==0.50.2\n"),
    ("which CUDA it takes is unknown", "torch==2.9.1\nbitsandbytes==0.39.1\n"),
    ("any release from one on", "torch==2.9.1\nbitsandbytes>=0.41\n"),
    ("bitsandbytes without torch", "bitsandbytes==0.41.0\n"),
    ("a mirror whose torch may be for any CUDA",
     "-i https://mirror.example/simple\ntorch==2.5.1\nbitsandbytes==0.41.0\n"),
    ("a release that nothing is known of", "torch==2.4.0\nxformers==0.0.99\n"),
    ("a pair without torch", "xformers==0.0.30\n"),
    ("a wheel by address", "torch==2.4.0\nxformers @ https://a.example/x.whl\n"),
    ("an index of today", f"--extra-index-url {WHEELS}/cu126\ntorch\n"),
    ("an index for CPUs", f"--extra-index-url {WHEELS}/cpu\ntorch\nopenvino\n"),
    ("a mirror", "-i https://mirror.example/simple\ntorch==2.7.0\n"),
    ("a cuDNN that both accept", "jax[cuda12]==0.6.1\ntorch==2.9.0\n"),
    ("jax for CPUs", "jax==0.6.1\ntorch==2.5.1\n"),
    ("NumPy 2 excluded", "torch==2.3.0\nnumpy!=2.*\n"),
)  # fmt: skip
def test_a_file_without_a_mistake_has_no_findings(text: str) -> None:
    assert not findings_of(text)


@cases(
    "path text rules",
    ("requirements", "requirements.txt", "numpy\ntorch==2.1.1\ntransformers\n",
     {"torch-numpy", "torch-too-old"}),
    ("conda", "environment.yml",
     ("channels: [conda-forge]\ndependencies:\n  - python=3.10\n  - pip:\n"
      "      - numpy\n      - torch==2.1.1\n      - transformers\n"),
     {"torch-numpy", "torch-too-old"}),
    ("a command of pip", "Dockerfile",
     "FROM python:3.10\nRUN pip install numpy torch==2.1.1 transformers\n",
     {"torch-numpy", "torch-too-old"}),
    ("a Python that NumPy 2 is not for", "Dockerfile",
     "FROM python:3.8\nRUN pip install numpy torch==2.1.1 'transformers<5'\n", {"torch-too-old"}),
    ("a project, whose lock file may hold them", "pyproject.toml",
     ('[project]\nname = "a"\nversion = "1"\n'
      'dependencies = ["numpy", "torch==2.1.1", "transformers"]\n'), set()),
)  # fmt: skip
def test_what_is_newest_today_is_judged_where_pip_takes_it(
    path: str, text: str, rules: set[str]
) -> None:
    assert {one.rule for one in findings_of(text, path)} == rules


@pytest.mark.parametrize("name", [one for one, row in TWINS.items() if row[0] == "torch-too-old"])
def test_the_printed_release_removes_the_finding(name: str) -> None:
    text, _ = twins(TWINS[name][1])
    (found,) = (one for one in findings_of(text) if one.rule == "torch-too-old")
    bound = re.search(r'"(transformers<[\d.]+)"', found.fix)
    assert bound is not None
    lines = [bound[1] if line.startswith("transformers") else line for line in text.splitlines()]
    assert not findings_of("\n".join(lines))


def test_each_pair_of_the_table_is_quiet_by_itself_and_found_beside_another_torch() -> None:
    for row in table("packages.toml")["pairs"]:
        for release, torch in row["torch"].items():
            pair = f"{row['name']}=={release}\ntorch=={torch}\n"
            assert "package-pair" not in {one.rule for one in findings_of(pair)}, pair
            other = pair.replace(f"torch=={torch}", "torch==1.12.1")
            assert "package-pair" in {one.rule for one in findings_of(other)}, other


@cases(
    "text fix",
    ("both can change", "torch==2.5.1\nbitsandbytes==0.41.0\n",
     f'Write "bitsandbytes>=0.43.1", or take torch from {WHEELS}/cu121.'),
    ("no build of that torch is for one of its CUDAs", "torch==2.9.1\nbitsandbytes==0.44.1\n",
     'Write "bitsandbytes>=0.45.3".'),
    ("no later release has it",
     f"--extra-index-url {WHEELS}/cu116\ntorch==1.13.1+cu116\nbitsandbytes==0.41.0\n",
     f"Take torch from {WHEELS}/cu117."),
)  # fmt: skip
def test_the_fix_names_a_release_or_a_build_that_goes_with_the_other(text: str, fix: str) -> None:
    (found,) = findings_of(text)
    assert (found.rule, found.fix) == ("package-cuda", fix)
    assert found.message.endswith("its functions for GPUs fail.")
