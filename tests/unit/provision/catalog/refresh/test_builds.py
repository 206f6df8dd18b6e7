"""What METADATA and the files inside a wheel say about CUDA, judged without a network.

The requirement lines have the shapes of the real projects' METADATA, as read from their wheels on
2026-11-21: PyTorch 1.12 (none at all), 2.0 (pins for x86_64), 2.11 (cuda-toolkit with extras), the
and-cuda extra of TensorFlow 2.14 (exact) and 2.20 (ranges), the with-cuda extra of JAX's plugins.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from packaging.version import Version

from provision.catalog.index.pages import PageFile
from provision.catalog.index.wheels import (
    IndexMetadata,
    builds_of,
    cuda_of,
    glibc_of,
    linux_wheels,
    needed,
    parse_metadata,
)
from provision.catalog.refresh.model import template_of
from provision.catalog.refresh.pytorch import cuda_of_tag, judge_build, judge_companions, tag_of
from provision.catalog.refresh.tensorflow import stands_for
from tests.kit.cases import cases

X86 = 'platform_system == "Linux" and platform_machine == "x86_64"'


def metadata(
    requires: Sequence[str], *, version: str = "9.0.0", name: str = "torch"
) -> IndexMetadata:
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    return parse_metadata("\n".join(lines).encode())


PINS_12 = [
    f"nvidia-cuda-runtime-cu12==12.6.77; {X86}",
    f"nvidia-cudnn-cu12==9.5.1.17; {X86}",
    f"nvidia-nccl-cu12==2.26.2 ; {X86}",
    f"triton==3.3.0; {X86}",
    "sympy>=1.13.3",
]
PINS_13 = [
    'cuda-bindings<14,>=13.0.3; platform_system == "Linux"',
    'cuda-toolkit[cublas,cudart]==13.0.2; platform_system == "Linux"',
    'nvidia-cudnn-cu13==9.19.0.56; platform_system == "Linux"',
    'nvidia-nccl-cu13==2.28.9; platform_system == "Linux"',
]


@cases(
    "requires arch expected",
    ("the pin of the runtime names CUDA", PINS_12, "x86_64",
     {"cuda": "12.6", "cudnn": "9.5.1.17", "nccl": "2.26.2",
     "pins": ["nvidia-cuda-runtime-cu12==12.6.77", "nvidia-cudnn-cu12==9.5.1.17",
     "nvidia-nccl-cu12==2.26.2", "triton==3.3.0"]}),
    ("the pin of the toolkit names CUDA, without its extras", PINS_13, "aarch64",
     {"cuda": "13.0", "cudnn": "9.19.0.56", "nccl": "2.28.9", "pins": ["cuda-bindings<14,>=13.0.3",
     "cuda-toolkit==13.0.2", "nvidia-cudnn-cu13==9.19.0.56", "nvidia-nccl-cu13==2.28.9"]}),
    ("pins for the other machine: CPU", PINS_12, "aarch64", {"cuda": None}),
    ("no package of NVIDIA's: nothing is said", ["sympy"], "x86_64", None),
    ("cuDNN alone names no CUDA X.Y", ["nvidia-cudnn-cu12==9.5.1.17"], "x86_64", None),
    ("a range is no CUDA X.Y", ["nvidia-cuda-runtime-cu12>=12.6"], "x86_64", None),
    ("two CUDAs are none", ["nvidia-cuda-runtime-cu12==12.6.77", "cuda-toolkit==13.0.2"], "x86_64",
     None),
    ("a major alone is none", ["nvidia-cuda-runtime==13"], "x86_64", None),
)  # fmt: skip
def test_metadata_says_what_a_default_build_is(
    requires: Sequence[str], arch: str, expected: dict[str, object] | None
) -> None:
    name = f"torch-9.0.0-cp312-cp312-manylinux_2_28_{arch}.whl"
    (wheel,) = linux_wheels([PageFile(name=name, url="")], "torch")
    assert judge_build((wheel, metadata(requires)), arch) == expected


def vision(version: str, *requires: str) -> tuple[Version, IndexMetadata]:
    return Version(version), metadata(requires, version=version, name="torchvision")


def test_only_an_exact_pin_pairs_and_the_newest_counts() -> None:
    read = dict(
        [
            vision("0.28.0", "torch==2.13.0"),
            vision("0.28.1", "torch (==2.13.0)", "numpy"),
            vision("0.29.0", "torch==2.14.0"),
            vision("0.29.2", "torch>=2.14.0"),
        ]
    )
    found = judge_companions(read, yanked=[Version("0.28.1")])
    assert found == {"2.13.0": "0.28.0", "2.14.0": "0.29.0"}


EXACT = [
    'nvidia-cuda-runtime-cu11==11.8.89; extra == "and-cuda"',
    'nvidia-cudnn-cu11==8.7.0.84; extra == "and-cuda"',
    'tensorrt==8.5.3.1; extra == "and-cuda"',
    "numpy>=1.23.5",
]
RANGES = [
    'nvidia-cuda-runtime-cu12<13.0,>=12.5.82; extra == "and-cuda"',
    'nvidia-cudnn-cu12<10.0,>=9.3.0.75; extra == "and-cuda"',
]


@cases(
    "requires bounds cuda",
    ("exact pins", EXACT, False, "11.8"),
    ("ranges are no pins", RANGES, False, None),
    ("ranges by their lower bounds", RANGES, True, "12.5"),
)
def test_the_extra_of_tensorflow_names_cuda(
    requires: Sequence[str], *, bounds: bool, cuda: str | None
) -> None:
    extra = needed(metadata(requires), "x86_64", extra="and-cuda")
    assert cuda_of(extra, bounds=bounds) == cuda
    assert "numpy" not in {requirement.name for requirement in extra}


def test_an_extra_is_found_by_any_spelling() -> None:
    read = metadata(['nvidia-cuda-runtime-cu12>=12.1; extra == "with_cuda"'])
    assert [r.name for r in needed(read, "x86_64", extra="with-cuda")] == [
        "nvidia-cuda-runtime-cu12"
    ]


@cases(
    "requires expected",
    ("another package of this version", ['tensorflow-cpu-aws==9.0.0; platform_machine == "aarch64"',
     'tensorflow-intel==9.0.0; platform_system == "Windows"'], ("tensorflow-cpu-aws",)),
    ("a part of it is no stand-in", ["tensorflow-estimator<10,>=9"], ()),
    ("an ordinary wheel", ["numpy"], ()),
)  # fmt: skip
def test_a_stub_is_told_by_what_it_asks_for(
    requires: Sequence[str], expected: tuple[str, ...]
) -> None:
    assert stands_for(metadata(requires, name="tensorflow"), "aarch64") == expected


@pytest.mark.parametrize(
    ("tag", "cuda"), [("cu92", "9.2"), ("cu117", "11.7"), ("cu130", "13.0"), ("cpu", None)]
)
def test_a_tag_names_cuda(tag: str, cuda: str | None) -> None:
    assert cuda_of_tag(tag) == cuda
    assert tag_of(cuda) == tag


@cases(
    "tag names",
    ("the default builds", None, ["9.0.0-x86_64", "9.1.0-aarch64"]),
    ("of a tag", "cu126", ["9.1.0-x86_64"]),
    ("without a tag: for CPUs", "cpu", ["9.0.0-x86_64", "9.1.0-aarch64"]),
    ("the tag of none", "cu12", []),
)
def test_wheels_of_a_tag_are_its_builds(tag: str | None, names: Sequence[str]) -> None:
    """Candidates, wheels for any machine and releases older than the catalog are none."""
    files = [
        "torch-8.9.0-cp312-cp312-linux_x86_64.whl",
        "torch-9.0.0-cp312-cp312-linux_x86_64.whl",
        "torch-9.0.0-cp313-cp313-linux_x86_64.whl",
        "torch-9.1.0rc1-cp312-cp312-linux_x86_64.whl",
        "torch-9.1.0+cu126-cp312-cp312-linux_x86_64.whl",
        "torch-9.1.0+cu126.full-cp312-cp312-linux_x86_64.whl",
        "torch-9.1.0-cp312-cp312-linux_aarch64.whl",
        "torch-9.1.0-py3-none-any.whl",
    ]
    wheels = linux_wheels([PageFile(name=name, url="") for name in files], "torch")
    found = builds_of(wheels, Version("9"), tag)
    assert [f"{version}-{arch}" for version, arch in found] == names


@cases(
    "platforms glibc",
    ("what suffices for all", ["manylinux_2_17", "manylinux_2_28"], "2.28"),
    ("one does not say", ["manylinux_2_17", "linux"], None),
)
def test_a_build_needs_the_glibc_of_each_of_its_wheels(
    platforms: Sequence[str], glibc: str | None
) -> None:
    files = [PageFile(name=f"a-1-cp312-cp312-{one}_x86_64.whl", url="") for one in platforms]
    assert glibc_of(linux_wheels(files, "a")) == glibc


@cases(
    "override template",
    ("the catalog's own", None, "https://x.example/whl/{tag}"),
    ("what is above", "https://m.example/pt/", "https://m.example/pt/{tag}"),
    ("any", "https://m.example/{tag}/simple", "https://m.example/{tag}/simple"),
)
def test_a_mirror_is_named_by_its_address(override: str | None, template: str) -> None:
    assert template_of("https://x.example/whl/{tag}", override, "{tag}") == template
