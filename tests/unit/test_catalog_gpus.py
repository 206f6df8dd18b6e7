"""GPUs by name, as NVML prints it and as people say it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.catalog import load
from provision.model import ComputeCapability

NAMES = [row.name for row in load().gpus]


@pytest.mark.parametrize("name", NAMES)
def test_a_full_name_is_its_own_row(name: str) -> None:
    match = load().find_gpu(name)
    assert match.status == "one"
    assert [row.name for row in match.rows] == [name]
    assert match.compute_capability == match.rows[0].compute_capability


@pytest.mark.parametrize("name", NAMES)
def test_case_spaces_and_maker_make_no_difference(name: str) -> None:
    bare = name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    for spelling in (bare, name.upper(), name.lower(), f"  {name.replace(' ', '   ')} "):
        assert load().find_gpu(spelling).rows == load().find_gpu(name).rows


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("RTX 3090", (8, 6)),
        ("rtx3090", (8, 6)),
        ("RTX-3090", (8, 6)),
        ("4090", (8, 9)),
        ("RTX 5090", (12, 0)),
        ("GTX 1080 Ti", (6, 1)),
        ("1080ti", (6, 1)),
        ("GTX 1060", (6, 1)),
        ("A100", (8, 0)),
        ("A100 40GB", (8, 0)),
        ("a100-sxm4-80gb", (8, 0)),
        ("H100", (9, 0)),
        ("H200", (9, 0)),
        ("V100", (7, 0)),
        ("P100", (6, 0)),
        ("K40", (3, 5)),
        ("T4", (7, 5)),
        ("A6000", (8, 6)),
        ("Quadro RTX 4000", (7, 5)),
        ("RTX 4000 Ada", (8, 9)),
        ("Titan X Pascal", (6, 1)),
        ("GTX Titan X", (5, 2)),
        ("RTX PRO 6000", (12, 0)),
        ("GH200", (9, 0)),
        ("Jetson Orin", (8, 7)),
    ],
)
def test_a_short_name_is_enough_when_all_it_means_agree(
    name: str, capability: ComputeCapability
) -> None:
    match = load().find_gpu(name)
    assert (match.status, match.compute_capability) == ("one", capability)


@pytest.mark.parametrize("name", ["RTX 4000", "RTX 6000", "Titan X", "6000", "Titan"])
def test_a_name_of_two_generations_is_ambiguous(name: str) -> None:
    match = load().find_gpu(name)
    assert match.status == "ambiguous"
    assert match.compute_capability is None
    assert len({row.compute_capability for row in match.rows}) > 1


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("RTX 3080", "NVIDIA GeForce RTX 3080"),
        ("A10", "NVIDIA A10"),
        ("A2", "NVIDIA A2"),
        ("L40", "NVIDIA L40"),
        ("H200", "NVIDIA H200"),
        ("RTX A2000", "NVIDIA RTX A2000"),
        ("P40", "Tesla P40"),
    ],
)
def test_an_exact_name_wins_over_longer_ones(name: str, row: str) -> None:
    assert [found.name for found in load().find_gpu(name).rows] == [row]


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "NVIDIA", "GeForce", "RTX", "Ti", "80GB", "SXM2", "HBM3", "Max-Q", "Laptop"),
        *("Ada", "Blackwell", "Server Edition", "RTX 30", "GTX 3090", "RTX 9999", "banana"),
    ],
)
def test_what_names_no_model_is_unknown(name: str) -> None:
    match = load().find_gpu(name)
    assert (match.status, match.compute_capability, match.rows) == ("unknown", None, ())


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("GTX 3090", "NVIDIA GeForce RTX 3090"),
        ("RTX 3095", "NVIDIA GeForce RTX 3090"),
        ("Tesla V10O-SXM2-16GB", "Tesla V100-SXM2-16GB"),
    ],
)
def test_a_near_miss_suggests_what_was_meant(wrong: str, meant: str) -> None:
    assert meant in load().find_gpu(wrong).suggestions


@given(st.text())
def test_no_text_is_too_strange(name: str) -> None:
    match = load().find_gpu(name)
    assert (match.compute_capability is not None) == (match.status == "one")
    assert bool(match.rows) == (match.status != "unknown")


@given(st.lists(st.sampled_from(" ".join(NAMES).split()), max_size=5).map(" ".join))
def test_no_medley_of_known_words_finds_rows_that_disagree(name: str) -> None:
    match = load().find_gpu(name)
    capabilities = {row.compute_capability for row in match.rows}
    assert (len(capabilities) == 1) == (match.status == "one")
