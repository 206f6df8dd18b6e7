"""GPUs by name, as NVML prints it and as people say it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.catalog.loading import load
from provision.catalog.rows.gpus import GpuModel
from provision.model.plan import ComputeCapability
from tests.kit.cases import cases

NAMES = [row.name for row in load().gpus]


def test_a_full_name_is_its_own_row() -> None:
    for name in NAMES:
        match = load().find_gpu(name)
        assert (match.status, [row.name for row in match.rows]) == ("one", [name])
        assert match.compute_capability == match.rows[0].compute_capability, name


def test_case_spaces_and_maker_make_no_difference() -> None:
    for name in NAMES:
        bare = name.removeprefix("NVIDIA ").removeprefix("Tesla ")
        for spelling in (bare, name.upper(), name.lower(), f"  {name.replace(' ', '   ')} "):
            assert load().find_gpu(spelling).rows == load().find_gpu(name).rows, spelling


@pytest.mark.parametrize("row", [row for row in load().gpus if row.aliases], ids=lambda r: r.name)
def test_an_alias_is_the_name_of_one_row(row: GpuModel) -> None:
    for alias in row.aliases:
        assert load().find_gpu(alias).rows == (row,)


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("RTX 3090", (8, 6)), ("rtx3090", (8, 6)), ("4090", (8, 9)), ("GTX 1080 Ti", (6, 1)),
        ("1080ti", (6, 1)), ("A100", (8, 0)), ("A100 40GB", (8, 0)), ("a100-sxm4-80gb", (8, 0)),
        ("H100", (9, 0)), ("V100", (7, 0)), ("K40", (3, 5)), ("T4", (7, 5)), ("A6000", (8, 6)),
        ("Quadro RTX 4000", (7, 5)), ("RTX 4000 Ada", (8, 9)), ("Titan X Pascal", (6, 1)),
        ("GTX Titan X", (5, 2)), ("RTX PRO 6000", (12, 0)),
        ("Jetson Orin", (8, 7)), ("VR200", (10, 7)), ("NVIDIA H20-3e", (9, 0)),
        ("NVIDIA GeForce RTX 3050 6GB Laptop GPU", (8, 6)),
        ("NVIDIA RTX 3500 Ada Generation Laptop GPU", (8, 9)), ("NVIDIA T1200 Laptop GPU", (7, 5)),
        ("CMP 170HX", (8, 0)), ("NVIDIA PG506-232", (8, 0)),
    ],
)  # fmt: skip
def test_a_short_name_is_enough_when_all_it_means_agree(
    name: str, capability: ComputeCapability
) -> None:
    match = load().find_gpu(name)
    assert (match.status, match.compute_capability) == ("one", capability)


@cases(
    "name row",
    ("a slice is of its card", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB"),
    ("with media engines", "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "NVIDIA H100 80GB HBM3"),
    ("a virtual GPU is of its card", "GRID T4-16Q", "Tesla T4"),
    ("an older one too", "GRID P40-24Q", "Tesla P40"),
    ("one for a desktop too", "GRID M60-0B4", "Tesla M60"),
    ("a newer one says NVIDIA", "NVIDIA A40-48Q", "NVIDIA A40"),
    ("a letter may be the model's", "NVIDIA L40S-48Q", "NVIDIA L40S"),
    ("words may be written as one", "NVIDIA RTXA6000-48Q", "NVIDIA RTX A6000"),
    ("or with a dash", "NVIDIA RTX6000-Ada-48C", "NVIDIA RTX 6000 Ada Generation"),
    ("memory is not the model", "RTX 3080 12GB", "NVIDIA GeForce RTX 3080"),
    ("nor written apart", "RTX 4060 Ti 16 GB", "NVIDIA GeForce RTX 4060 Ti"),
    ("nor of an old card", "Tesla M40 24GB", "Tesla M40"),
    ("a rack is not the model", "GB200 NVL72", "NVIDIA GB200"),
    ("a laptop's RTX 30", "NVIDIA GeForce RTX 3060 Laptop GPU", "NVIDIA GeForce RTX 3060"),
    ("a thin laptop's RTX 20", "GeForce RTX 2080 Super with Max-Q Design",
     "NVIDIA GeForce RTX 2080 SUPER"),
    ("a Jetson, as its nvidia-smi prints it", "Orin (nvgpu)", "Orin"),
    ("as people say it", "RTX 4060 Laptop", "NVIDIA GeForce RTX 4060"),
    ("a laptop's with a row of its own", "NVIDIA GeForce RTX 4090 Laptop GPU",
     "NVIDIA GeForce RTX 4090 Laptop GPU"),
    ("a machine by its only GPU", "DGX Spark", "NVIDIA GB10"),
    ("a Jetson by its module", "Jetson AGX Orin", "Orin"),
    ("a small Jetson by its module", "Jetson Orin Nano", "Orin"),
    ("an old Jetson by its module", "Jetson Nano", "NVIDIA Tegra X1"),
    ("an older name of the same card", "Quadro T1000", "NVIDIA T1000"),
)  # fmt: skip
def test_what_a_name_says_besides_the_model_is_left_out(name: str, row: str) -> None:
    assert [found.name for found in load().find_gpu(name).rows] == [row]


@cases(
    "name capability",
    ("a board number", "NVIDIA A100-PG509-200", (8, 0)),
    ("letters of a virtual GPU's board", "GRID V100D-8Q", (7, 0)),
    ("another letter", "GRID A100X-40C", (8, 0)),
    ("a virtual GPU on a slice", "NVIDIA A100-3-20C", (8, 0)),
    ("two letters", "NVIDIA H100XM-80C", (9, 0)),
    ("a memory size that no row has", "A100 96GB", (8, 0)),
)
def test_several_rows_are_found_by_what_is_left(name: str, capability: ComputeCapability) -> None:
    match = load().find_gpu(name)
    assert (match.status, match.compute_capability) == ("one", capability)


@cases(
    "name",
    ("a workstation's suffix decides nothing", "RTX 5000 Max-Q"),
    ("a laptop's GTX may be another chip", "GTX 970M"),
    ("whatever its suffix", "GTX 960 Laptop GPU"),
    ("a laptop's without a desktop card", "GeForce RTX 2050 Laptop GPU"),
    ("another one", "RTX 3050 Ti Laptop GPU"),
    ("a board number alone", "NVIDIA PG506-230"),
    ("a slice of nothing", "MIG 1g.5gb"),
    ("a virtual nothing", "GRID -16Q"),
    ("memory alone", "12GB"),
    ("a model that is not in the table", "NVIDIA L2"),
    ("another one that is not", "B100"),
)
def test_what_is_left_is_never_guessed(name: str) -> None:
    assert load().find_gpu(name).compute_capability is None


@pytest.mark.parametrize(
    "name",
    [
        *("RTX 4000", "RTX 5000", "RTX 6000", "Titan X", "6000", "Titan"),
        *("GRID RTX6000-8Q", "RTX 4000 20GB", "Titan X 12GB"),
    ],
)
def test_a_name_of_two_generations_is_ambiguous(name: str) -> None:
    match = load().find_gpu(name)
    assert match.status == "ambiguous"
    assert match.compute_capability is None
    assert len({row.compute_capability for row in match.rows}) > 1


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("RTX 3080", "NVIDIA GeForce RTX 3080"), ("A10", "NVIDIA A10"), ("A2", "NVIDIA A2"),
        ("L40", "NVIDIA L40"), ("H200", "NVIDIA H200"), ("RTX A2000", "NVIDIA RTX A2000"),
        ("P40", "Tesla P40"),
    ],
)  # fmt: skip
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
        ("H1000", "NVIDIA H100 NVL"),
        ("T1100", "NVIDIA T1000"),
    ],
)
def test_a_near_miss_suggests_what_was_meant(wrong: str, meant: str) -> None:
    assert meant in load().find_gpu(wrong).suggestions


@pytest.mark.parametrize("wrong", ["H1000", "T1100", "B100"])
def test_only_the_same_family_is_suggested(wrong: str) -> None:
    letters = wrong.rstrip("0123456789")
    for name in load().find_gpu(wrong).suggestions:
        assert name.removeprefix("NVIDIA ").startswith(letters)


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
