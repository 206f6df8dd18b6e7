"""A refresh of a small catalog from a small index: what is new, what is kept, and how it fails."""

from __future__ import annotations

import dataclasses
import json
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from images.errors import Failure
from provision.catalog.catalog import Catalog
from provision.catalog.loading import load
from provision.catalog.overlay import Overlay, read_overlay, write_overlay
from provision.catalog.refresh import (
    SOURCES,
    CatalogChange,
    FetchLimits,
    Refreshed,
    _chosen,
    describe_changes,
    refresh,
    refreshed_to_json,
    to_overlay,
)
from provision.catalog.refresh.fetch import PageFetcher
from provision.catalog.refresh.known import CurrentRows
from provision.catalog.refresh.model import RefreshOfflineError, UnknownSourceError
from provision.catalog.refresh.pytorch_index import address_template, read_pytorch_index
from provision.catalog.refresh.registry import read_cuda_images, read_python_images
from provision.catalog.refresh.threads import Threads
from provision.errors import Exit
from tests.kit.simple_index import (
    UPLOADED,
    Fault,
    SimpleIndex,
    make_wheel,
    small_catalog,
    torch_wheels,
    world,
)

TODAY = "2030-05-05"
FAST = FetchLimits(
    connect_s=2.0, read_s=1.0, request_s=3.0, total_s=20.0, pause_s=0.3, backoff_s=0.01
)
DEFAULT = SOURCES[:6]
LINUX = "manylinux_2_28_x86_64.whl"


@pytest.fixture
def index() -> Iterator[SimpleIndex]:
    with world().serving() as running:
        yield running


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return small_catalog(tmp_path / "data")


def run(catalog: Catalog, at: SimpleIndex, *sources: str, **options: Any) -> Refreshed:
    given: dict[str, Any] = {
        "sources": sources or SOURCES,
        "index": at.url,
        "pytorch_index": at.whl,
        "registry": at.address,
        "nvidia": at.nvidia,
        "today": TODAY,
        "limits": FAST,
        "env": {"PATH": "/nosuch"},
        **options,
    }
    return refresh(catalog, **given)


def changes(found: Refreshed, kind: str, table: str | None = None) -> list[CatalogChange]:
    return [c for c in found.changes if c.kind == kind and table in {None, c.table}]


def row(found: Refreshed, table: str, **key: object) -> Mapping[str, object]:
    rows = [r for r in found.rows[table] if all(r[name] == key[name] for name in key)]
    assert len(rows) == 1
    return rows[0]


def laid_over(tmp_path: Path, found: Refreshed, previous: Overlay | None = None) -> Catalog:
    """The catalog after the refresh was written and read again."""
    path = tmp_path / "copy" / "catalog.json"
    write_overlay(path, to_overlay(found, previous))
    return load(tmp_path / "data", overlay=read_overlay(path))


# ---- what is read ----


def test_a_new_release_brings_its_builds_and_its_companion(
    catalog: Catalog, index: SimpleIndex, tmp_path: Path
) -> None:
    found = run(catalog, index, "torch")
    assert found.failures == ()
    release = row(found, "releases", version="9.1.0")
    assert release["torchvision"] == "0.91.0"
    assert release["torchaudio"] is None
    assert "asks for no torch in particular" in str(release["pairing_note"])
    assert (release["requires_python"], release["upload_time"]) == (">=3.10", UPLOADED)
    build = row(found, "builds", version="9.1.0", arch="aarch64")
    assert (build["tag"], build["cuda"], build["cudnn"]) == ("cu130", "13.0", "9.19.0.56")
    assert (build["sm"], build["at"], build["existence"]) == (None, ["pypi"], "confirmed")
    assert build["python_tags"] == ["cp312-cp312", "cp313-cp313", "cp313-cp313t"]
    after = laid_over(tmp_path, found)
    assert after.torch_release("9.1.0") is not None
    assert {b.arch for b in after.torch_builds("9.1.0", "13.0")} == {"x86_64", "aarch64"}


def test_candidates_and_what_is_older_than_the_catalog_are_passed_over(
    catalog: Catalog, index: SimpleIndex
) -> None:
    found = run(catalog, index, "torch")
    assert {r["version"] for r in found.rows["releases"]} == {"9.1.0"}


def test_pins_for_the_other_machine_alone_make_a_cpu_build(
    catalog: Catalog, index: SimpleIndex
) -> None:
    index.wheels = torch_wheels(
        "9.1.0", ['nvidia-cuda-runtime-cu12==12.6.77; platform_machine == "x86_64"']
    )
    found = run(catalog, index, "torch")
    tags = {(r["arch"], r["tag"]) for r in found.rows["builds"] if r["version"] == "9.1.0"}
    assert tags == {("x86_64", "cu126"), ("aarch64", "cpu")}


def test_a_wheel_whose_metadata_is_silent_is_looked_into(
    catalog: Catalog, index: SimpleIndex
) -> None:
    files = {"torch/version.py": "cuda: Optional[str] = '12.9'\n"}
    index.wheels = [make_wheel(f"torch-9.1.0-cp312-cp312-{LINUX}", ["numpy"], files=files)]
    found = run(catalog, index, "torch")
    assert row(found, "builds", version="9.1.0")["tag"] == "cu129"


def test_a_build_whose_cuda_stands_nowhere_is_left_out_and_told(
    catalog: Catalog, index: SimpleIndex
) -> None:
    index.wheels = [make_wheel(f"torch-9.1.0-cp312-cp312-{LINUX}", ["numpy"])]
    found = run(catalog, index, "torch")
    assert "builds" not in found.rows
    assert [(f.name, f.partial) for f in found.failures] == [("torch", True)]
    assert found.exit_code == Exit.DONE


def test_tensorflow_says_what_it_was_built_for(catalog: Catalog, index: SimpleIndex) -> None:
    found = run(catalog, index, "tensorflow")
    release = row(found, "tensorflow_releases", version="5.1.0")
    assert (release["cuda"], release["cudnn"], release["libraries"]) == ("12.5", "9.3", "extra")
    assert (release["sm"], release["ptx"]) == (["sm_60", "sm_80", "sm_90"], "compute_90")
    assert "note" not in release
    gpu = {r["arch"]: r["gpu"] for r in found.rows["tensorflow_wheels"] if r["version"] == "5.1.0"}
    assert gpu == {"x86_64": True, "aarch64": False}


def test_tensorflow_without_its_own_word_is_read_by_the_bounds_of_its_extra(
    catalog: Catalog, index: SimpleIndex
) -> None:
    requires = ['nvidia-cuda-runtime-cu12<13.0,>=12.8.1; extra == "and-cuda"']
    text = "build_info = collections.OrderedDict([('is_cuda_build', True)])\n"
    files = {"tensorflow/python/platform/build_info.py": text}
    name = f"tensorflow-5.2.0-cp312-cp312-{LINUX}"
    index.wheels = [make_wheel(name, requires, extras=["and-cuda"], files=files)]
    release = row(run(catalog, index, "tensorflow"), "tensorflow_releases", version="5.2.0")
    assert (release["cuda"], release["cudnn"], release["sm"]) == ("12.8", None, None)
    assert "lowest" in str(release["note"])


def test_a_stub_of_tensorflow_names_whose_place_it_takes(
    catalog: Catalog, index: SimpleIndex
) -> None:
    requires = ['tensorflow-cpu-aws==5.1.0; platform_machine == "aarch64"']
    index.wheels = [w for w in index.wheels if "5.1.0" not in w.name or "aarch64" not in w.name]
    index.wheels.append(
        make_wheel("tensorflow-5.1.0-cp312-cp312-manylinux_2_17_aarch64.whl", requires)
    )
    found = run(catalog, index, "tensorflow")
    wheel = row(found, "tensorflow_wheels", version="5.1.0", arch="aarch64")
    assert (wheel["gpu"], wheel["stands_for"]) == (False, ["tensorflow-cpu-aws"])


def test_jax_and_its_plugin_are_read_and_the_driver_is_carried_over(
    catalog: Catalog, index: SimpleIndex
) -> None:
    found = run(catalog, index, "jax")
    library = row(found, "jax_releases", version="0.91.0")
    assert (library["archs"], library["glibc"]) == (["x86_64", "aarch64"], "2.27")
    plugin = row(found, "jax_plugins", version="0.91.0")
    assert (plugin["cuda_runtime"], plugin["cudnn"]) == (">=12.1.105", "<10.0,>=9.8")
    assert (plugin["min_driver"], plugin["sm_min"]) == ("525", "5.2")
    assert found.sources[str(plugin["driver_source"])].startswith("carried over from 0.90.0: ")


def test_cudnn_and_nccl_are_read_and_their_gpus_are_assumed(
    catalog: Catalog, index: SimpleIndex, tmp_path: Path
) -> None:
    found = run(catalog, index, "cudnn", "nccl")
    assert row(found, "cudnn", version="9.91.0.1")["sm_confidence"] == "assumed"
    after = laid_over(tmp_path, found)
    assert after.cudnn[-1].capabilities == after.cudnn[0].capabilities
    assert after.nccl[-1].version == "2.91.1"


def test_a_library_for_a_cuda_that_nothing_is_known_of_is_told_and_not_kept(
    catalog: Catalog, index: SimpleIndex
) -> None:
    newest = max(row.major for row in catalog.families) + 1
    index.wheels.append(make_wheel(f"nvidia_cudnn_cu{newest}-10.0-py3-none-{LINUX}"))
    found = run(catalog, index, "cudnn")
    told = [c for c in changes(found, "new", "cudnn") if c.key["cuda_major"] == newest]
    assert len(told) == 1
    assert all(r["cuda_major"] != newest for r in found.rows["cudnn"])


def test_a_toolkit_that_the_catalog_lacks_is_told_and_not_kept(
    catalog: Catalog, index: SimpleIndex
) -> None:
    found = run(catalog, index, "toolkits")
    assert [c.key for c in changes(found, "new")] == [{"full": "99.0.0"}]
    assert found.rows == {}


def test_the_pytorch_index_confirms_and_adds_builds(catalog: Catalog, index: SimpleIndex) -> None:
    found = run(catalog, index, "torch", "pytorch-index")
    likely = row(found, "builds", tag="cu118")
    assert likely["existence"] == "confirmed"
    assert changes(found, "confirmed", "builds")[0].key["tag"] == "cu118"
    both = row(found, "builds", tag="cu130", arch="x86_64")
    assert both["at"] == ["pytorch", "pypi"]
    assert f"{index.whl}/cu130/torch/" in {a.url for a in found.asked}


def test_the_pytorch_index_alone_adds_no_build_of_an_unknown_release(
    catalog: Catalog, index: SimpleIndex
) -> None:
    found = run(catalog, index, "pytorch-index")
    assert all(r["version"] == "9.0.0" for r in found.rows["builds"])
    told = changes(found, "new", "builds")
    assert len(told) == 1
    assert "not kept: its release could not be read" in told[0].sentence


def test_wheels_of_other_tags_and_projects_on_a_page_are_passed_over(
    catalog: Catalog, index: SimpleIndex
) -> None:
    everything = [wheel for wheels in index.tags.values() for wheel in wheels]
    index.tags = dict.fromkeys(index.tags, everything)
    found = run(catalog, index, "torch", "pytorch-index")
    tags = {(r["version"], r["tag"], r["arch"]) for r in found.rows["builds"]}
    assert ("9.0.0", "cu126", "aarch64") not in tags
    assert {tag for _, tag, _ in tags} <= {"cpu", "cu118", "cu126", "cu130"}


def test_a_wheel_above_the_tags_is_a_cpu_build_and_no_other(
    catalog: Catalog, index: SimpleIndex
) -> None:
    found = run(catalog, index, "pytorch-index")
    cpu = row(found, "builds", tag="cpu", arch="aarch64")
    assert cpu["at"] == ["pytorch", "pypi"]
    assert not changes(found, "new", "releases")
    assert {c.key["tag"] for c in changes(found, "new", "builds")} == {"cu130"}


def test_tags_that_the_catalog_lacks_are_found_by_the_page_above_them(
    catalog: Catalog, index: SimpleIndex
) -> None:
    name = "torch-9.0.0+cu199-cp312-cp312-manylinux_2_28_x86_64.whl"
    index.tags["cu199"] = [make_wheel(name)]
    found = run(catalog, index, "pytorch-index")
    assert row(found, "builds", tag="cu199")["cuda"] == "19.9"


def test_images_are_read_from_the_lists_of_tags(
    catalog: Catalog, index: SimpleIndex, tmp_path: Path
) -> None:
    index.page_of_tags = 2
    found = run(catalog, index, "cuda-images", "python-images")
    assert found.failures == ()
    image = row(found, "images", tag="99.0.1-cudnn-devel-ubuntu24.04")
    assert (image["status"], image["archs"]) == ("seen", None)
    assert row(found, "images", tag="12.6.3-devel-ubuntu22.04")["status"] == "seen"
    assert row(found, "python_images", python="3.12")["confidence"] == "confirmed"
    assert row(found, "python_images", python="3.13")["suite"] == "bookworm"
    after = laid_over(tmp_path, found)
    assert any(row.full == "99.0.1" for row in after.images)


def test_a_mirror_of_a_registry_takes_nothing_away(catalog: Catalog, index: SimpleIndex) -> None:
    found = run(catalog, index, "cuda-images", "python-images")
    assert changes(found, "gone") == []


def test_the_registry_itself_takes_away_what_it_does_not_list(
    catalog: Catalog, index: SimpleIndex
) -> None:
    known = CurrentRows(catalog)
    cuda = read_cuda_images(index.images["nvidia/cuda"], "docker.io", known, is_own=True)
    assert [(a.key, a.patch) for a in cuda.absent] == [
        ({"tag": "12.6.2-devel-ubuntu22.04"}, {"status": "end-of-life"})
    ]
    python = read_python_images(index.images["library/python"], "docker.io", known, is_own=True)
    assert [(a.key["python"], a.patch) for a in python.absent] == [
        ("3.11", {"confidence": "doubtful"})
    ]


@pytest.mark.parametrize(
    ("is_own", "gone"),
    [
        pytest.param(True, ["cu118"], id="the index itself: its builds are doubted"),
        pytest.param(False, [], id="a mirror: nobody asked it for them"),
    ],
)
def test_a_tag_without_a_page(
    catalog: Catalog, index: SimpleIndex, *, is_own: bool, gone: list[str]
) -> None:
    del index.tags["cu118"]
    threads = Threads(4, "test")
    template = f"{index.whl}/{{tag}}"
    fetcher = PageFetcher(limits=FAST, env={})
    found = read_pytorch_index(template, "x", CurrentRows(catalog), fetcher, threads, is_own=is_own)
    threads.close()
    assert [a.key["tag"] for a in found.absent] == gone


@pytest.mark.parametrize(
    ("override", "template"),
    [
        pytest.param(None, "https://x.example/whl/{tag}", id="the catalog's own"),
        pytest.param("https://m.example/pt/", "https://m.example/pt/{tag}", id="what is above"),
        pytest.param("https://m.example/{tag}/simple", "https://m.example/{tag}/simple", id="any"),
    ],
)
def test_a_mirror_of_the_pytorch_index_is_named_by_what_stands_above_its_tags(
    override: str | None, template: str
) -> None:
    assert address_template("https://x.example/whl/{tag}", override) == template


# ---- what changes ----


def test_a_withdrawn_release_is_told(catalog: Catalog, index: SimpleIndex) -> None:
    index.wheels = [
        dataclasses.replace(w, yanked=True) if w.name.startswith("torch-9.0.0") else w
        for w in index.wheels
    ]
    found = run(catalog, index, "torch")
    assert row(found, "releases", version="9.0.0")["yanked"] is True
    assert "withdrawn was no, is yes" in changes(found, "changed", "releases")[0].sentence


def test_a_python_that_came_later_is_followed(catalog: Catalog, index: SimpleIndex) -> None:
    index.wheels.append(make_wheel(f"torch-9.0.0-cp314-cp314-{LINUX}"))
    found = run(catalog, index, "torch")
    build = row(found, "builds", version="9.0.0", tag="cu126")
    assert "cp314-cp314" in str(build["python_tags"])
    assert set(build) >= {"version", "tag", "arch", "source", "as_of"}
    assert "cuda" not in build  # only what was read and differs


def test_a_contradiction_is_told_and_the_catalog_is_kept(
    catalog: Catalog, index: SimpleIndex
) -> None:
    index.wheels = [w for w in index.wheels if not w.name.startswith("torch-9.0.0")]
    index.wheels += [
        make_wheel(f"torch-9.0.0-{tag}-manylinux_2_17_x86_64.whl", ["cuda-toolkit==13.0.3"])
        for tag in ("cp312-cp312", "cp313-cp313", "cp313-cp313t")
    ]
    found = run(catalog, index, "torch", recheck=True)
    told = {c.sentence for c in changes(found, "conflict", "builds")}
    assert any("glibc was 2.28, is 2.17" in sentence for sentence in told)
    assert any("are cu130" in sentence for sentence in told)
    kept = row(found, "builds", version="9.0.0", arch="x86_64")
    assert "glibc" not in kept
    assert kept["tag"] == "cu126"


def test_what_was_assumed_is_confirmed_by_reading(index: SimpleIndex, tmp_path: Path) -> None:
    known = {
        "version": "9.0.0", "tag": "cu126", "cuda": "12.6", "arch": "x86_64", "sm": None,
        "ptx": None, "python_tags": ["cp312-cp312"], "python_confidence": "assumed",
        "cudnn": None, "nccl": None, "glibc": "2.28", "glibc_confidence": "assumed",
        "existence": "likely", "at": ["pypi"],
    }  # fmt: skip
    found = run(small_catalog(tmp_path / "data", builds=[known]), index, "torch", recheck=True)
    build = row(found, "builds", version="9.0.0", tag="cu126")
    assert (build["existence"], build["glibc_confidence"]) == ("confirmed", "confirmed")
    assert (build["python_confidence"], build["cudnn"]) == ("confirmed", "9.5.1.17")
    assert len(str(build["python_tags"]).split(",")) == 3


def test_a_build_that_an_index_lost_is_doubted_and_not_deleted(
    catalog: Catalog, index: SimpleIndex
) -> None:
    index.wheels = [w for w in index.wheels if "9.0.0" not in w.name or "aarch64" not in w.name]
    index.tags["cu126"] = index.tags["cu118"]
    found = run(catalog, index, "torch", "pytorch-index")
    gone = {(c.key["tag"], c.key["arch"]): c.after for c in changes(found, "gone", "builds")}
    assert gone == {
        ("cpu", "aarch64"): {"existence": "doubtful"},
        ("cu126", "x86_64"): {"at": ["pypi"]},
    }


def test_a_build_that_is_nowhere_any_more_is_doubted_once(
    catalog: Catalog, index: SimpleIndex, tmp_path: Path
) -> None:
    index.wheels = [w for w in index.wheels if not w.name.endswith(LINUX) or "9.0.0" not in w.name]
    index.tags["cu126"] = index.tags["cu118"]
    found = run(catalog, index, "torch", "pytorch-index")
    assert row(found, "builds", tag="cu126")["existence"] == "doubtful"
    after = laid_over(tmp_path, found)
    again = run(after, index, "torch", "pytorch-index")
    assert changes(again, "gone") == []


def test_an_index_that_has_but_a_part_takes_nothing_away(
    index: SimpleIndex, tmp_path: Path
) -> None:
    releases = [
        {"version": f"9.0.{patch}", "requires_python": ">=3.10", "torchvision": None,
         "torchaudio": None, "upload_time": UPLOADED, "yanked": False, "numpy": None}
        for patch in range(5)
    ]  # fmt: skip
    builds = [
        {"version": f"9.0.{patch}", "tag": "cu126", "cuda": "12.6", "arch": "x86_64", "sm": None,
         "ptx": None, "python_tags": ["cp312-cp312"], "cudnn": None, "nccl": None,
         "glibc": "2.28", "existence": "confirmed", "at": ["pypi"]}
        for patch in range(5)
    ]  # fmt: skip
    catalog = small_catalog(tmp_path / "data", releases=releases, builds=builds)
    found = run(catalog, index, "torch")
    assert changes(found, "gone") == []
    assert "1 of the 5" in found.notes[0]


# ---- how it is kept ----


def test_a_second_refresh_finds_nothing_to_do(
    catalog: Catalog, index: SimpleIndex, tmp_path: Path
) -> None:
    after = laid_over(tmp_path, run(catalog, index))
    again = run(after, index)
    assert again.rows == {}
    assert {c.table for c in again.changes} <= {"toolkits", "python_images"}  # told, never kept
    assert again.sources == {}


def test_the_same_pages_give_the_same_rows_in_the_same_order(
    catalog: Catalog, index: SimpleIndex
) -> None:
    first, second = run(catalog, index), run(catalog, index)
    assert json.dumps(to_overlay(first, None).tables) == json.dumps(to_overlay(second, None).tables)
    assert first.changes == second.changes


def test_html_and_json_say_the_same_but_for_times_and_sizes_which_are_asked_for(
    catalog: Catalog, index: SimpleIndex
) -> None:
    from_json = row(run(catalog, index, "torch"), "builds", version="9.1.0", arch="x86_64")
    index.speaks_json = False
    from_html = run(catalog, index, "torch")
    said = [c for c in changes(from_html, "new", "builds") if c.key["arch"] == "x86_64"]
    after = said[0].after or {}
    assert {k: v for k, v in from_json.items() if k in after} == dict(after)
    assert after["size_max_bytes"]


def test_a_row_that_the_catalog_would_not_take_is_told_and_not_kept(
    catalog: Catalog, index: SimpleIndex, tmp_path: Path
) -> None:
    index.wheels.append(make_wheel("jaxlib-0.92.0-cp312-cp312-linux_x86_64.whl"))  # no glibc
    found = run(catalog, index, "jax")
    told = [c for c in changes(found, "new", "jax_releases") if c.key["version"] == "0.92.0"]
    assert "not kept: " in told[0].sentence
    assert all(r["version"] != "0.92.0" for r in found.rows["jax_releases"])
    laid_over(tmp_path, found)


def test_a_copy_grows_and_forgets_sources_that_no_row_names(
    catalog: Catalog, index: SimpleIndex
) -> None:
    first = to_overlay(run(catalog, index, "torch"), None)
    index.wheels = [dataclasses.replace(w, yanked="torch-9" in w.name) for w in index.wheels]
    later = run(catalog, index, "torch", today="2030-06-06")
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


def test_a_partly_newer_row_of_a_copy_names_both_sources(
    catalog: Catalog, index: SimpleIndex
) -> None:
    first = run(catalog, index, "torch")
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
    found = run(catalog, index, *DEFAULT, index=url)
    assert found.failures == ()
    text = json.dumps([dict(found.sources), refreshed_to_json(found)]) + describe_changes(found)
    assert index.address in text
    assert "canary" not in text


# ---- how it fails ----


def test_offline_says_so_at_once(catalog: Catalog, index: SimpleIndex) -> None:
    with pytest.raises(RefreshOfflineError) as caught:
        run(catalog, index, offline=True)
    assert caught.value.exit_code == Exit.UNREACHABLE
    assert index.asked == []


def test_a_source_that_is_none_is_refused(catalog: Catalog) -> None:
    with pytest.raises(UnknownSourceError) as caught:
        refresh(catalog, sources=("torch", "nosuch"), today=TODAY)
    assert caught.value.exit_code == Exit.USAGE
    assert "pytorch-index" in caught.value.fix


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        pytest.param((), SOURCES, id="none named: all"),
        pytest.param(("registry", "pytorch"), SOURCES[6:9], id="groups, in their own order"),
        pytest.param(("nvidia",), SOURCES[9:], id="the manifests"),
        pytest.param(("nccl", "pypi"), SOURCES[:6], id="a group and a part of it"),
        pytest.param(("nccl", "torch"), ("torch", "nccl"), id="single ones"),
    ],
)
def test_sources_are_named_one_by_one_or_by_whom_they_ask(
    sources: Sequence[str], names: Sequence[str]
) -> None:
    assert _chosen(sources) == tuple(names)


def test_a_source_that_fails_does_not_stop_the_others(catalog: Catalog, index: SimpleIndex) -> None:
    index.faults["/simple/tensorflow/"] = Fault(status=500)
    index.faults["/v2/nvidia/cuda/tags/list"] = Fault(status=500)
    found = run(catalog, index)
    assert {f.name: f.partial for f in found.failures} == {
        "tensorflow": False,
        "cuda-images": False,
    }
    assert all(f.fix for f in found.failures)
    assert found.exit_code == Exit.DONE
    assert {"releases", "jax_releases", "cudnn", "python_images"} <= found.rows.keys()


def test_where_every_source_fails_the_exit_says_so(catalog: Catalog, index: SimpleIndex) -> None:
    index.faults["/simple/torch/"] = Fault(status=500)
    found = run(catalog, index, "torch")
    assert (found.exit_code, found.rows) == (Exit.UNREACHABLE, {})
    assert "no source could be read" in describe_changes(found)


def test_a_damaged_metadata_costs_a_second_try_and_not_the_release(
    catalog: Catalog, index: SimpleIndex
) -> None:
    name = "torch-9.1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    index.faults[f"/files/{name}.metadata"] = Fault(body=b"changed")
    found = run(catalog, index, "torch")
    assert found.failures == ()
    assert row(found, "builds", version="9.1.0", arch="x86_64")["tag"] == "cu130"


def test_an_unreadable_build_is_a_partial_failure(catalog: Catalog, index: SimpleIndex) -> None:
    for wheel in index.wheels:
        if "9.1.0" in wheel.name and "x86_64" in wheel.name and wheel.project == "torch":
            index.faults[f"/files/{wheel.name}.metadata"] = Fault(body=b"changed")
    found = run(catalog, index, "torch")
    assert [(f.name, f.partial, "the index says" in f.message) for f in found.failures] == [
        ("torch", True, True)
    ]
    assert {r["arch"] for r in found.rows["builds"] if r["version"] == "9.1.0"} == {"aarch64"}


def test_an_index_without_the_project_fails_that_source(
    catalog: Catalog, index: SimpleIndex
) -> None:
    index.wheels = [w for w in index.wheels if w.project not in {"torch", "nvidia-cudnn-cu12"}]
    found = run(catalog, index, "torch", "cudnn", "nccl")
    assert {f.name for f in found.failures} == {"torch", "cudnn"}


@pytest.mark.parametrize("path", ["/simple/torch/", "/whl/cu126/torch/"])
def test_a_silent_server_costs_seconds(catalog: Catalog, index: SimpleIndex, path: str) -> None:
    for wheel in index.wheels:
        index.faults[f"/simple/{wheel.project}/"] = Fault(hang=True)
    for tag in index.tags:
        index.faults[f"/whl/{tag}/torch/"] = Fault(hang=True)
    index.faults["/whl/"] = Fault(hang=True)
    source = "torch" if "simple" in path else "pytorch-index"
    started = time.monotonic()
    found = run(catalog, index, source)
    assert time.monotonic() - started < 60
    assert "did not answer in time" in found.failures[0].message


def test_the_whole_is_not_waited_for_beyond_its_limit(catalog: Catalog, index: SimpleIndex) -> None:
    index.faults["/simple/torch/"] = Fault(drip=True)
    limits = dataclasses.replace(FAST, total_s=0.5, request_s=60.0)
    started = time.monotonic()
    found = run(catalog, index, "torch", limits=limits)
    assert time.monotonic() - started < 40
    assert found.exit_code == Exit.UNREACHABLE


def test_progress_hears_every_request(catalog: Catalog, index: SimpleIndex) -> None:
    heard: list[str] = []
    found = run(catalog, index, *DEFAULT, on_progress=heard.append)
    assert sorted(line.partition(": ")[0] for line in heard) == [a.url for a in found.asked]
    assert all(": HTTP " in line for line in heard)


def test_an_address_that_cannot_be_is_a_failure_of_its_sources(
    catalog: Catalog, index: SimpleIndex
) -> None:
    found = run(
        catalog,
        index,
        "torch",
        "pytorch-index",
        "python-images",
        index="file:///srv",
        pytorch_index="http://[",
        registry="UPPER/case",
    )
    assert {f.name for f in found.failures} == {"torch", "pytorch-index", "python-images"}
    assert found.exit_code == Exit.UNREACHABLE


# ---- words ----


def test_the_words_fit_a_terminal(catalog: Catalog, index: SimpleIndex) -> None:
    index.faults["/simple/tensorflow/"] = Fault(status=500)
    text = describe_changes(run(catalog, index))
    assert max(len(line) for line in text.splitlines()) <= 80
    flat = " ".join(text.split())
    assert "PyTorch 9.1.0 is new at" in flat
    assert "not read tensorflow: " in flat
    assert textwrap.dedent(text) == text


def test_the_json_is_whole_and_can_be_written(catalog: Catalog, index: SimpleIndex) -> None:
    found = run(catalog, index)
    data = json.loads(json.dumps(refreshed_to_json(found)))
    assert data["counts"]["new"] == len(changes(found, "new"))
    assert data["asked"]["bytes"] > 1000
    assert {"table", "key", "kind", "before", "after", "sentence"} == data["changes"][0].keys()


def test_every_failure_has_a_code_and_a_fix() -> None:
    for kind in (RefreshOfflineError, UnknownSourceError):
        assert issubclass(kind, Failure)
        assert kind.code.replace("-", "").isalpha()
