"""What METADATA and the files inside a wheel say about CUDA, judged without a network.

The requirement lines have the shapes of the real projects' METADATA, as read from their wheels on
2026-11-21: PyTorch 1.12 (none at all), 2.0 (pins for x86_64), 2.11 (cuda-toolkit with extras), the
and-cuda extra of TensorFlow 2.14 (exact) and 2.20 (ranges), the with-cuda extra of JAX's plugins.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from packaging.version import Version

from provision.catalog.refresh.pytorch import (
    Companions,
    DefaultBuild,
    judge_build,
    judge_companions,
    pairing_note,
    parse_version_file,
)
from provision.catalog.refresh.pytorch_index import cuda_of_tag, tags_among
from provision.catalog.refresh.registry import cuda_of_image
from provision.catalog.refresh.tensorflow import (
    WheelBuildInfo,
    parse_build_info,
    parse_capabilities,
    stands_for,
)
from provision.catalog.refresh.wheels import IndexMetadata, cuda_of, needed, parse_metadata

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


@pytest.mark.parametrize(
    ("requires", "arch", "expected"),
    [
        pytest.param(
            PINS_12,
            "x86_64",
            DefaultBuild(
                cuda="12.6",
                cudnn="9.5.1.17",
                nccl="2.26.2",
                pins=(
                    "nvidia-cuda-runtime-cu12==12.6.77",
                    "nvidia-cudnn-cu12==9.5.1.17",
                    "nvidia-nccl-cu12==2.26.2",
                    "triton==3.3.0",
                ),
            ),
            id="the pin of the runtime names CUDA",
        ),
        pytest.param(
            PINS_13,
            "aarch64",
            DefaultBuild(
                cuda="13.0",
                cudnn="9.19.0.56",
                nccl="2.28.9",
                pins=(
                    "cuda-bindings<14,>=13.0.3",
                    "cuda-toolkit==13.0.2",
                    "nvidia-cudnn-cu13==9.19.0.56",
                    "nvidia-nccl-cu13==2.28.9",
                ),
            ),
            id="the pin of the toolkit names CUDA, without its extras",
        ),
        pytest.param(
            PINS_12, "aarch64", DefaultBuild(cuda=None), id="pins for the other machine: CPU"
        ),
        pytest.param(["sympy"], "x86_64", None, id="no package of NVIDIA's: nothing is said"),
        pytest.param(
            ["nvidia-cudnn-cu12==9.5.1.17"], "x86_64", None, id="cuDNN alone names no CUDA X.Y"
        ),
        pytest.param(
            ["nvidia-cuda-runtime-cu12>=12.6"], "x86_64", None, id="a range is no CUDA X.Y"
        ),
        pytest.param(
            ["nvidia-cuda-runtime-cu12==12.6.77", "cuda-toolkit==13.0.2"],
            "x86_64",
            None,
            id="two CUDAs are none",
        ),
        pytest.param(["nvidia-cuda-runtime==13"], "x86_64", None, id="a major alone is none"),
    ],
)
def test_metadata_says_what_a_default_build_is(
    requires: Sequence[str], arch: str, expected: DefaultBuild | None
) -> None:
    assert judge_build(metadata(requires), arch, "3.12") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "__version__ = '1.12.1+cu102'\ncuda = '10.2'\n", DefaultBuild(cuda="10.2"), id="old"
        ),
        pytest.param('cuda: Optional[str] = "12.6"\n', DefaultBuild(cuda="12.6"), id="with a type"),
        pytest.param("cuda: Optional[str] = None\n", DefaultBuild(cuda=None), id="a CPU build"),
        pytest.param("debug = False\nhip = None\n", None, id="no word of CUDA"),
        pytest.param("# cuda = '10.2'\n", None, id="only a comment"),
    ],
)
def test_the_version_file_of_pytorch_is_read(text: str, expected: DefaultBuild | None) -> None:
    assert parse_version_file(text.encode()) == expected


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
    assert found.by_torch == {"2.13.0": "0.28.0", "2.14.0": "0.29.0"}
    assert (found.newest, found.newest_asks) == ("0.29.2", ">=2.14.0")


@pytest.mark.parametrize(
    ("newest", "asks", "words"),
    [
        pytest.param("0.29.2", ">=2.14.0", "0.29.2, asks for torch>=2.14.0", id="a range"),
        pytest.param("2.11.0", "", "2.11.0, asks for no torch in particular", id="none"),
        pytest.param(None, "", "No torchvision was read", id="nothing read"),
    ],
)
def test_a_release_without_companion_says_why(newest: str | None, asks: str, words: str) -> None:
    found = Companions(by_torch={}, newest=newest, newest_asks=asks)
    assert words in pairing_note("torchvision", "9.0.0", found)


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


@pytest.mark.parametrize(
    ("requires", "bounds", "cuda"),
    [
        pytest.param(EXACT, False, "11.8", id="exact pins"),
        pytest.param(RANGES, False, None, id="ranges are no pins"),
        pytest.param(RANGES, True, "12.5", id="ranges by their lower bounds"),
    ],
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


@pytest.mark.parametrize(
    ("requires", "expected"),
    [
        pytest.param(
            [
                'tensorflow-cpu-aws==9.0.0; platform_machine == "aarch64"',
                'tensorflow-intel==9.0.0; platform_system == "Windows"',
            ],
            ("tensorflow-cpu-aws",),
            id="another package of this version",
        ),
        pytest.param(["tensorflow-estimator<10,>=9"], (), id="a part of it is no stand-in"),
        pytest.param(["numpy"], (), id="an ordinary wheel"),
    ],
)
def test_a_stub_is_told_by_what_it_asks_for(
    requires: Sequence[str], expected: tuple[str, ...]
) -> None:
    assert stands_for(metadata(requires, name="tensorflow"), "aarch64") == expected


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        pytest.param(
            "('cuda_compute_capabilities', ['sm_60', 'sm_80', 'compute_90']), "
            "('cuda_version', '12.5.1'), ('cudnn_version', '9'), ('is_cuda_build', True)",
            WheelBuildInfo(
                is_cuda=True, cuda="12.5", sm=("sm_60", "sm_80", "sm_90"), ptx="compute_90"
            ),
            id="2.18 to 2.21",
        ),
        pytest.param("('is_cuda_build', True)", WheelBuildInfo(is_cuda=True), id="2.22"),
        pytest.param("('is_cuda_build', False)", WheelBuildInfo(is_cuda=False), id="a CPU build"),
        pytest.param("('is_cuda_build', 'yes')", None, id="no answer"),
        pytest.param("open('x')", None, id="code is not run"),
    ],
)
def test_the_build_information_of_tensorflow_is_read(
    pairs: str, expected: WheelBuildInfo | None
) -> None:
    text = f"import collections\n\nbuild_info = collections.OrderedDict([{pairs}])\n"
    assert parse_build_info(text.encode()) == expected


def test_a_capability_that_is_not_understood_leaves_the_list_unread() -> None:
    assert parse_capabilities(["sm_60", "sm_100a"]) == (None, None)


def test_tags_stand_in_directories_and_in_versions() -> None:
    links = [
        "https://x.example/whl/cu118/",
        "https://x.example/whl/torch-2.9.0%2Bcu130-cp312-cp312-linux_x86_64.whl",
        "https://x.example/whl/rocm6.0/",
    ]
    assert tags_among(links) == ("cu118", "cu130")


@pytest.mark.parametrize(
    ("tag", "cuda"), [("cu92", "9.2"), ("cu117", "11.7"), ("cu130", "13.0"), ("cpu", None)]
)
def test_a_tag_names_cuda(tag: str, cuda: str | None) -> None:
    assert cuda_of_tag(tag) == cuda


@pytest.mark.parametrize(
    ("tag", "cuda"),
    [
        pytest.param("12.8.1-cudnn-devel-ubuntu24.04", "12.8", id="with cuDNN"),
        pytest.param("11.8.0-cudnn8-runtime-ubi8", "11.8", id="with the number of cuDNN"),
        pytest.param("13.0.0-base-rockylinux9", "13.0", id="another system"),
        pytest.param("latest", None, id="no version"),
        pytest.param("12.8.1-devel-ubuntu24.04-amd64", None, id="of one machine"),
    ],
)
def test_an_image_tag_names_cuda(tag: str, cuda: str | None) -> None:
    found = cuda_of_image(tag)
    assert (str(found) if found else None) == cuda
