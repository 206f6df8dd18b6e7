"""What packages need when they run, as the table has it."""

from __future__ import annotations

import json
from pathlib import Path

from images.bootstrap.dependencies import parse_relations
from provision.catalog.data_files import DATA
from provision.catalog.needs import debian_packages, is_known, kind_of, needs_of
from tests.kit.cases import cases

TABLE = json.loads(Path(DATA, "needs.json").read_text(encoding="utf-8"))


@cases(
    "packages requested expected",
    ("requested", "vllm", "vllm", "vllm:compiler"),
    ("brought, and needed there, too", "other vllm", "other", "vllm:compiler"),
    ("PyTorch brings Triton for torch.compile alone", "torch triton", "", ""),
    ("Triton itself was requested", "triton", "triton", "triton:compiler"),
    ("it compiles CUDA code", "flashinfer-python", "flashinfer-python", "flashinfer-python:nvcc"),
    ("of which vLLM uses a part", "vllm flashinfer-python", "vllm",
     "vllm:compiler flashinfer-python:compiler"),
    ("nvcc compiles with another compiler", "nvidia-cuda-nvcc", "", "nvidia-cuda-nvcc:compiler"),
    ("of which JAX uses the assembler", "jaxlib nvidia-cuda-nvcc", "jaxlib", ""),
    ("libraries", "torchcodec opencv-python", "torchcodec",
     "torchcodec:ffmpeg torchcodec:libpython opencv-python:libgl"),
    ("CUDA sources that they run without", "transformers basicsr", "transformers basicsr", ""),
    ("not in the table", "numpy", "numpy", ""),
)  # fmt: skip
def test_the_needs_of_packages(packages: str, requested: str, expected: str) -> None:
    found = needs_of(packages.split(), requested.split())
    assert " ".join(f"{need.package}:{need.kind}" for need in found) == expected


def test_another_package_is_named_only_in_place_of_a_requested_one() -> None:
    (mine,) = needs_of(["opencv-python"], ["opencv-python"])
    (theirs,) = needs_of(["opencv-python"], [])
    assert (mine.instead, theirs.instead) == ("opencv-python-headless", None)


def test_every_row_has_its_source_and_known_kinds() -> None:
    kinds = {row["kind"] for row in TABLE["kinds"]}
    rows = (*TABLE["kinds"], *TABLE["packages"], *TABLE["together"])
    assert {row["source"] for row in rows} <= {*TABLE["sources"]}
    for row in TABLE["packages"]:
        assert {*row["needs"], *row["brought"]} <= kinds, row
        assert is_known(row["package"])
        assert bool(row["needs"]) == bool(row["because"]), row


def test_kinds_name_packages_of_debian() -> None:
    assert kind_of("ffmpeg").words == "FFmpeg"
    assert debian_packages(["nvcc", "compiler", "git"]) == ("g++", "git", "make", "python3-dev")
    for row in TABLE["kinds"]:
        for name in row["debian"]:
            assert parse_relations(name)[0][0].name == name
