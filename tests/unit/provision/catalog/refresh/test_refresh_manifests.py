"""A refresh from NVIDIA's manifests, served on this machine in the shape that they have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.catalog.catalog import Catalog
from provision.catalog.loading import load
from provision.catalog.overlay import read_overlay, write_overlay
from provision.catalog.refresh import (
    GROUPS,
    Refreshed,
    describe_changes,
    refresh,
    refreshed_to_json,
    to_overlay,
)
from provision.catalog.refresh.manifests import (
    ManifestError,
    ReleaseManifest,
    parse_labels,
    parse_manifest,
)
from provision.catalog.refresh.model import FetchLimits
from provision.catalog.refresh.redist import redist_template
from provision.errors import Exit
from tests.kit.manifest_maker import (
    LINUX,
    component,
    cuda,
    cudnn,
    directory,
    driver,
    manifest,
)
from tests.kit.simple_index import Fault, SimpleIndex, make_wheel, small_catalog

TODAY = "2030-05-05"
FAST = FetchLimits(
    connect_s=2.0, read_s=1.0, request_s=3.0, total_s=20.0, pause_s=0.3, backoff_s=0.01
)
URL = "https://nvidia.example/compute/cuda/redist/"


def branch(number: int, max_cuda: str, **more: object) -> dict[str, object]:
    return {
        "branch": number, "max_cuda": max_cuda, "first_version": None, "type": None,
        "end_of_life": None, "dropped_below": "7.5", "adds": [], "dropped_source": "made-up",
        **more,
    }  # fmt: skip


def toolkit(full: str, update: int, **more: object) -> dict[str, object]:
    return {
        "cuda": ".".join(full.split(".")[:2]), "full": full, "update": update, "driver": None,
        "minor_version_compatibility": True, "sm_targets": ["sm_75", "sm_90"], "on_pypi": True,
        "sm_source": "made-up", **more,
    }  # fmt: skip


BRANCHES = [
    branch(610, "13.3", latest_seen="610.43.02"),
    branch(615, "13.4", open_modules="required-from-blackwell", modules_source="made-up",
           latest_seen="615.71.09", latest_date="2026-09-09", latest_source="made-up"),
]  # fmt: skip
ONLY = {"open_modules": "only", "modules_source": "made-up"}
TOOLKITS = [
    toolkit("13.3.0", 0, driver="610.43.02", released="2026-06-01"),
    toolkit("13.4.1", 0, released="2026-09-09"),
    toolkit("13.4.2", 1),
]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return made(tmp_path)


@pytest.fixture
def server() -> Iterator[SimpleIndex]:
    wheels = [
        make_wheel("cuda_toolkit-13.4.2-py2.py3-none-any.whl"),
        make_wheel("cuda_toolkit-13.5.0-py2.py3-none-any.whl"),
    ]
    with SimpleIndex(wheels=wheels).serving() as running:
        yield running


def made(tmp_path: Path, *, branches: list[dict[str, object]] = BRANCHES) -> Catalog:
    return small_catalog(tmp_path / "data", branches=branches, toolkits=TOOLKITS, forward_compat=[])


def run(catalog: Catalog, at: SimpleIndex, *sources: str, **options: Any) -> Refreshed:
    given: dict[str, Any] = {
        "sources": sources or GROUPS["nvidia"],
        "index": at.url,
        "nvidia": at.nvidia,
        "today": TODAY,
        "limits": FAST,
        "env": {"PATH": "/nosuch"},
        **options,
    }
    return refresh(catalog, **given)


def drivers(at: SimpleIndex, *labels: tuple[str, bytes | None], **options: Any) -> None:
    at.pages |= directory("nvidia-driver", dict(labels), **options)


def only(found: Refreshed, table: str) -> Mapping[str, object]:
    (row,) = found.rows[table]
    return row


def sentences(found: Refreshed, kind: str) -> str:
    return " ".join(change.sentence for change in found.changes if change.kind == kind)


# ---- the page of a directory ----


def page(*anchors: str) -> bytes:
    return f"<html><body>{' '.join(anchors)}</body></html>".encode()


@pytest.mark.parametrize(
    ("body", "labels"),
    [
        pytest.param(
            page("<a href='redistrib_13.4.2.json'>x</a>", "<a href='redistrib_13.10.0.json'>x</a>"),
            ("13.4.2", "13.10.0"),
            id="releases in the order of their versions",
        ),
        pytest.param(
            page('<a href="redistrib_620.70.06.json">x</a>'),
            ("620.70.06",),
            id="a driver's zeros are kept",
        ),
        pytest.param(
            page("<a href='redistrib_9.1.json'>", "<a href='redistrib_9.1.0.json'>"),
            ("9.1",),
            id="one version under two names is one",
        ),
        pytest.param(
            page(
                "<a href='..'>", "<a href='cuda_nvcc/'>", "<a href='?C=M;O=D'>",
                "<a href='redistrib_13.5.0.json.asc'>", "<a href='redistrib_v2_13.5.0.json'>",
                "<a href='redistrib_latest.json'>", "<a href='redistrib_13.json'>",
                "<a href='redistrib_1.2.3.4.5.json'>", "<a href='redistrib_99999.0.0.json'>",
                "<a href='redistrib_13.5.0.json?sort=name'>", "<a href='REDISTRIB_13.5.0.json'>",
                "<a href='sub/redistrib_13.5.0.json'>", "<a href='../redistrib_13.5.0.json'>",
                "<a href='//other.example/compute/cuda/redist/redistrib_13.5.0.json'>",
                "<a href='http://nvidia.example/compute/cuda/redist/redistrib_13.5.0.json'>",
                "<a href='javascript:alert(1)'>", "<a href='http://[/redistrib_13.5.0.json'>",
                "<a>", "redistrib_13.5.0.json", "<!-- <a href='redistrib_13.5.0.json'> -->",
            ),
            (),
            id="signatures, other schemas, sort orders and other places are no releases",
        ),
        pytest.param(
            page(
                "<a href='/compute/cuda/redist/redistrib_13.5.0.json'>",
                f"<a href='{URL}redistrib_13.4.2.json#top'>", "<a href=redistrib%5F13.3.1.json>",
            ),
            ("13.3.1", "13.4.2", "13.5.0"),
            id="whole addresses, anchors and escapes are read",
        ),
        pytest.param(
            "<html><a href='redistrib_\u0661\u0663.5.0.json'></html>".encode(),
            (),
            id="foreign digits are no version",
        ),
        pytest.param(page(), (), id="a page without links has none"),
    ],
)  # fmt: skip
def test_a_directory_lists_releases(body: bytes, labels: tuple[str, ...]) -> None:
    assert parse_labels(body, "text/html", URL) == labels


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        pytest.param(b"<html><a href='redistrib_1.0.0.json'>", "text/html", "cut off", id="cut"),
        pytest.param(b"{}", "application/json", "without a list", id="JSON of something else"),
        pytest.param(b"%PDF", "application/pdf", "no page", id="another kind of file"),
    ],
)
def test_what_is_no_page_of_a_directory_is_refused(body: bytes, kind: str, why: str) -> None:
    with pytest.raises(ManifestError, match=why):
        parse_labels(body, kind, URL)


# ---- a manifest ----


def read(product: str, label: str, **components: object) -> ReleaseManifest:
    return parse_manifest(manifest(product, label, "2026-11-04", **components), product, label)


def test_a_drivers_manifest_names_the_cuda_of_its_compat_package() -> None:
    found = parse_manifest(driver("620.70.06", "2026-11-04", "13.5"), "nvidia-driver", "620.70.06")
    assert (found.label, found.released) == ("620.70.06", "2026-11-04")
    assert found.version_of("nvidia_driver") == "620.70.06"
    assert found.components["cuda_compat"].cudas == ("13.5",)
    assert found.components["cuda_compat"].archs == ("x86_64", "aarch64")
    assert found.components["libnvidia_nscq"].archs == ("x86_64",)


def test_variants_are_read_from_the_platforms_where_no_list_names_them() -> None:
    entry = component("cudnn", "9.28.1.4", cudas=["13", "12"])
    del entry["cuda_variant"]
    assert read("cudnn", "9.28.1", cudnn=entry).components["cudnn"].cudas == ("12", "13")


def test_a_jetsons_archive_is_not_that_of_a_server() -> None:
    entry = component("nvidia_fs", "2.25.7", platforms=["linux-aarch64"])
    assert read("cuda", "12.9.2", nvidia_fs=entry).components["nvidia_fs"].archs == ()


@pytest.mark.parametrize(
    ("date", "day"),
    [
        pytest.param("2026-11-04", "2026-11-04", id="as it is today"),
        pytest.param("2026/11/04", "2026-11-04", id="with slashes"),
        pytest.param("20261104", "2026-11-04", id="without anything between"),
        pytest.param("2026-11-04T10:00:00Z", "2026-11-04", id="with a time"),
        pytest.param("2026-11/04", None, id="two signs mixed"),
        pytest.param("04/11/2026", None, id="a day that could be a month"),
        pytest.param("Nov 4, 2026", None, id="a month's name"),
        pytest.param("2026-02-30", None, id="a day that is not in the calendar"),
        pytest.param("0000-01-01", None, id="a year that is not"),
        pytest.param("\u0662026-11-04", None, id="foreign digits"),
        pytest.param(20261104, None, id="a number"),
        pytest.param(None, None, id="none at all"),
        pytest.param(["2026-11-04"], None, id="a list"),
    ],
)
def test_a_day_is_read_only_where_it_can_mean_one(date: object, day: str | None) -> None:
    body = manifest("cuda", "13.5.0", date, cuda_nvcc=component("cuda_nvcc", "13.5.37"))
    assert parse_manifest(body, "cuda", "13.5.0").released == day


@pytest.mark.parametrize(
    ("changes", "version", "archs", "cudas"),
    [
        pytest.param({"version": 13}, None, ("x86_64", "aarch64"), (), id="a version is a number"),
        pytest.param({"version": "new"}, None, ("x86_64", "aarch64"), (), id="or a word"),
        pytest.param(
            {"version": "1" * 5000}, None, ("x86_64", "aarch64"), (), id="or without an end"
        ),
        pytest.param({"linux-sbsa": "x"}, "1.0", ("x86_64",), (), id="a platform is a text"),
        pytest.param({"linux-sbsa": None}, "1.0", ("x86_64",), (), id="or null"),
        pytest.param(
            {"cuda_variant": "13"}, "1.0", ("x86_64", "aarch64"), (), id="variants are no list"
        ),
        pytest.param(
            {"cuda_variant": [13, None, "any", "13.5", "1" * 400]},
            "1.0", ("x86_64", "aarch64"), ("13.5",), id="some variants are none",
        ),
        pytest.param(
            {"colour": {"relative_path": "x"}, "windows-arm64": {}},
            "1.0", ("x86_64", "aarch64"), (), id="what nobody knows is passed over",
        ),
    ],
)  # fmt: skip
def test_what_is_odd_in_a_component_is_not_read(
    changes: dict[str, object], version: str | None, archs: tuple[str, ...], cudas: tuple[str, ...]
) -> None:
    entry = {**component("thing", "1.0"), **changes}
    found = read("cuda", "13.5.0", thing=entry, more=[], other="text", third=None)
    assert list(found.components) == ["thing"]
    thing = found.components["thing"]
    assert (thing.version, thing.archs, thing.cudas) == (version, archs, cudas)


NVCC = {"name": "CUDA NVCC", "version": "13.5.37"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(b"", "not complete JSON", id="empty"),
        pytest.param(b'{"release_date": "2026-1', "not complete JSON", id="cut"),
        pytest.param(b"<html></html>", "not complete JSON", id="a page"),
        pytest.param(b"\xff\xfe\x00", "not complete JSON", id="no text"),
        pytest.param(b"[" * 200_000, "not complete JSON", id="nested without an end"),
        pytest.param(b"[]", "no object", id="a list"),
        pytest.param(b"null", "no object", id="null"),
        pytest.param(b"{}", "names no component", id="an empty object"),
        pytest.param(
            json.dumps({"release_label": "13.4.2", "cuda_nvcc": NVCC}).encode(),
            "it says that it is '13.4.2'", id="another release",
        ),
        pytest.param(
            json.dumps({"release_label": 13, "cuda_nvcc": NVCC}).encode(),
            "it says that it is '13'", id="a label that is a number",
        ),
        pytest.param(
            json.dumps({"release_product": "cudnn", "cuda_nvcc": NVCC}).encode(),
            "it says that it is of 'cudnn'", id="another product",
        ),
        pytest.param(
            json.dumps({"release_product": ["cuda"], "cuda_nvcc": NVCC}).encode(),
            "it says that it is of", id="a product that is a list",
        ),
        pytest.param(
            json.dumps({"release_label": "13.5.0", "cuda_nvcc": "13.5.37"}).encode(),
            "names no component", id="components that are texts",
        ),
    ],
)  # fmt: skip
def test_what_is_no_manifest_of_the_release_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(ManifestError, match=why):
        parse_manifest(body, "cuda", "13.5.0")


def test_what_a_manifest_does_not_say_is_not_needed() -> None:
    body = json.dumps({"cuda_nvcc": NVCC}).encode()
    assert parse_manifest(body, "cuda", "13.5.0").released is None


@pytest.mark.parametrize(
    ("override", "template"),
    [
        pytest.param(None, "https://n.example/compute/{product}/redist/", id="none: the shipped"),
        pytest.param(
            "http://m/n/", "http://m/n/{product}/redist/", id="what is above the products"
        ),
        pytest.param("http://m/{product}/r", "http://m/{product}/r", id="a whole template"),
    ],
)
def test_a_mirror_is_named_by_its_address(override: str | None, template: str) -> None:
    assert redist_template("https://n.example/compute/{product}/redist/", override) == template


# ---- driver branches ----


def test_a_newer_driver_of_a_known_branch_brings_its_day_and_its_source(
    catalog: Catalog, server: SimpleIndex, tmp_path: Path
) -> None:
    drivers(
        server,
        ("610.43.02", None),
        ("610.57.04", driver("610.57.04", "2026-08-03", "13.3")),
        ("615.71.09", None),
    )
    found = run(catalog, server, "driver-manifests")
    assert found.failures == ()
    row = only(found, "branches")
    assert (row["branch"], row["latest_seen"], row["latest_date"]) == (
        610, "610.57.04", "2026-08-03",
    )  # fmt: skip
    assert (
        "newest version was 610.43.02, is 610.57.04; its day was not read, is 2026-08-03"
        in sentences(found, "changed")
    )
    path = tmp_path / "copy" / "catalog.json"
    write_overlay(path, to_overlay(found, None))
    after = load(tmp_path / "data", overlay=read_overlay(path)).branch_of("610.57.04")
    assert after is not None
    assert (after.latest_seen, after.latest_date, after.max_cuda) == (
        "610.57.04", "2026-08-03", "13.3",
    )  # fmt: skip
    assert "redistrib_610.57.04.json of nvidia-driver" in str(after.latest_source)
    again = run(load(tmp_path / "data", overlay=read_overlay(path)), server, "driver-manifests")
    assert (again.changes, again.rows) == ((), {})
    assert server.paths()[-1].endswith("/redist/")


@pytest.mark.parametrize(
    ("branches", "modules"),
    [
        pytest.param(BRANCHES, None, id="whether proprietary modules stay is not known"),
        pytest.param([BRANCHES[0], branch(615, "13.4", **ONLY)], "only", id="gone they stay gone"),
    ],
)
def test_a_new_branch_is_the_one_before_it_with_its_own_cuda(
    tmp_path: Path,
    server: SimpleIndex,
    branches: list[dict[str, object]],
    modules: str | None,
) -> None:
    catalog = made(tmp_path, branches=branches)
    drivers(
        server,
        ("620.40.01", driver("620.40.01", "2026-10-01", "13.5")),
        ("620.70.06", driver("620.70.06", "2026-11-04", "13.5")),
        ("418.10", driver("418.10", "2019-02-04")),
    )
    found = run(catalog, server, "driver-manifests")
    assert found.failures == ()
    row = only(found, "branches")
    assert (row["branch"], row["max_cuda"], row["latest_seen"], row["latest_date"]) == (
        620, "13.5", "620.70.06", "2026-11-04",
    )  # fmt: skip
    assert (row["dropped_below"], row["adds"], row["adds_confidence"]) == ("7.5", [], "assumed")
    assert row.get("open_modules") == modules
    compat = only(found, "forward_compat")
    assert (compat["package"], compat["built_from_branch"]) == ("cuda-compat-13-5", 620)
    path = tmp_path / "copy" / "catalog.json"
    write_overlay(path, to_overlay(found, None))
    after = load(tmp_path / "data", overlay=read_overlay(path))
    assert [r.branch for r in after.branches] == [610, 615, 620]
    assert after.branches[-1].dropped_source.startswith("carried over from branch 615: made up")
    package = after.forward_compat("13.5")
    assert package is not None
    assert package.official_base_branches is None
    assert "620.40.01" not in " ".join(server.paths())
    assert "Driver branch 620 is new at" in sentences(found, "new")
    assert "CUDA 13.5, newest version 620.70.06" in sentences(found, "new")


@pytest.mark.parametrize(
    ("label", "body", "kind", "words"),
    [
        pytest.param(
            "620.70.06", driver("620.70.06", "2026-11-04"), "new",
            "its manifest does not name the CUDA that it is for", id="a manifest without a compat",
        ),
        pytest.param(
            "620.70.06",
            driver("620.70.06", "2026-11-04",
                   cuda_compat=component("cuda_compat", "620.70.06", cudas=["13"])),
            "new", "does not name the CUDA that it is for", id="a compat for a major alone",
        ),
        pytest.param(
            "620.70.06", driver("620.70.06", "2026-11-04", "13.1"), "conflict",
            "would be for CUDA 13.1, out of the order", id="a CUDA older than the one before",
        ),
        pytest.param(
            "612.10.01", driver("612.10.01", "2026-11-04", "13.5"), "conflict",
            "would be for CUDA 13.5, out of the order", id="a CUDA newer than the one behind",
        ),
        pytest.param(
            "615.80.01", driver("615.80.01", "2026-01-01", "13.4"), "conflict",
            "615.80.01 is newer than 615.71.09, and 127", id="a newer version of an older day",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_a_row_is_told(
    catalog: Catalog, server: SimpleIndex, label: str, body: bytes, kind: str, words: str
) -> None:
    drivers(server, (label, body))
    found = run(catalog, server, "driver-manifests")
    assert found.failures == ()
    assert found.rows == {}
    assert words in sentences(found, kind)


@pytest.mark.parametrize(
    "label", ["615.71.09", "615.71.8", "610.43.02", "610.1"], ids=lambda label: f"{label} is old"
)
def test_a_version_that_goes_backwards_changes_nothing(
    catalog: Catalog, server: SimpleIndex, label: str
) -> None:
    drivers(server, (label, driver(label, None, "13.3")))
    found = run(catalog, server, "driver-manifests")
    assert (found.failures, found.rows) == ((), {})


def test_a_day_that_is_still_to_come_is_not_kept(catalog: Catalog, server: SimpleIndex) -> None:
    drivers(server, ("615.80.01", driver("615.80.01", "2030-05-06", "13.4")))
    found = run(catalog, server, "driver-manifests")
    row = only(found, "branches")
    assert row["latest_seen"] == "615.80.01"
    assert "latest_date" not in row
    assert "redistrib_615.80.01.json of nvidia-driver is dated 2030-05-06." in found.notes


def test_a_manifest_that_holds_another_driver_is_left_aside(
    catalog: Catalog, server: SimpleIndex
) -> None:
    other = component("nvidia_driver", "615.71.09")
    drivers(server, ("620.70.06", driver("620.70.06", "2026-11-04", "13.5", nvidia_driver=other)))
    found = run(catalog, server, "driver-manifests")
    (failure,) = found.failures
    assert failure.partial
    assert "redistrib_620.70.06.json" in failure.message
    assert "holds driver 615.71.09" in failure.message
    assert found.rows == {}


# ---- toolkits ----


def test_a_known_toolkit_is_filled_and_not_asked_for_again(
    catalog: Catalog, server: SimpleIndex, tmp_path: Path
) -> None:
    server.pages |= directory(
        "cuda",
        {
            "9.2.148": cuda("9.2.148", "2018-05-01"),
            "13.3.0": None,
            "13.4.1": None,
            "13.4.2": cuda("13.4.2", "2026-09-16"),
        },
    )
    found = run(catalog, server, "cuda-manifests")
    assert found.failures == ()
    row = only(found, "toolkits")
    assert {name: row[name] for name in ("full", "released")} == {
        "full": "13.4.2", "released": "2026-09-16",
    }  # fmt: skip
    path = tmp_path / "copy" / "catalog.json"
    write_overlay(path, to_overlay(found, None))
    after = load(tmp_path / "data", overlay=read_overlay(path))
    kept = after.toolkit("13.4", 1)
    assert kept is not None
    assert (kept.released, kept.driver, kept.on_pypi) == ("2026-09-16", None, True)
    assert run(after, server, "cuda-manifests").rows == {}


def test_a_driver_that_contradicts_the_catalog_is_told_and_not_written(
    tmp_path: Path, server: SimpleIndex
) -> None:
    tables = {"toolkits": [toolkit("13.3.0", 0, driver="610.43.02")]}
    catalog = small_catalog(tmp_path / "data", **tables)
    server.pages |= directory("cuda", {"13.3.0": cuda("13.3.0", "2026-06-01", "610.50.01")})
    found = run(catalog, server, "cuda-manifests")
    assert "driver was 610.43.02, is 610.50.01" in sentences(found, "conflict")
    row = only(found, "toolkits")
    assert "driver" not in row
    assert row["released"] == "2026-06-01"


@pytest.mark.parametrize(
    ("sources", "on_pypi"),
    [
        pytest.param(("cuda-manifests",), False, id="the manifests alone"),
        pytest.param(("toolkits", "cuda-manifests"), True, id="and the package index"),
    ],
)
def test_a_new_toolkit_compiles_for_what_the_one_before_it_does(
    tmp_path: Path,
    catalog: Catalog,
    server: SimpleIndex,
    sources: tuple[str, ...],
    on_pypi: bool,  # noqa: FBT001
) -> None:
    server.pages |= directory(
        "cuda",
        {"13.5.1": cuda("13.5.1", "2026-12-01"), "13.5.0": cuda("13.5.0", "2026-11-04")},
    )
    found = run(catalog, server, *sources)
    assert found.failures == ()
    path = tmp_path / "copy" / "catalog.json"
    write_overlay(path, to_overlay(found, None))
    after = load(tmp_path / "data", overlay=read_overlay(path))
    first, second = after.toolkits_of("13.5")
    assert (first.full, first.update, first.released) == ("13.5.0", 0, "2026-11-04")
    assert (second.full, second.update, second.on_pypi) == ("13.5.1", 1, False)
    assert first.on_pypi is on_pypi
    assert first.sm_targets == ((7, 5), (9, 0))
    assert first.sm_source == "carried over from 13.4.2: made up for a test"
    assert first.confidence == "assumed"
    assert ("page of cuda-toolkit" in first.source) is on_pypi
    assert "redistrib_*.json of cuda" in first.source


def test_a_toolkit_of_the_index_alone_is_told(catalog: Catalog, server: SimpleIndex) -> None:
    found = run(catalog, server, "toolkits")
    assert "has cuda-toolkit 13.5.0, which the catalog does not know" in sentences(found, "new")
    assert found.rows == {}


@pytest.mark.parametrize(
    "label", ["14.0.0", "13.4.0"], ids=["a new major", "one before an update that is known"]
)
def test_a_toolkit_with_nothing_to_go_by_is_told(
    catalog: Catalog, server: SimpleIndex, label: str
) -> None:
    server.pages |= directory("cuda", {label: cuda(label, "2027-01-01")})
    found = run(catalog, server, "cuda-manifests")
    assert f"CUDA {label}: " in sentences(found, "new")
    assert found.rows == {}


# ---- cuDNN ----


def test_a_cudnn_that_no_index_has_is_told_and_not_kept(
    catalog: Catalog, server: SimpleIndex
) -> None:
    server.pages |= directory(
        "cudnn",
        {
            "9.90.0": None,
            "9.91.0": cudnn("9.91.0", "9.91.0.1", "2030-02-01", ["12", "13"]),
            "9.92.0": cudnn("9.92.0", "9.92.0.7", "2030-03-01", ["13"]),
        },
    )
    wheels = [f"nvidia_cudnn_cu12-{v}-py3-none-manylinux_2_27_x86_64.whl" for v in (
        "9.90.0.1", "9.91.0.1")]  # fmt: skip
    server.wheels += [make_wheel(name) for name in wheels]
    found = run(catalog, server, "cudnn", "cudnn-manifests")
    assert found.failures == ()
    told = sentences(found, "new")
    assert "cuDNN 9.91.0.1 for CUDA 12 is new at" in told
    assert "cuDNN 9.91.0.1 for CUDA 13: 127" in told
    assert "cuDNN 9.92.0.7 for CUDA 13: 127" in told
    assert "released it on 2030-03-01, and no package index that was asked has it" in told
    assert [row["version"] for row in found.rows["cudnn"]] == ["9.91.0.1"]


# ---- faults on the way ----


def fault(kind: str) -> Fault:
    return {
        "there is none": Fault(status=404),
        "the server is in trouble": Fault(status=500),
        "it is cut": Fault(cut=True),
        "it never ends": Fault(drip=True),
        "it is empty": Fault(body=b""),
        "it is a login page": Fault(body=b"<html>log in</html>", kind="text/html"),
        "it is a list": Fault(body=b"[]"),
        "it is of another release": Fault(body=driver("615.99.99", "2027-01-01", "13.4")),
        "it is of another product": Fault(body=cuda("615.80.01", "2027-01-01")),
        "it redirects to itself": Fault(
            status=302, headers={"Location": "redistrib_615.80.01.json"}
        ),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "there is none",
        "the server is in trouble",
        "it is cut",
        "it never ends",
        "it is empty",
        "it is a login page",
        "it is a list",
        "it is of another release",
        "it is of another product",
        "it redirects to itself",
    ],
)
def test_a_manifest_that_cannot_be_read_costs_nothing_but_its_row(
    catalog: Catalog, server: SimpleIndex, kind: str
) -> None:
    name = "redistrib_615.80.01.json"
    drivers(
        server,
        ("610.57.04", driver("610.57.04", "2026-08-03", "13.3")),
        ("615.80.01", driver("615.80.01", "2027-01-01", "13.4")),
        ("620.70.06", driver("620.70.06", "2026-11-04", "13.5")),
    )
    server.faults[f"/compute/nvidia-driver/redist/{name}"] = fault(kind)
    found = run(catalog, server, "driver-manifests")
    assert [row["branch"] for row in found.rows["branches"]] == [610, 620]
    (failure,) = found.failures
    assert (failure.name, failure.partial) == ("driver-manifests", True)
    assert "127.0.0.1" in failure.message
    assert "--nvidia" in failure.fix
    assert found.exit_code == Exit.DONE
    assert "not read driver-manifests, in part: " in " ".join(describe_changes(found).split())
    json.dumps(refreshed_to_json(found))


def test_a_huge_manifest_is_not_read_to_its_end(catalog: Catalog, server: SimpleIndex) -> None:
    huge = driver("620.70.06", "2026-11-04", "13.5", padding="x" * 70_000)
    drivers(
        server,
        ("610.57.04", driver("610.57.04", "2026-08-03", "13.3")),
        ("620.70.06", huge),
    )
    limits = FetchLimits(metadata_bytes=60_000)
    found = run(catalog, server, "driver-manifests", limits=limits)
    assert "larger than 60000 bytes" in found.failures[0].message
    assert only(found, "branches")["branch"] == 610


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        pytest.param(Fault(status=404), "There is no http://127", id="there is none"),
        pytest.param(Fault(status=403), "without another login", id="it is closed"),
        pytest.param(Fault(body=b"<html><body>cut"), "cut off", id="it is cut"),
        pytest.param(Fault(body=b"<html></html>"), "lists no redistrib_", id="it lists nothing"),
        pytest.param(
            Fault(body=b"{}", kind="application/json"), "does not list manifests", id="it is JSON"
        ),
    ],
)
def test_a_directory_that_cannot_be_read_fails_its_source_alone(
    catalog: Catalog, server: SimpleIndex, broken: Fault, why: str
) -> None:
    drivers(server, ("620.70.06", driver("620.70.06", "2026-11-04", "13.5")))
    server.pages |= directory("cuda", {"13.4.2": cuda("13.4.2", "2026-09-16")})
    server.pages |= directory("cudnn", {"9.91.0": cudnn("9.91.0", "9.91.0.1", None, ["13"])})
    server.faults["/compute/nvidia-driver/redist/"] = broken
    found = run(catalog, server)
    (failure,) = found.failures
    assert (failure.name, failure.partial) == ("driver-manifests", False)
    assert why in failure.message
    assert only(found, "toolkits")["full"] == "13.4.2"
    assert "cuDNN 9.91.0.1 for CUDA 13" in sentences(found, "new")
    assert found.exit_code == Exit.DONE


@pytest.mark.parametrize(
    "address",
    ["http://[", "file:///srv/{product}", "nvidia.example", "http://127.0.0.1:9/compute"],
    ids=["no address", "not on the network", "a bare name", "nobody there"],
)
def test_an_address_that_leads_nowhere_is_a_failure_with_a_fix(
    catalog: Catalog, server: SimpleIndex, address: str
) -> None:
    found = run(catalog, server, nvidia=address)
    assert {failure.name for failure in found.failures} == set(GROUPS["nvidia"])
    assert all(failure.fix for failure in found.failures)
    assert found.exit_code == Exit.UNREACHABLE


def test_a_server_that_nobody_reaches_is_named_once(catalog: Catalog, server: SimpleIndex) -> None:
    found = run(catalog, server, nvidia="http://127.0.0.1:9/compute")
    text = " ".join(describe_changes(found).split())
    assert text.count("not read") == text.count("--nvidia URL") == 1
    assert f"not read {', '.join(GROUPS['nvidia'])}: " in text


def test_a_login_in_the_address_is_sent_and_never_shown(
    catalog: Catalog, server: SimpleIndex
) -> None:
    drivers(server, ("620.70.06", driver("620.70.06", "2026-11-04", "13.5")))
    server.login = "ann:secret"
    address = server.nvidia.replace("http://", "http://ann:secret@")
    found = run(catalog, server, "driver-manifests", nvidia=address)
    assert found.failures == ()
    assert "secret" not in json.dumps(refreshed_to_json(found))
    assert "secret" not in json.dumps({k: list(v) for k, v in found.rows.items()})
    assert "secret" not in json.dumps(dict(found.sources))


def test_many_manifests_are_read_over_several_refreshes(
    catalog: Catalog, server: SimpleIndex
) -> None:
    labels = [f"13.{minor}.0" for minor in range(100, 230)]
    server.pages |= directory("cuda", {label: cuda(label, "2027-01-01") for label in labels})
    found = run(catalog, server, "cuda-manifests", limits=FetchLimits())
    assert found.failures == ()
    assert [row["full"] for row in found.rows["toolkits"]] == labels[-120:]
    assert "130 manifests of cuda to read; the newest 120 were read" in found.notes[0]


# ---- platforms ----


def test_platforms_of_the_maker_are_those_that_are_read() -> None:
    assert read("cuda", "1.0.0", thing=component("thing", "1.0", platforms=LINUX)).components[
        "thing"
    ].archs == ("x86_64", "aarch64")
