"""A refresh of a small catalog from a small index: what is new, what is kept, and how it fails."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from provision.catalog.catalog import Catalog
from provision.catalog.overlay import extended
from provision.catalog.refresh import SOURCES, Refreshed, _chosen, refresh, to_overlay
from provision.catalog.refresh.current_rows import CurrentRows
from provision.catalog.refresh.model import CatalogChange, RefreshOfflineError, UnknownSourceError
from provision.catalog.refresh.render import describe_changes, refreshed_to_json
from provision.errors import Exit
from tests.kit.cases import cases
from tests.kit.simple_index import (
    TODAY,
    UPLOADED,
    Fault,
    SimpleIndex,
    laid_over,
    make_wheel,
    refreshed,
    small_catalog,
    torch_wheels,
    world,
)

DEFAULT = ("pypi",)
LINUX = "manylinux_2_28_x86_64.whl"


@pytest.fixture
def index() -> Iterator[SimpleIndex]:
    with world().serving() as running:
        yield running


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return small_catalog(tmp_path / "data")


def changes(found: Refreshed, kind: str, table: str | None = None) -> list[CatalogChange]:
    return [c for c in found.changes if c.kind == kind and table in {None, c.table}]


def row(found: Refreshed, table: str, **key: object) -> Mapping[str, object]:
    rows = [r for r in found.rows[table] if all(r[name] == key[name] for name in key)]
    assert len(rows) == 1
    return rows[0]


# ---- what is read ----


def test_a_new_release_brings_its_builds_and_its_companion(
    catalog: Catalog, index: SimpleIndex, tmp_path: Path
) -> None:
    found = refreshed(catalog, index, "torch")
    assert found.failures == ()
    release = row(found, "releases", version="9.1.0")
    assert release["torchvision"] == "0.91.0"
    assert release["torchaudio"] is None
    assert release["pairing_note"] == "No torchaudio asks for torch 9.1.0 alone."
    assert (release["requires_python"], release["upload_time"]) == (">=3.10", UPLOADED)
    build = row(found, "builds", version="9.1.0", arch="aarch64")
    assert (build["tag"], build["cuda"], build["cudnn"]) == ("cu130", "13.0", "9.19.0.56")
    assert (build["sm"], build["at"], build["existence"]) == (None, ["pypi"], "confirmed")
    assert build["python_tags"] == ["cp312-cp312", "cp313-cp313", "cp313-cp313t"]
    after = laid_over(tmp_path, found)
    assert after.torch_release("9.1.0") is not None
    assert {b.arch for b in after.torch_builds("9.1.0", "13.0")} == {"x86_64", "aarch64"}


def test_pins_for_the_other_machine_alone_make_a_cpu_build(
    catalog: Catalog, index: SimpleIndex
) -> None:
    index.wheels = torch_wheels(
        "9.1.0", ['nvidia-cuda-runtime-cu12==12.6.77; platform_machine == "x86_64"']
    )
    found = refreshed(catalog, index, "torch")
    tags = {(r["arch"], r["tag"]) for r in found.rows["builds"] if r["version"] == "9.1.0"}
    assert tags == {("x86_64", "cu126"), ("aarch64", "cpu")}


def test_a_build_whose_cuda_stands_nowhere_is_left_out_and_told(
    catalog: Catalog, index: SimpleIndex
) -> None:
    index.wheels = [make_wheel(f"torch-9.1.0-cp312-cp312-{LINUX}", ["numpy"])]
    found = refreshed(catalog, index, "torch")
    assert "builds" not in found.rows
    assert [(f.source, f.partial) for f in found.failures] == [("torch", True)]
    assert found.exit_code == Exit.DONE


def test_tensorflow_is_read_by_its_extra_and_the_release_before_it(
    catalog: Catalog, index: SimpleIndex
) -> None:
    found = refreshed(catalog, index, "tensorflow")
    release = row(found, "tensorflow_releases", version="5.1.0")
    assert (release["cuda"], release["cudnn"], release["libraries"]) == ("12.5", "9.3", "extra")
    assert (release["sm"], release["upload_time"]) == (None, UPLOADED)
    assert "lowest" in str(release["note"])
    wheel = row(found, "tensorflow_wheels", version="5.1.0")
    assert (wheel["arch"], wheel["gpu"], wheel["confidence"]) == ("x86_64", True, "assumed")
    other = next(c for c in changes(found, "new") if c.key.get("arch") == "aarch64")
    assert "is new, and is not kept: " in other.sentence  # no release before it is known there


def test_tensorflow_with_exact_pins_is_for_their_cuda(catalog: Catalog, index: SimpleIndex) -> None:
    requires = ['nvidia-cuda-runtime-cu12==12.8.90; extra == "and-cuda"']
    name = f"tensorflow-5.2.0-cp312-cp312-{LINUX}"
    index.wheels = [make_wheel(name, requires, extras=["and-cuda"])]
    found = refreshed(catalog, index, "tensorflow")
    release = row(found, "tensorflow_releases", version="5.2.0")
    assert (release["cuda"], release["cudnn"], "note" in release) == ("12.8", None, False)
    assert row(found, "tensorflow_wheels")["pins"] == ["nvidia-cuda-runtime-cu12==12.8.90"]


def test_a_stub_of_tensorflow_names_whose_place_it_takes(
    catalog: Catalog, index: SimpleIndex
) -> None:
    requires = ['tensorflow-cpu-aws==5.1.0; platform_machine == "aarch64"']
    index.wheels = [w for w in index.wheels if "5.1.0" not in w.name or "aarch64" not in w.name]
    index.wheels.append(
        make_wheel("tensorflow-5.1.0-cp312-cp312-manylinux_2_17_aarch64.whl", requires)
    )
    found = refreshed(catalog, index, "tensorflow")
    wheel = row(found, "tensorflow_wheels", version="5.1.0", arch="aarch64")
    assert (wheel["gpu"], wheel["stands_for"]) == (False, ["tensorflow-cpu-aws"])


def test_jax_and_its_plugin_are_read_and_the_driver_is_carried_over(
    catalog: Catalog, index: SimpleIndex
) -> None:
    found = refreshed(catalog, index, "jax")
    library = row(found, "jax_releases", version="0.91.0")
    assert (library["archs"], library["glibc"]) == (["x86_64", "aarch64"], "2.27")
    plugin = row(found, "jax_plugins", version="0.91.0")
    assert (plugin["cuda_runtime"], plugin["cudnn"]) == (">=12.1.105", "<10.0,>=9.8")
    assert (plugin["min_driver"], plugin["sm_min"]) == ("525", "5.2")
    assert found.sources[str(plugin["driver_source"])].startswith("carried over from 0.90.0: ")


def test_a_release_of_an_older_series_is_like_the_one_before_it(tmp_path: Path) -> None:
    plugin = {"cuda_major": 12, "package": "p", "extra": "cuda12", "cuda_runtime": None,
              "cudnn": None, "nccl": None, "sm_min": "5.2", "driver_source": "made-up"}  # fmt: skip
    drivers = {"0.89.0": "450", "0.91.0": "525"}
    rows = [{"version": v, "min_driver": driver, **plugin} for v, driver in drivers.items()]
    known = CurrentRows(small_catalog(tmp_path / "data", jax_plugins=rows))
    found = known.carried_over("jax_plugins", Version("0.90.1"), 12, ("min_driver",))
    assert found["min_driver"] == "450"


def test_the_pytorch_index_confirms_and_adds_builds(catalog: Catalog, index: SimpleIndex) -> None:
    found = refreshed(catalog, index, "torch", "pytorch-index")
    likely = row(found, "builds", tag="cu118")
    assert likely["existence"] == "confirmed"
    assert changes(found, "confirmed", "builds")[0].key["tag"] == "cu118"
    both = row(found, "builds", tag="cu130", arch="x86_64")
    assert both["at"] == ["pytorch", "pypi"]
    assert f"{index.whl}/cu130/torch/" in {a.url for a in found.requests}


def test_the_pytorch_index_alone_adds_no_build_of_an_unknown_release(
    catalog: Catalog, index: SimpleIndex
) -> None:
    found = refreshed(catalog, index, "pytorch-index")
    assert all(r["version"] == "9.0.0" for r in found.rows["builds"])
    told = changes(found, "new", "builds")
    assert len(told) == 1
    assert "not kept: its release could not be read" in told[0].sentence


def test_wheels_of_other_tags_and_projects_on_a_page_are_passed_over(
    catalog: Catalog, index: SimpleIndex
) -> None:
    everything = [wheel for wheels in index.tags.values() for wheel in wheels]
    index.tags = dict.fromkeys(index.tags, everything)
    found = refreshed(catalog, index, "torch", "pytorch-index")
    tags = {(r["version"], r["tag"], r["arch"]) for r in found.rows["builds"]}
    assert ("9.0.0", "cu126", "aarch64") not in tags
    assert {tag for _, tag, _ in tags} <= {"cpu", "cu118", "cu126", "cu130"}


def test_a_wheel_above_the_tags_is_a_cpu_build_and_no_other(
    catalog: Catalog, index: SimpleIndex
) -> None:
    found = refreshed(catalog, index, "pytorch-index")
    cpu = row(found, "builds", tag="cpu", arch="aarch64")
    assert cpu["at"] == ["pytorch", "pypi"]
    assert not changes(found, "new", "releases")
    assert {c.key["tag"] for c in changes(found, "new", "builds")} == {"cu130"}


# ---- what changes ----


def test_a_withdrawn_release_is_told(catalog: Catalog, index: SimpleIndex) -> None:
    index.wheels = [
        dataclasses.replace(w, yanked=True) if w.name.startswith("torch-9.0.0") else w
        for w in index.wheels
    ]
    found = refreshed(catalog, index, "torch")
    assert row(found, "releases", version="9.0.0")["yanked"] is True
    assert "yanked was no, is yes" in changes(found, "changed", "releases")[0].sentence


def test_a_python_that_came_later_is_followed(catalog: Catalog, index: SimpleIndex) -> None:
    index.wheels.append(make_wheel(f"torch-9.0.0-cp314-cp314-{LINUX}"))
    found = refreshed(catalog, index, "torch")
    build = row(found, "builds", version="9.0.0", tag="cu126")
    assert "cp314-cp314" in str(build["python_tags"])
    assert set(build) >= {"version", "tag", "arch", "source", "as_of"}
    assert "cuda" not in build  # only what was read and differs


def test_what_was_assumed_is_confirmed_by_reading(index: SimpleIndex, tmp_path: Path) -> None:
    known = {
        "version": "9.0.0", "tag": "cu126", "cuda": "12.6", "arch": "x86_64", "sm": None,
        "ptx": None, "python_tags": ["cp312-cp312"], "python_confidence": "assumed",
        "cudnn": None, "nccl": None, "glibc": "2.28", "glibc_confidence": "assumed",
        "existence": "likely", "at": ["pypi"],
    }  # fmt: skip
    found = refreshed(small_catalog(tmp_path / "data", builds=[known]), index, "torch")
    build = row(found, "builds", version="9.0.0", tag="cu126")
    assert (build["existence"], build["glibc_confidence"]) == ("confirmed", "confirmed")
    assert build["python_confidence"] == "confirmed"
    assert len(str(build["python_tags"]).split(",")) == 3


def test_a_fact_that_cannot_change_is_kept_as_the_catalog_has_it(
    catalog: Catalog, index: SimpleIndex
) -> None:
    index.wheels = [w for w in index.wheels if not w.name.startswith("torch-9.0.0")]
    index.wheels += [
        make_wheel(f"torch-9.0.0-{tag}-manylinux_2_17_x86_64.whl", ["cuda-toolkit==13.0.3"])
        for tag in ("cp312-cp312", "cp313-cp313", "cp313-cp313t", "cp314-cp314")
    ]
    build = row(refreshed(catalog, index, "torch"), "builds", version="9.0.0", arch="x86_64")
    assert build["tag"] == "cu126"
    assert "cp314-cp314" in str(build["python_tags"])
    assert "glibc" not in build


# ---- how it is kept ----


def test_a_second_refresh_finds_nothing_to_do(
    catalog: Catalog, index: SimpleIndex, tmp_path: Path
) -> None:
    after = laid_over(tmp_path, refreshed(catalog, index))
    again = refreshed(after, index)
    assert again.rows == {}
    assert all("not kept" in change.sentence for change in again.changes)
    assert again.sources == {}


def test_the_same_pages_give_the_same_rows_in_the_same_order(
    catalog: Catalog, index: SimpleIndex
) -> None:
    first, second = refreshed(catalog, index), refreshed(catalog, index)
    assert json.dumps(to_overlay(first, None).tables) == json.dumps(to_overlay(second, None).tables)
    assert first.changes == second.changes


def test_html_and_json_say_the_same_but_for_times_and_sizes(
    catalog: Catalog, index: SimpleIndex
) -> None:
    from_json = row(refreshed(catalog, index, "torch"), "builds", version="9.1.0", arch="x86_64")
    index.speaks_json = False
    from_html = refreshed(catalog, index, "torch")
    said = [c for c in changes(from_html, "new", "builds") if c.key["arch"] == "x86_64"]
    after = said[0].after
    both = from_json.keys() & after.keys()
    assert {name: from_json[name] for name in both} == {name: after[name] for name in both}
    assert from_json.keys() - after.keys() == {
        *("version", "tag", "arch", "source", "as_of", "size_min_bytes", "size_max_bytes")
    }


def test_a_row_that_the_catalog_would_not_take_is_told_and_not_kept(
    catalog: Catalog, index: SimpleIndex, tmp_path: Path
) -> None:
    index.wheels.append(make_wheel("jaxlib-0.92.0-cp312-cp312-linux_x86_64.whl"))  # no glibc
    found = refreshed(catalog, index, "jax")
    told = [c for c in changes(found, "new", "jax_releases") if c.key["version"] == "0.92.0"]
    assert "not kept: " in told[0].sentence
    assert all(r["version"] != "0.92.0" for r in found.rows["jax_releases"])
    laid_over(tmp_path, found)


def test_a_copy_grows_and_forgets_sources_that_no_row_names(
    catalog: Catalog, index: SimpleIndex
) -> None:
    first = to_overlay(refreshed(catalog, index, "torch"), None)
    index.wheels = [dataclasses.replace(w, yanked="torch-9" in w.name) for w in index.wheels]
    later = refreshed(catalog, index, "torch", today="2030-06-06")
    second = to_overlay(later, first)
    assert second.date == "2030-06-06"
    release = next(r for r in second.tables["releases"] if r["version"] == "9.0.0")
    assert release["as_of"] == "2030-06-06"
    used = {
        str(key)
        for rows in second.tables.values()
        for r in rows
        for key in (r["source"] if isinstance(r["source"], list) else [r["source"]])
    }
    assert used == set(second.sources)


def test_what_was_measured_is_a_row_of_its_own_behind_what_was_read() -> None:
    """So that newer shipped rows replace what was read, and never what was measured."""
    key = {"version": "9.0.0", "tag": "cu126", "arch": "x86_64"}
    measured = {**key, "sm": ["sm_80"], "measured": True, "as_of": TODAY, "source": ["m"]}
    read = {**key, "at": ["pypi"], "as_of": TODAY, "source": ["r"]}
    copy = extended(None, TODAY, {"builds": [measured]}, {"m": "measured"})
    copy = extended(copy, TODAY, {"builds": [read]}, {"r": "read"})
    assert copy.tables["builds"] == (read, measured)


def test_a_partly_newer_row_of_a_copy_names_both_sources(
    catalog: Catalog, index: SimpleIndex
) -> None:
    first = refreshed(catalog, index, "torch")
    previous = to_overlay(first, None)
    newer = dataclasses.replace(
        first,
        rows={"releases": ({"version": "9.1.0", "yanked": True, "source": "b", "as_of": TODAY},)},
        sources={"b": "another"},
    )
    kept = to_overlay(newer, previous).tables["releases"][0]
    assert kept["source"] == ["b", f"torch-{TODAY}"]
    assert (kept["yanked"], kept["torchvision"]) == (True, "0.91.0")


def test_sources_name_hosts_and_no_login(catalog: Catalog, index: SimpleIndex) -> None:
    index.login = "ann:canary"
    url = index.url.replace("http://", "http://ann:canary@")
    found = refreshed(catalog, index, *DEFAULT, index=url)
    assert found.failures == ()
    text = json.dumps([dict(found.sources), refreshed_to_json(found)])
    text += describe_changes(found, SOURCES)
    assert index.address in text
    assert "canary" not in text


# ---- how it fails ----


def test_offline_says_so_at_once(catalog: Catalog, index: SimpleIndex) -> None:
    with pytest.raises(RefreshOfflineError) as caught:
        refreshed(catalog, index, offline=True)
    assert caught.value.exit_code == Exit.UNREACHABLE
    assert index.asked == []


def test_a_source_that_is_none_is_refused(catalog: Catalog) -> None:
    with pytest.raises(UnknownSourceError) as caught:
        refresh(catalog, sources=("torch", "nosuch"), today=TODAY)
    assert caught.value.exit_code == Exit.USAGE
    assert "pytorch-index" in caught.value.fix


@cases(
    "sources names",
    ("none named: all", (), tuple(SOURCES)),
    ("groups, in their own order", ("nvidia", "pytorch"),
     ("pytorch-index", "driver-manifests", "cuda-manifests")),
    ("a group and a part", ("jax", "pypi"), ("torch", "tensorflow", "jax", "toolkits")),
    ("single ones", ("jax", "torch"), ("torch", "jax")),
)  # fmt: skip
def test_sources_are_named_one_by_one_or_by_whom_they_ask(
    sources: Sequence[str], names: Sequence[str]
) -> None:
    assert _chosen(sources, SOURCES) == names


def test_without_the_pytorch_index_the_default_builds_are_found_and_the_rest_is_said(
    catalog: Catalog, index: SimpleIndex
) -> None:
    found = refreshed(
        catalog, index, pytorch_index="http://127.0.0.1:9/whl", nvidia="http://127.0.0.1:9"
    )
    assert [f.source for f in found.failures] == [
        "pytorch-index",
        "driver-manifests",
        "cuda-manifests",
    ]
    assert all("--nvidia URL" in f.fix for f in found.failures)
    assert found.exit_code == Exit.DONE
    assert row(found, "builds", version="9.1.0", arch="x86_64")["at"] == ["pypi"]
    text = " ".join(describe_changes(found, SOURCES).split())
    assert "PyTorch 9.1.0 cu130 for x86_64 is new" in text
    assert text.count("127.0.0.1:9 refuses connections") == 1
    assert "not read pytorch-index (PyTorch's builds for each CUDA), driver-manifests" in text


def test_a_source_that_fails_does_not_stop_the_others(catalog: Catalog, index: SimpleIndex) -> None:
    index.faults["/simple/tensorflow/"] = Fault(status=500)
    index.faults["/compute/cuda/redist/"] = Fault(status=500)
    found = refreshed(catalog, index)
    assert {f.source: f.partial for f in found.failures} == {
        "tensorflow": False,
        "cuda-manifests": False,
    }
    assert all(f.fix for f in found.failures)
    assert found.exit_code == Exit.DONE
    assert found.rows.keys() == {"releases", "builds", "jax_releases", "jax_plugins"}


def test_where_every_source_fails_the_exit_says_so(catalog: Catalog, index: SimpleIndex) -> None:
    index.faults["/simple/torch/"] = Fault(status=500)
    found = refreshed(catalog, index, "torch")
    assert (found.exit_code, found.rows) == (Exit.UNREACHABLE, {})
    assert "no source could be read" in describe_changes(found, SOURCES)


def test_a_damaged_metadata_costs_a_second_try_and_not_the_release(
    catalog: Catalog, index: SimpleIndex
) -> None:
    name = "torch-9.1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    index.faults[f"/files/{name}.metadata"] = Fault(body=b"changed")
    found = refreshed(catalog, index, "torch")
    assert found.failures == ()
    assert row(found, "builds", version="9.1.0", arch="x86_64")["tag"] == "cu130"


def test_an_unreadable_build_is_a_partial_failure(catalog: Catalog, index: SimpleIndex) -> None:
    for wheel in index.wheels:
        if "9.1.0" in wheel.name and "x86_64" in wheel.name and wheel.project == "torch":
            index.faults[f"/files/{wheel.name}.metadata"] = Fault(body=b"changed")
    found = refreshed(catalog, index, "torch")
    assert [(f.source, f.partial, "the index says" in f.message) for f in found.failures] == [
        ("torch", True, True)
    ]
    assert {r["arch"] for r in found.rows["builds"] if r["version"] == "9.1.0"} == {"aarch64"}


def test_an_index_without_the_project_fails_that_source(
    catalog: Catalog, index: SimpleIndex
) -> None:
    index.wheels = [w for w in index.wheels if w.project != "torch"]
    found = refreshed(catalog, index, "torch", "jax")
    assert [f.source for f in found.failures] == ["torch"]
    assert "lists no wheel of torch for Linux" in found.failures[0].message


def test_progress_hears_every_request(catalog: Catalog, index: SimpleIndex) -> None:
    heard: list[str] = []
    found = refreshed(catalog, index, *DEFAULT, on_progress=heard.append)
    assert sorted(line.partition(": ")[0] for line in heard) == [a.url for a in found.requests]
    assert all(": HTTP " in line for line in heard)


def test_an_address_that_cannot_be_is_a_failure_of_its_sources(
    catalog: Catalog, index: SimpleIndex
) -> None:
    names = ("torch", "pytorch-index")
    found = refreshed(catalog, index, *names, index="file:///srv", pytorch_index="http://[")
    assert [f.source for f in found.failures] == [*names]
    assert found.exit_code == Exit.UNREACHABLE


# ---- words ----


def test_the_words_fit_a_terminal(catalog: Catalog, index: SimpleIndex) -> None:
    index.faults["/simple/tensorflow/"] = Fault(status=500)
    text = describe_changes(refreshed(catalog, index), SOURCES)
    assert max(len(line) for line in text.splitlines()) <= 80
    flat = " ".join(text.split())
    assert "PyTorch 9.1.0 is new at" in flat
    assert "not read tensorflow (TensorFlow): " in flat
    assert textwrap.dedent(text) == text
