"""The tables that are read when they are asked for: what they say, and how each fault is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from provision.catalog.catalog import Catalog
from provision.catalog.catalog_tables import ON_DEMAND
from provision.catalog.data_files import DATA, DataFiles
from provision.catalog.loading import load
from provision.errors import CatalogError
from tests.kit.broken_catalog import Break, put, swap
from tests.kit.cases import cases
from tools.checks import check


class TestLaziness:
    def test_a_catalog_reads_only_what_is_asked_for(self) -> None:
        catalog = Catalog(DataFiles(DATA))
        assert not vars(catalog).keys() & set(ON_DEMAND)
        catalog.start_rule("12.8.1", "ubuntu24.04")
        assert vars(catalog).keys() & set(ON_DEMAND) == {"start_rules"}

    def test_other_tables_replace_the_shipped_ones_and_the_look_ups_made_of_them(
        self, catalog: Catalog
    ) -> None:
        newest = catalog.torch_releases[-1]
        assert catalog.torch_release(newest.version)
        older = catalog.with_tables(torch_releases=catalog.torch_releases[:-1])
        cards = older.with_tables(gpus=catalog.gpus[:1])
        assert cards.torch_release(newest.version) is None
        assert cards.torch == catalog.torch

    @pytest.mark.parametrize("table", ON_DEMAND)
    def test_a_table_is_read_once(self, catalog: Catalog, table: str) -> None:
        assert getattr(catalog, table) is getattr(catalog, table)


class TestTensorflow:
    def test_a_release_says_what_it_was_built_with(self, catalog: Catalog) -> None:
        row = next(r for r in catalog.tensorflow_releases if r.version == "2.12.0")
        assert (row.cuda, row.cudnn, row.libraries) == ("11.8", "8.6", "system")
        assert row.sm == ((3, 5), (5, 0), (6, 0), (7, 0), (7, 5), (8, 0))
        assert row.ptx == (8, 0)


class TestJax:
    def test_a_release_has_a_plugin_a_cuda_major(self, catalog: Catalog) -> None:
        rows = [row for row in catalog.jax_plugins if row.version == "0.7.2"]
        assert [row.cuda_major for row in rows] == [12, 13]
        assert [row.extra for row in rows] == ["cuda12", "cuda13"]
        assert [row.min_driver for row in rows] == ["525", "580"]
        assert [row.sm_min for row in rows] == [(5, 2), (7, 5)]
        assert rows[0].cudnn == "<10.0,>=9.8"


class TestImages:
    @cases(
        "tag expected",
        ("a new one with cuDNN", "12.8.1-cudnn-devel-ubuntu24.04",
         ("12.8", "12.8.1", "devel", True, "9.8.0.87", "ubuntu24.04", "3.12", "2.39")),
        ("an old one, whose tag names cuDNN's major", "11.7.1-cudnn8-runtime-ubuntu20.04",
         ("11.7", "11.7.1", "runtime", True, "8.5.0.96", "ubuntu20.04", "3.8", "2.31")),
        ("one of another system", "12.8.1-base-rockylinux9",
         ("12.8", "12.8.1", "base", False, None, "rockylinux9", None, None)),
        ("one of the oldest Ubuntu", "11.1.1-devel-ubuntu16.04",
         ("11.1", "11.1.1", "devel", False, None, "ubuntu16.04", "3.5", "2.23")),
    )  # fmt: skip
    def test_a_tag_says_everything(
        self, catalog: Catalog, tag: str, expected: tuple[object, ...]
    ) -> None:
        row = catalog.cuda_image(tag)
        assert row is not None
        assert (
            row.cuda, row.full, row.flavour, row.cudnn, row.cudnn_version, row.os, row.python,
            row.glibc,
        ) == expected  # fmt: skip
        assert row.reference == f"docker.io/nvidia/cuda:{tag}"

    def test_a_tag_that_nobody_has_is_none(self, catalog: Catalog) -> None:
        assert catalog.cuda_image("12.7.0-base-ubuntu24.04") is None

    def test_images_come_newest_first(self, catalog: Catalog) -> None:
        rows = catalog.cuda_images("12.6", "runtime", cudnn=True)
        assert [row.full for row in rows[:4]] == ["12.6.3"] * 4
        assert [row.os for row in rows[:3]] == ["ubuntu24.04", "ubuntu22.04", "ubuntu20.04"]
        assert rows[-1].full == "12.6.0"
        assert {(row.cudnn, row.flavour) for row in rows} == {(True, "runtime")}

    @pytest.mark.parametrize(
        ("cudnn", "expected"),
        [(True, {True}), (False, {False}), (None, {True, False})],
        ids=["with cuDNN", "without", "either"],
    )
    def test_cudnn_is_asked_for_or_not(
        self, catalog: Catalog, *, cudnn: bool | None, expected: set[bool]
    ) -> None:
        rows = catalog.cuda_images("12.4", "devel", cudnn=cudnn)
        assert {row.cudnn for row in rows} == expected

    def test_images_with_tensorrt_are_not_offered(self, catalog: Catalog) -> None:
        assert sum(row.tensorrt for row in catalog.images) == 2
        offered = catalog.cuda_images("13.0", "devel", cudnn=None)
        assert not any(row.tensorrt for row in (*offered, *catalog.devel))

    def test_a_devel_image_that_nvidia_lists_comes_before_a_newer_seen_one(
        self, catalog: Catalog
    ) -> None:
        rows = [row for row in catalog.devel_images("13.0") if row.os == "ubuntu24.04"]
        assert [row.full for row in rows] == ["13.0.2", "13.0.1", "13.0.0", "13.0.3"]
        assert (rows[0].status, rows[-1].status) == ("supported", "inferred")
        assert rows[-1].confidence == "likely"

    def test_there_is_none_for_a_cuda_that_never_was(self, catalog: Catalog) -> None:
        assert catalog.devel_images("12.7") == ()
        assert catalog.cuda_images("12.7", "base", cudnn=None) == ()


class TestStartRules:
    def test_a_rule_is_found_by_toolkit_and_system(self, catalog: Catalog) -> None:
        rule = catalog.start_rule("12.8.1", "ubuntu24.04")
        assert rule is not None
        assert (rule.min_cuda, rule.eol) == ("12.8", False)
        assert "tesla" in rule.brands[535]
        assert "geforce" not in rule.brands[535]

    def test_brands_that_were_not_read_are_none_with_a_note(self, catalog: Catalog) -> None:
        rule = catalog.start_rule("13.3.0", "ubuntu24.04")
        assert rule is not None
        assert rule.brands == {595: ()}
        assert (rule.confidence, rule.eol) == ("likely", None)
        assert rule.note

    def test_what_was_not_read_is_none(self, catalog: Catalog) -> None:
        assert catalog.start_rule("13.2.1", "ubuntu24.04") is None
        assert catalog.start_rule("12.8", "ubuntu24.04") is None

    def test_a_rule_is_spelled_as_the_tags_are(self, catalog: Catalog) -> None:
        listed = {(row.full, row.os) for row in catalog.images if row.listed}
        without = {pair for pair in listed if catalog.start_rule(*pair) is None}
        assert len(listed) > 200
        assert {os for _, os in without} <= {"ubuntu16.04", "ubuntu18.04"}


class TestOther:
    def test_older_code_is_shown_to_run_on_a_spark(self, catalog: Catalog) -> None:
        known, unproven = catalog.binary_note("12.1"), catalog.binary_note("10.7")
        assert known is not None
        assert unproven is not None
        assert (known.proven, unproven.proven) == (True, False)
        assert catalog.binary_note("8.6") is None
        assert catalog.binary_note("") is None

    def test_gpus_of_a_capability(self, catalog: Catalog) -> None:
        assert [row.name for row in catalog.gpus_of((12, 1))] == ["NVIDIA GB10"]
        assert catalog.gpus_of((1, 0)) == ()

    def test_figures_without_a_verdict_say_why(self, catalog: Catalog) -> None:
        unsure = [row for row in catalog.gpus if row.figures_confidence == "doubtful"]
        assert [row.name for row in unsure if not row.note] == []


@cases(
    "name table change message",
    ("libraries from nowhere", "tensorflow.json", "tensorflow_releases",
     put("tensorflow_releases", {"version": "2.12.0"}, libraries="pip"),
     r"tensorflow_releases\[\d+\]\.libraries: expected one of system, extra"),
    ("a source that the file does not have", "jax.json", "jax_plugins",
     put("jax_plugins", {"version": "0.7.2"}, driver_source="hearsay"),
     r"\.driver_source: expected keys of the file's sources"),
    ("an endless capability", "nvidia.json", "cudnn",
     put("cudnn", {"version": "9.1.0.70"}, capabilities=["9" * 5000 + ".0"]),
     r"cudnn\[\d+\]\.capabilities: expected a compute capability"),
    ("a tag without its flavour", "images.json", "images",
     put("images", {"tag": "12.8.1-base-ubuntu24.04"}, tag="12.8.1-ubuntu24.04"),
     r"images\[\d+\]: '12\.8\.1-ubuntu24\.04' is not a tag such as"),
    ("a branch that is no number", "images.json", "start_rules",
     put("start_rules", {"cuda": "12.8.1"}, brands={"R535": ["tesla"]}),
     r"start_rules\[\d+\]\.brands: expected an object of brands by driver branch"),
    ("a rule for no system", "images.json", "start_rules",
     put("start_rules", {"cuda": "12.8.1"}, os=[]),
     r"start_rules\[\d+\]\.os: expected list of systems"),
    ("a bare figure", "cuda.json", "dropped", put("dropped", {"in": "12.0"}, sm=["35"]),
     r"dropped\[\d+\]\.sm: expected list of sm_NN"),
)  # fmt: skip
def test_a_malformed_row_is_named_when_it_is_read(
    broken: Callable[[str, Break], Path], name: str, table: str, change: Break, message: str
) -> None:
    catalog = load(broken(name, change))
    with pytest.raises(CatalogError, match=f"{name} {table}.*|{message}") as caught:
        getattr(catalog, table)
    assert caught.match(message)


TF = {"version": "2.18.0"}
CU12 = {"version": "9.1.0.70", "cuda_major": 12}
TAG = {"tag": "11.7.1-cudnn8-devel-ubuntu22.04"}
PLUGIN = {"version": "0.7.2", "cuda_major": 12}


@cases(
    "name change message",
    ("a release has wheels", "tensorflow.json", put("tensorflow_releases", TF, version="2.18.9"),
     "(2.18.9): has no wheel [release-row]"),
    ("a specifier can be read", "tensorflow.json",
     put("tensorflow_releases", TF, requires_python="3 or so"),
     "(2.18.0): '3 or so' is no specifier [release-row]"),
    ("an upload has its time", "tensorflow.json",
     put("tensorflow_releases", TF, upload_time="soon"),
     "(2.18.0): 'soon' is no time [release-row]"),
    ("a candidate says so in its version", "tensorflow.json",
     put("tensorflow_releases", TF, prerelease=True),
     "(2.18.0): its version and whether it is a candidate disagree [release-row]"),
    ("a release has its CUDA", "tensorflow.json", put("tensorflow_releases", TF, cuda=None),
     "(2.18.0): only a candidate, of which nothing is known, has no CUDA [release-row]"),
    ("architectures have their source", "tensorflow.json",
     put("tensorflow_releases", TF, sm=None, ptx=None),
     "(2.18.0): architectures and their source go together [release-row]"),
    ("a release's CUDA has a toolkit", "tensorflow.json",
     put("tensorflow_releases", TF, cuda="12.7"),
     "(2.18.0): CUDA 12.7 has no toolkit [targets-known]"),
    ("PTX comes with binary code", "tensorflow.json",
     put("tensorflow_releases", TF, ptx="compute_86"),
     "(2.18.0): PTX without the binary code that is built beside it [targets-known]"),
    ("a Python is within what the release asks for", "tensorflow.json",
     put("tensorflow_wheels", TF, python_tags=["cp38-cp38"]),
     "(2.18.0 x86_64): cp38-cp38 is outside >=3.9 [python-tags]"),
    ("a CPU wheel has no pins", "tensorflow.json",
     put("tensorflow_wheels", {**TF, "arch": "aarch64"}, pins=["nvidia-nccl-cu12==2.21.5"]),
     "(2.18.0 aarch64): pins of an extra that it does not have [extra-row]"),
    ("a wheel that brings CUDA pins it", "tensorflow.json",
     lambda raw: [row.pop("pins", None) for row in raw["tensorflow_wheels"]],
     "(2.18.0 x86_64): no pins for the CUDA that it brings [extra-row]"),
    ("an empty wheel has no GPU code", "tensorflow.json",
     put("tensorflow_wheels", TF, stands_for=["other"]),
     "(2.18.0 x86_64): GPU code in a wheel that only points to others [extra-row]"),
    ("pins are requirements", "tensorflow.json",
     put("tensorflow_wheels", TF, pins=["nvidia-cudnn-cu12=9"]),
     "(2.18.0 x86_64): pin 'nvidia-cudnn-cu12=9' is no requirement [pins-read]"),
    ("a pinned cuDNN is known", "tensorflow.json",
     put("tensorflow_wheels", TF, pins=["nvidia-cudnn-cu12==9.3.0.99"]),
     "nvidia-cudnn-cu12==9.3.0.99: no such release is in nvidia.json [cudnn-known]"),
    ("a stub is empty", "tensorflow.json",
     put("tensorflow_gpu", {"version": "2.12.0"}, python_tags=["cp39-cp39"]),
     "(2.12.0): a stub has no Pythons, a wheel has [release-row]"),
    ("PTX is of a known toolkit", "tensorflow.json",
     put("tensorflow_releases", {"version": "2.18.1"}, ptx_only_cuda="99.9"),
     "(2.18.1): PTX of CUDA 99.9, which has no toolkit [release-row]"),
    ("PTX names its target", "tensorflow.json",
     put("tensorflow_releases", {"version": "2.18.1"}, ptx_only="compute_90"),
     "(2.18.1): 'compute_90' is no target of PTX [release-row]"),
    ("a Python tag is well formed", "jax.json",
     put("jax_releases", {"version": "0.7.2"}, python_tags=["py3-none"]),
     "(0.7.2): 'py3-none' is no Python tag [python-tags]"),
    ("a plugin's release exists", "jax.json", put("jax_plugins", PLUGIN, version="0.7.9"),
     "(0.7.9 cuda12): its release is not in the table [release-known]"),
    ("what a plugin asks for can be read", "jax.json",
     put("jax_plugins", PLUGIN, cudnn="9.8 or newer"),
     "(0.7.2 cuda12): '9.8 or newer' is no specifier [plugin-row]"),
    ("what a plugin asks for can be had", "jax.json", put("jax_plugins", PLUGIN, cudnn=">=99"),
     "(0.7.2 cuda12): nvidia-cudnn-cu12>=99: no such release is in nvidia.json"),
    ("an extra says its CUDA", "jax.json", put("jax_plugins", PLUGIN, extra="cuda"),
     "(0.7.2 cuda12): package or extra do not say CUDA 12 [plugin-row]"),
    ("a plugin is of a known family", "jax.json", put("jax_plugins", PLUGIN, cuda_major=10),
     "(0.7.2 cuda10): CUDA 10 is no family [plugin-row]"),
    ("a plugin's driver has a branch", "jax.json", put("jax_plugins", PLUGIN, min_driver="526"),
     "(0.7.2 cuda12): the branch of driver 526 is not in drivers.json [plugin-row]"),
    ("libraries stand oldest first", "nvidia.json", swap("cudnn"),
     "(8.6.0.163 cu11): stands after 8.7.0.84 cu11 [oldest-first]"),
    ("a library serves what its CUDA compiles for", "nvidia.json",
     put("cudnn", CU12, capabilities=["3.5", "5.0"]),
     "(9.1.0.70 cu12): CUDA 12 cannot compile for sm_35 [library-row]"),
    ("a library serves something", "nvidia.json", put("cudnn", CU12, capabilities=[]),
     "(9.1.0.70 cu12): capabilities are missing, not in order, or doubled [library-row]"),
    ("a library has its day", "nvidia.json", put("nccl", {"version": "2.18.1"}, upload_date="2023"),
     "(2.18.1 cu12): '2023' is no day [library-row]"),
    ("a library's version can be read", "nvidia.json",
     put("nccl", {"version": "2.18.1"}, version="two"),
     "(two cu12): 'two' is no version [library-row]"),
    ("the cuDNN of a PyTorch build is known", "nvidia.json",
     put("cudnn", {"version": "9.1.0.70", "cuda_major": 12}, version="9.1.0.71"),
     "nvidia-cudnn-cu12==9.1.0.70: no such release is in nvidia.json [cudnn-known]"),
    ("an image is of a known toolkit", "images.json",
     put("images", TAG, tag="11.7.9-cudnn8-devel-ubuntu22.04"),
     "(11.7.9-cudnn8-devel-ubuntu22.04): 11.7.9 is no toolkit [image-row]"),
    ("an image is of a known system", "images.json",
     put("images", TAG, tag="11.7.1-cudnn8-devel-plan9"), "plan9 is no known system [image-row]"),
    ("cuDNN is the one in the tag", "images.json", put("images", TAG, cudnn="9.0.0.312"),
     "cuDNN 9.0.0.312 against 8 in the tag [image-row]"),
    ("cuDNN is in the tag", "images.json",
     put("images", {"tag": "11.7.1-devel-ubuntu22.04"}, cudnn="8.5.0.96"),
     "cuDNN 8.5.0.96, which the tag does not say [image-row]"),
    ("what is inferred is no fact", "images.json", put("images", TAG, status="inferred"),
     "what is inferred is not confirmed [image-row]"),
    ("a start rule is of a known CUDA", "images.json",
     put("start_rules", {"cuda": "12.8.1"}, cuda="12.7.0", min_cuda="12.7"),
     "CUDA 12.7.0 is not known [start-rule]"),
    ("a start rule asks for its own CUDA", "images.json",
     put("start_rules", {"cuda": "12.8.1"}, min_cuda="12.7"), "asks for CUDA 12.7 [start-rule]"),
    ("a system is spelled as in a tag", "images.json",
     put("start_rules", {"cuda": "12.8.1"}, os=["ubuntu2404"]),
     "ubuntu2404 is no known system [start-rule]"),
    ("a start rule's branches are known", "images.json",
     put("start_rules", {"cuda": "12.8.1"}, brands={"536": ["tesla"]}),
     "branch 536 is not in drivers.json [start-branch-known]"),
    ("a missing brand has its reason", "images.json",
     put("start_rules", {"cuda": "12.8.1"}, brands={"535": []}),
     "no brand for branch 535, and no note why [start-rule]"),
    ("what is dropped is gone", "cuda.json", put("dropped", {"in": "12.0"}, sm=["sm_50"]),
     "(12.0 Kepler): sm_50 is still there [dropped-row]"),
    ("what is dropped was there", "cuda.json", put("dropped", {"in": "12.0"}, sm=["sm_30"]),
     "(12.0 Kepler): sm_30 was not there to drop [dropped-row]"),
    ("what drops is a known CUDA", "cuda.json", put("dropped", {"in": "12.0"}, **{"in": "12.7"}),
     "(12.7 Kepler): CUDA 12.7 has no toolkit [dropped-row]"),
    ("a branch's majors agree", "drivers.json",
     put("highest_majors", {"branch": 535}, cuda_major=13),
     "(535): CUDA 13 against 12.2 in its row [note-row]"),
    ("a branch of NVIDIA's page is known", "drivers.json",
     put("highest_majors", {"branch": 535}, branch=536),
     "(536): is not among the branches [note-row]"),
    ("a note is of a known GPU", "gpus.json",
     put("binary_notes", {"compute_capability": "12.1"}, compute_capability="99.0"),
     "gpus.json binary_notes[2] (99.0): no GPU has this capability [note-row]"),
)  # fmt: skip
def test_a_broken_invariant_is_named(
    broken: Callable[[str, Break], Path], name: str, change: Break, message: str
) -> None:
    problems = check(load(broken(name, change)))
    assert any(message in problem for problem in problems), problems
