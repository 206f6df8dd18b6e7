"""The tables of knowledge: the shipped ones are sound, and each kind of fault is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.catalog.canonical import dump
from provision.catalog.catalog import Catalog
from provision.catalog.catalog_tables import ON_DEMAND
from provision.catalog.data_files import DATA
from provision.catalog.loading import load
from provision.catalog.rows.frameworks import TorchBuild
from provision.catalog.tables import FILES
from provision.errors import CatalogError
from tests.kit.broken_catalog import Break, Raw, put, swap
from tests.kit.cases import cases
from tools.checks import check


def the_build(catalog: Catalog, version: str, tag: str, arch: str = "x86_64") -> TorchBuild:
    (build,) = (row for row in catalog.torch_builds(version, arch=arch) if row.tag == tag)
    return build


def position(raw: Raw, table: str, **values: object) -> int:
    return next(
        place
        for place, row in enumerate(raw[table])
        if all(row[key] == value for key, value in values.items())
    )


def test_the_shipped_tables_break_no_invariant(catalog: Catalog) -> None:
    assert check(catalog) == []


def test_no_table_has_lost_rows(catalog: Catalog) -> None:
    assert len(catalog.families) >= 3
    assert len(catalog.toolkits) >= 64
    assert len(catalog.branches) >= 30
    assert len(catalog.compat_packages) >= 25
    assert len(catalog.gpus) >= 140
    assert len(catalog.torch_releases) >= 33
    assert len(catalog.torch) >= 185
    assert len(catalog.debian_suites) >= 3
    assert len(catalog.ubuntu_releases) >= 5
    assert len(catalog.tensorflow_releases) >= 64
    assert len(catalog.tensorflow_wheels) >= 113
    assert len(catalog.tensorflow_gpu) >= 32
    assert len(catalog.jax_releases) >= 46
    assert len(catalog.jax_plugins) >= 58
    assert len(catalog.cudnn) >= 117
    assert len(catalog.nccl) >= 53
    assert len(catalog.images) >= 1340
    assert sum(len(row.os) for row in catalog.start_rules) >= 371
    assert len(catalog.dropped) >= 5
    assert len(catalog.highest_majors) >= 4
    assert len(catalog.kernel_modules) >= 4
    assert len(catalog.conflicts) >= 49


@pytest.mark.parametrize("name", FILES)
def test_reading_and_dumping_gives_the_same_bytes(name: str) -> None:
    text = (Path(DATA) / name).read_text(encoding="utf-8")
    assert dump(json.loads(text)) == text


@pytest.mark.parametrize("name", FILES)
def test_every_source_is_used_and_no_line_holds_two_rows(name: str) -> None:
    text = (Path(DATA) / name).read_text(encoding="utf-8")
    raw = json.loads(text)
    rows = [row for table in raw.values() if isinstance(table, list) for row in table]
    used = json.dumps([[v for k, v in row.items() if k.endswith("source")] for row in rows])
    assert [key for key in raw["sources"] if f'"{key}"' not in used] == []
    assert sum(line.startswith("    {") for line in text.splitlines()) == len(rows)


def test_a_table_stays_small_enough_to_read_at_every_start() -> None:
    assert max((Path(DATA) / name).stat().st_size for name in FILES[:5]) < 150_000
    assert max((Path(DATA) / name).stat().st_size for name in FILES) < 250_000


def test_every_row_resolves_its_source_to_a_text(catalog: Catalog) -> None:
    for rows in (catalog.toolkits, catalog.branches, catalog.gpus, catalog.torch):
        assert all(len(row.source) > 10 for row in rows)
    for table in ON_DEMAND:
        assert all(len(row.source) > 10 for row in getattr(catalog, table))


def test_the_catalog_is_read_once() -> None:
    assert load() is load()


class TestFacts:
    def test_cuda_11_7_needs_only_the_floor_of_its_family(self, catalog: Catalog) -> None:
        family = catalog.family("11.7")
        assert family is not None
        assert family.min_driver == "450.80.02"

    def test_cuda_10_2_has_no_family(self, catalog: Catalog) -> None:
        toolkit = catalog.toolkit("10.2")
        assert catalog.family("10.2") is None
        assert toolkit is not None
        assert not toolkit.minor_version_compatibility

    def test_an_update_is_a_toolkit_of_its_own(self, catalog: Catalog) -> None:
        first, second = catalog.toolkits_of("11.7")
        assert (first.full, first.driver) == ("11.7.0", "515.43.04")
        assert (second.full, second.driver) == ("11.7.1", "515.48.07")
        assert catalog.toolkit("11.7", update=1) == second

    def test_there_is_no_cuda_12_7(self, catalog: Catalog) -> None:
        branch = catalog.branch_of("565.57.01")
        assert branch is not None
        assert branch.max_cuda == "12.7"
        assert catalog.toolkit("12.7") is None
        assert "12.7" not in catalog.cuda_versions()

    def test_torch_2_0_1_cu117_is_as_its_wheel_says(self, catalog: Catalog) -> None:
        build = the_build(catalog, "2.0.1", "cu117")
        assert "nvidia-nccl-cu11==2.14.3" in build.pins
        assert build.nccl == "2.14.3"
        assert build.cudnn == "8.5.0.96"
        assert max(build.sm) == (8, 6)
        assert build.ptx is None
        assert build.python_tags == ("cp38-cp38", "cp39-cp39", "cp310-cp310", "cp311-cp311")
        assert build.at == ("pytorch", "pypi")

    def test_two_figures_of_an_architecture_are_its_major(self, catalog: Catalog) -> None:
        build = the_build(catalog, "2.9.0", "cu130")
        assert build.sm[-2:] == ((10, 0), (12, 0))
        assert build.ptx == (12, 0)

    def test_pytorch_index_is_a_folder_a_tag(self, catalog: Catalog) -> None:
        assert catalog.pytorch_index("cu117") == "https://download.pytorch.org/whl/cu117"

    def test_tegra_capabilities_are_no_one_elses(self, catalog: Catalog) -> None:
        assert catalog.tegra_capabilities == {(5, 3), (6, 2), (7, 2), (8, 7), (11, 0)}

    def test_forward_compat_knows_official_and_accepted_branches(self, catalog: Catalog) -> None:
        row = catalog.forward_compat("13.0")
        assert row is not None
        assert row.official_base_branches == (535, 570)
        assert 565 in row.accepted_base_branches
        assert catalog.forward_compat("9.9") is None

    def test_devel_images_never_bring_a_second_cudnn(self, catalog: Catalog) -> None:
        for cuda in catalog.cuda_versions():
            assert not any("cudnn" in row.reference for row in catalog.devel_images(cuda))
        newest = catalog.devel_images("11.7")[0]
        assert newest.reference == "docker.io/nvidia/cuda:11.7.1-devel-ubuntu22.04"
        assert (newest.python, newest.glibc) == ("3.10", "2.35")

    def test_python_images_prefer_bookworm(self, catalog: Catalog) -> None:
        first = next(row for row in catalog.python_images if row.python == "3.11")
        assert first.reference == "docker.io/library/python:3.11-slim-bookworm"
        assert first.glibc == "2.36"


class TestKernelModules:
    @cases(
        "name modules",
        ("Volta needs the proprietary", "Tesla V100-SXM2-16GB", "unsupported"),
        ("so does Pascal", "NVIDIA GeForce GTX 1080 Ti", "unsupported"),
        ("Turing takes either", "Tesla T4", "optional"),
        ("Hopper takes either", "NVIDIA H100 80GB HBM3", "optional"),
        ("Grace Hopper needs the open ones", "NVIDIA GH200 480GB", "required"),
        ("so does Blackwell", "NVIDIA GeForce RTX 5090", "required"),
        ("a Jetson's driver is another one", "Xavier", None),
    )
    def test_a_gpu_takes_some(self, catalog: Catalog, name: str, modules: str | None) -> None:
        match = catalog.find_gpu(name)
        assert match.compute_capability is not None
        assert catalog.open_modules(match.compute_capability, match.rows[0].name) == modules

    def test_no_gpu_is_without_a_branch_whose_modules_it_takes(self, catalog: Catalog) -> None:
        """The newest branch that drives a GPU is what refusals name: it must fit its modules."""
        for gpu in catalog.gpus:
            needs = catalog.open_modules(gpu.compute_capability, gpu.name)
            driving = [b for b in catalog.branches if b.dropped_below <= gpu.compute_capability]
            assert needs != "unsupported" or driving[-1].open_modules != "only"
            assert needs != "required" or driving[-1].open_modules is not None


class TestDrivers:
    @cases(
        "driver branch known",
        ("a branch of the table is itself", "515.65.01", 515, True),
        ("a bare branch will do", "580", 580, True),
        ("an unknown one counts as the last before it", "517.1", 515, False),
        ("one from the future counts as the newest", "999.1", load().branches[-1].branch, False),
        ("below the oldest there is none", "390.157", None, False),
        ("an empty text is no driver", "", None, False),
        ("a word is no driver", "rocm", None, False),
        ("foreign digits are no driver", "\u0665\u0661\u0665.1", None, False),
    )
    def test_branch_of(
        self, catalog: Catalog, driver: str, branch: int | None, *, known: bool
    ) -> None:
        row = catalog.branch_of(driver)
        assert (row and row.branch) == branch
        assert catalog.is_known_branch(driver) is known

    @given(st.text())
    def test_no_text_is_too_strange(self, driver: str) -> None:
        load().branch_of(driver)
        load().is_known_branch(driver)
        load().toolkit(driver)
        load().family(driver)


CU117 = {"version": "2.0.1", "tag": "cu117"}


def rename(table: str, old: str, new: str) -> Break:
    def change(raw: Raw) -> None:
        raw[table][3][new] = raw[table][3].pop(old)

    return change


def drop(table: str) -> Break:
    def change(raw: Raw) -> None:
        del raw[table]

    return change


@cases(
    "name change message",
    ("an empty list where null means unknown", "torch.json", put("builds", CU117, sm=[]),
     r"\.sm: expected list of sm_NN"),
    ("binary code is not PTX", "torch.json", put("builds", CU117, ptx="sm_86"),
     r"\.ptx: expected compute_NN"),
    ("a place that nobody knows", "torch.json", put("builds", CU117, at=["conda"]),
     r"\.at: expected one of pytorch, pypi"),
    ("a text for a list", "torch.json", put("builds", CU117, python_tags="cp310"),
     r"\.python_tags: expected list of Python tags"),
    ("a source that the file does not have", "torch.json", put("builds", CU117, source="hearsay"),
     r"\.source: expected keys of the file's sources, found 'hearsay'"),
    ("an empty list of sources", "torch.json", put("builds", CU117, source=[]),
     r"\.source: expected at least one key"),
    ("a negative size", "torch.json", put("builds", CU117, size_min_bytes=-1),
     r"\.size_min_bytes: expected a whole number"),
    ("a missing key", "torch.json", rename("builds", "tag", "label"),
     r"torch\.json builds\[3\]: missing tag"),
    ("an unknown key", "torch.json", put("releases", {"version": "2.0.1"}, colour="red"),
     r"torch\.json releases\[\d+\]: unknown key colour"),
    ("a word for a truth", "torch.json", put("releases", {"version": "2.0.1"}, yanked="no"),
     r"\.yanked: expected true or false"),
    ("no index", "torch.json", drop("index"), r"torch\.json index: expected text"),
    ("no sources", "torch.json", drop("sources"), r"torch\.json sources: expected"),
    ("no table", "cuda.json", drop("families"), r"families: expected a list of rows"),
    ("a number for a version", "cuda.json", put("toolkits", {"full": "11.7.1"}, driver=515),
     r"cuda\.json toolkits\[\d+\]\.driver: expected text"),
    ("an architecture for a capability", "drivers.json",
     put("branches", {"branch": 515}, dropped_below="sm_50"),
     r"drivers\.json branches\[\d+\]\.dropped_below: expected a compute capability"),
    ("a peak rate that is not named", "gpus.json",
     put("gpus", {"name": "Tesla T4"}, tflops={"fp32": 8.1}),
     r"gpus\.json gpus\[\d+\]\.tflops: expected an object of bf16, fp16, fp32, fp8, tf32"),
    ("a truth for a number", "gpus.json",
     put("gpus", {"name": "Tesla T4"}, memory_bandwidth_gbs=True),
     r"gpus\.json gpus\[\d+\]\.memory_bandwidth_gbs: expected a number"),
    ("an image of an unknown suite", "bases.json",
     put("python_images", {"python": "3.11"}, suite="sid"),
     r"bases\.json python_images\[\d+\]: suite sid is not among debian_suites"),
)  # fmt: skip
def test_a_malformed_row_is_named(
    broken: Callable[[str, Break], Path], name: str, change: Break, message: str
) -> None:
    with pytest.raises(CatalogError, match=message) as caught:
        load(broken(name, change))
    assert "reinstall" in caught.value.fix


def test_a_pattern_that_is_none_is_named(broken: Callable[[str, Break], Path]) -> None:
    """Its table is read when somebody asks for a GPU that the catalog does not have."""
    catalog = load(broken("gpus.json", put("other_vendors", {"vendor": "AMD"}, pattern="rx (")))
    with pytest.raises(CatalogError, match=r"other_vendors\[0\]\.pattern: expected a regular expr"):
        catalog.other_vendor("RX 7900")


def test_a_row_that_is_no_object_is_named(broken: Callable[[str, Break], Path]) -> None:
    with pytest.raises(CatalogError, match=r"gpus\[0\]: expected an object"):
        load(broken("gpus.json", lambda raw: raw["gpus"].insert(0, "Tesla T4")))


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"], ids=["empty", "list", "cut", "binary"])
def test_a_broken_file_is_named(broken: Callable[[str, Break], Path], text: str) -> None:
    directory = broken("gpus.json", lambda _: None)
    (directory / "gpus.json").write_text(text, encoding="utf-8")
    with pytest.raises(CatalogError, match=r"gpus\.json: "):
        load(directory)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"cuda\.json: cannot be read"):
        load(tmp_path / "nowhere")


def _branch(raw: dict[str, Any], number: int) -> dict[str, Any]:
    return next(row for row in raw["branches"] if row["branch"] == number)


def also_on_pypi(raw: Raw) -> None:
    raw["builds"][position(raw, "builds", version="2.0.1", tag="cu118")].update(
        at=["pytorch", "pypi"], size_min_bytes=1, size_max_bytes=2
    )


def excuse_nothing(raw: Raw) -> None:
    raw["exceptions"] = [
        {"rule": "tag-agrees", "row": "2.0.1 cu117 x86_64", "reason": "none", "source": "pypi"}
    ]


@cases(
    "name change message",
    ("a newer CUDA needs at least as much driver", "cuda.json",
     put("families", {"major": 12}, min_driver="440.33"),
     ("cuda.json families[1] (12): 440.33 is older than the 450.80.2 before it "
      "[newer-needs-no-less]")),
    ("toolkits stand oldest first", "cuda.json", swap("toolkits"),
     "cuda.json toolkits[2] (11.0.2): stands after 11.0.3 [newer-needs-no-less]"),
    ("a toolkit's names agree", "cuda.json", put("toolkits", {"full": "11.7.1"}, full="11.6.9"),
     "(11.6.9): is no release of CUDA 11.7 [toolkit-row]"),
    ("compatibility belongs to a family", "cuda.json",
     put("toolkits", {"full": "11.7.1"}, minor_version_compatibility=False),
     "(11.7.1): minor-version compatibility and the table of families disagree"),
    ("a toolkit's driver supports it", "drivers.json",
     put("branches", {"branch": 515}, max_cuda="11.6"),
     "(11.7.1): its driver 515.48.07 supports no more than CUDA 11.6"),
    ("a version can be read", "cuda.json", put("toolkits", {"full": "11.7.1"}, driver="five"),
     "(11.7.1): 'five' is no version [version-read]"),
    ("a newer branch supports no older CUDA", "drivers.json",
     put("branches", {"branch": 515}, max_cuda="11.5"),
     "(515): 11.5 is older than the 11.6 before it [branches-rise]"),
    ("a GPU once dropped stays dropped", "drivers.json",
     put("branches", {"branch": 515}, dropped_below="3.5"),
     "(515): drives older GPUs than branch 510 before it [branches-rise]"),
    ("a first version is of its branch", "drivers.json",
     put("branches", {"branch": 515}, first_version="510.1"),
     "(515): first version 510.1 is of another branch [branch-row]"),
    ("a branch that adds nothing needs no source for it", "drivers.json",
     put("branches", {"branch": 515}, adds_source="open-modules"),
     "(515): names a source for chips that it does not add [branch-row]"),
    ("what is added has its source", "drivers.json",
     put("branches", {"branch": 590}, adds=["GB202"]),
     "(590): adds chips and names no source for it [branch-row]"),
    ("a chip is added once", "drivers.json", put("branches", {"branch": 590}, adds=["GB202"]),
     "(GB202): 2 times [no-duplicates]"),
    ("a chip that is added is that of a GPU", "drivers.json",
     put("branches", {"branch": 590}, adds=["TU999"]),
     "(590): adds TU999, which no GPU has [gpu-driver]"),
    ("a Python has its day", "bases.json", put("pythons", {"python": "3.12"}, released="soon"),
     "(3.12): 'soon' is no day after that of the one before it [pythons-rise]"),
    ("the Python of an image has its day", "bases.json",
     put("python_images", {"python": "3.12", "suite": "trixie"}, python="3.99"),
     "its Python has no day [pythons-known]"),
    ("the chip of a GPU is added by a branch", "gpus.json",
     put("gpus", {"name": "NVIDIA A30"}, chip="GA999"),
     "(NVIDIA A30): no driver branch adds its chip GA999 [gpu-driver]"),
    ("all GPUs of a capability name their chips or none does", "gpus.json",
     put("gpus", {"name": "NVIDIA TITAN V"}, chip="GA100"),
     ("(Tesla V100-PCIE-16GB): has no chip, and NVIDIA TITAN V of the same capability has "
      "one [gpu-driver]")),
    ("a GPU is not listed before its chip is driven", "gpus.json",
     put("gpus", {"name": "NVIDIA A30"}, driver_from="440.33"),
     "(NVIDIA A30): is listed from driver 440.33, older than branch 450 [gpu-driver]"),
    ("a driver that lists a GPU has its source", "gpus.json",
     put("gpus", {"name": "NVIDIA Thor"}, driver_from="580.65.06"),
     "(NVIDIA Thor): driver_from and driver_source go together [gpu-driver]"),
    ("a chip that is added is driven", "gpus.json",
     put("gpus", {"name": "NVIDIA GeForce RTX 2060"}, compute_capability="2.1"),
     ("(NVIDIA GeForce RTX 2060): branch 410 adds its chip and does not drive its capability "
      "[gpu-driver]")),
    ("an end of life is a date", "drivers.json",
     put("branches", {"branch": 515}, end_of_life="soon"),
     "(515): end of life soon is no date [branch-row]"),
    ("a base branch is known", "drivers.json",
     put("forward_compat", {"provides_cuda": "11.7"}, accepted_base_branches=[451]),
     "(cuda-compat-11-7): base branch 451 is not in the table [compat-branch-known]"),
    ("a compat package goes upon older drivers", "drivers.json",
     put("forward_compat", {"provides_cuda": "11.7"}, accepted_base_branches=[580]),
     "(cuda-compat-11-7): base branch 580 is newer than the package [compat-row]"),
    ("a compat package is built from its CUDA's driver", "drivers.json",
     put("forward_compat", {"provides_cuda": "11.7"}, built_from_branch=510),
     "(cuda-compat-11-7): branch 510 is not that of its CUDA [compat-row]"),
    ("a compat package brings a known CUDA", "drivers.json",
     put("forward_compat", {"provides_cuda": "11.7"}, provides_cuda="12.7"),
     "(cuda-compat-11-7): CUDA 12.7 has no toolkit [compat-row]"),
    ("what was excused is said without its excuse", "drivers.json", drop("exceptions"),
     "(cuda-compat-10-2): base branch 396 is not in the table [compat-branch-known]"),
    ("an exception that excuses nothing is a problem", "torch.json", excuse_nothing,
     "exceptions (2.0.1 cu117 x86_64): excuses nothing under tag-agrees"),
    ("tag and CUDA agree", "torch.json", put("builds", CU117, tag="cu118"),
     "(2.0.1 cu118 x86_64): tag cu118 of a build for CUDA 11.7 [tag-agrees]"),
    ("a build's CUDA has a toolkit", "torch.json", put("builds", CU117, cuda="12.7", tag="cu127"),
     "(2.0.1 cu127 x86_64): CUDA 12.7 has no toolkit [targets-known]"),
    ("a build holds what its toolkit compiles", "torch.json",
     put("builds", CU117, sm=["sm_86", "sm_90"]),
     "(2.0.1 cu117 x86_64): CUDA 11.7 cannot compile for sm_90 [targets-known]"),
    ("its PTX too", "torch.json", put("builds", CU117, ptx="compute_120"),
     "(2.0.1 cu117 x86_64): CUDA 11.7 cannot compile for sm_120 [targets-known]"),
    ("architectures stand in order", "torch.json", put("builds", CU117, sm=["sm_86", "sm_80"]),
     "(2.0.1 cu117 x86_64): architectures are not in order, or doubled [targets-known]"),
    ("a CPU build has no cuDNN", "torch.json",
     put("builds", {"version": "2.0.1", "tag": "cpu"}, cudnn="8.5.0.96"),
     "(2.0.1 cpu x86_64): a CPU build with GPU code or libraries [targets-known]"),
    ("a build's release exists", "torch.json", put("builds", CU117, version="2.0.9"),
     "(2.0.9 cu117 x86_64): its release is not in the table [release-known]"),
    ("pins are requirements", "torch.json", put("builds", CU117, pins=["nvidia-nccl-cu11=2.14.3"]),
     "pin 'nvidia-nccl-cu11=2.14.3' is no requirement [pins-agree]"),
    ("pins and row agree", "torch.json", put("builds", CU117, nccl="2.18.1"),
     "pin nvidia-nccl-cu11==2.14.3 against 2.18.1 in the row [pins-agree]"),
    ("a Python tag is well formed", "torch.json", put("builds", CU117, python_tags=["py3-none"]),
     "(2.0.1 cu117 x86_64): 'py3-none' is no Python tag [python-tags]"),
    ("a Python tag is within what the release asks for", "torch.json",
     put("builds", CU117, python_tags=["cp37-cp37m"]),
     "(2.0.1 cu117 x86_64): cp37-cp37m is outside >=3.8.0 [python-tags]"),
    ("a place is named once", "torch.json", put("builds", CU117, at=["pypi", "pypi"]),
     "(2.0.1 cu117 x86_64): a place is named twice [places-known]"),
    ("sizes are in order", "torch.json", put("builds", CU117, size_min_bytes=9, size_max_bytes=8),
     "(2.0.1 cu117 x86_64): its smallest wheel is larger than its largest [places-known]"),
    ("PyPI has one build a release and machine", "torch.json", also_on_pypi,
     "(2.0.1 cu118 x86_64): a second build on PyPI [one-pypi-build]"),
    ("a specifier can be read", "torch.json",
     put("releases", {"version": "2.0.1"}, requires_python="3.8 or so"),
     "(2.0.1): '3.8 or so' is no specifier [release-row]"),
    ("a release has builds", "torch.json", put("releases", {"version": "2.0.1"}, version="2.0.9"),
     "(2.0.9): has no build [release-row]"),
    ("a NumPy rule has its source", "torch.json", put("releases", {"version": "2.0.1"}, numpy=None),
     "(2.0.1): numpy and its source go together [release-row]"),
    ("a newest version is of its branch", "drivers.json",
     put("branches", {"branch": 535}, latest_seen="550.1"),
     "(535): newest version 550.1 is of another branch [branch-row]"),
    ("a newest version is not older than the first", "drivers.json",
     put("branches", {"branch": 535}, latest_seen="535.1"),
     "(535): newest version 535.1 is older than the first [branch-row]"),
    ("the day of a newest version is in the calendar", "drivers.json",
     put("branches", {"branch": 620}, latest_date="2026-02-30"),
     "(620): date of its newest version 2026-02-30 is no day [branch-row]"),
    ("a source of a newest version names one", "drivers.json",
     lambda raw: [_branch(raw, 620).pop(k) for k in ("latest_date", "latest_seen")],
     "(620): the date or the source of a newest version that is not named [branch-row]"),
    ("the day of a newest version has its source", "drivers.json",
     lambda raw: _branch(raw, 620).pop("latest_source"),
     "(620): the date of its newest version has no source [branch-row]"),
    ("a branch's kernel modules have their source", "drivers.json",
     lambda raw: _branch(raw, 620).pop("modules_source"),
     "(620): its kernel modules and their source go together [branch-row]"),
    ("open modules alone drive nothing before Turing", "drivers.json",
     put("branches", {"branch": 620}, dropped_below="7.0"),
     "(620): has only the open kernel modules, and drives GPUs that they do not serve"),
    ("proprietary modules that went do not come back", "drivers.json",
     put("branches", {"branch": 610}, open_modules="only"),
     "(615): brings back kernel modules that a branch before it did away with"),
    ("a GPU that needs the open modules is a known one", "drivers.json",
     put("kernel_modules", {"from": "9.0"}, gpus=["NVIDIA GH9000"]),
     "(9.0 NVIDIA GH9000): NVIDIA GH9000 is not in gpus.json [kernel-modules]"),
    ("a GPU that needs the open modules is of the row's capability", "drivers.json",
     put("kernel_modules", {"from": "9.0"}, gpus=["Tesla T4"]),
     "(9.0 Tesla T4): Tesla T4 is of an older capability [kernel-modules]"),
    ("kernel modules stand by capability", "drivers.json",
     lambda raw: raw["kernel_modules"].reverse(),
     "(9.0 NVIDIA GH200 144G HBM3e NVIDIA GH200 480GB): stands after a newer capability"),
    ("kernel modules begin with a row for all GPUs", "drivers.json",
     put("kernel_modules", {"from": "3.0"}, gpus=["Tesla T4"]),
     "(first row): is missing, or not for all GPUs [kernel-modules]"),
    ("the day of a toolkit is in the calendar", "cuda.json",
     put("toolkits", {"full": "13.5.0"}, released="Nov 4, 2026"),
     "(13.5.0): 'Nov 4, 2026' is no day [toolkit-row]"),
    ("a Windows floor can be read", "cuda.json",
     put("families", {"major": 12}, min_driver_windows="new"),
     "(12): 'new' is no version [version-read]"),
    ("a file says its day", "gpus.json", lambda raw: raw.update(date="2026-11"),
     "gpus.json (gpus.json): '2026-11' is no day [file-date]"),
)  # fmt: skip
def test_a_broken_invariant_is_named(
    broken: Callable[[str, Break], Path], name: str, change: Break, message: str
) -> None:
    problems = check(load(broken(name, change)))
    assert any(message in problem for problem in problems), problems
