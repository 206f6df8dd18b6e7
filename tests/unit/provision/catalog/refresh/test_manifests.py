"""A refresh from NVIDIA's manifests, served on this machine in the shape that they have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from provision.catalog.catalog import Catalog
from provision.catalog.refresh import Refreshed
from provision.catalog.refresh.manifests import (
    ManifestError,
    ReleaseManifest,
    parse_labels,
    parse_manifest,
)
from provision.errors import Exit
from tests.kit.cases import cases
from tests.kit.manifest_maker import component, cuda, directory, driver, manifest
from tests.kit.simple_index import (
    Fault,
    SimpleIndex,
    laid_over,
    make_wheel,
    refreshed,
    small_catalog,
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


ONLY = {"open_modules": "only", "modules_source": "made-up"}
OPTIONAL = {"open_modules": "required-from-blackwell", "modules_source": "made-up"}
BRANCHES = [branch(610, "13.3"), branch(615, "13.4", **OPTIONAL)]
TOOLKITS = [toolkit("13.3.0", 0, driver="610.43.02"), toolkit("13.4.2", 1)]


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


def drivers(at: SimpleIndex, *labels: tuple[str, bytes | None]) -> None:
    at.pages |= directory("nvidia-driver", dict(labels))


def only(found: Refreshed, table: str) -> Mapping[str, object]:
    (row,) = found.rows[table]
    return row


# ---- the page of a directory ----


def page(*anchors: str) -> bytes:
    return f"<html><body>{' '.join(anchors)}</body></html>".encode()


@cases(
    "body labels",
    ("releases in the order of their versions", page("<a href='redistrib_13.4.2.json'>x</a>",
        "<a href='redistrib_13.10.0.json'>x</a>"), ("13.4.2", "13.10.0")),
    ("a driver's zeros are kept", page('<a href="redistrib_620.70.06.json">x</a>'), ("620.70.06",)),
    ("one version under two names is one", page("<a href='redistrib_9.1.json'>",
        "<a href='redistrib_9.1.0.json'>"), ("9.1",)),
    ("signatures, other schemas, sort orders and other places are no releases",
        page("<a href='..'>", "<a href='cuda_nvcc/'>", "<a href='?C=M;O=D'>",
        "<a href='redistrib_13.5.0.json.asc'>", "<a href='redistrib_v2_13.5.0.json'>",
        "<a href='redistrib_latest.json'>", "<a href='redistrib_13.json'>",
        "<a href='redistrib_1.2.3.4.5.json'>", "<a href='redistrib_99999.0.0.json'>",
        "<a href='redistrib_13.5.0.json?sort=name'>", "<a href='REDISTRIB_13.5.0.json'>",
        "<a href='sub/redistrib_13.5.0.json'>", "<a href='../redistrib_13.5.0.json'>",
        "<a href='//other.example/compute/cuda/redist/redistrib_13.5.0.json'>",
        "<a href='http://nvidia.example/compute/cuda/redist/redistrib_13.5.0.json'>",
        "<a href='javascript:alert(1)'>", "<a href='http://[/redistrib_13.5.0.json'>", "<a>",
        "redistrib_13.5.0.json", "<!-- <a href='redistrib_13.5.0.json'> -->",
        "<a href='redistrib_\u0661\u0663.5.0.json'>"), ()),
    ("whole addresses, anchors and escapes are read",
        page("<a href='/compute/cuda/redist/redistrib_13.5.0.json'>",
        f"<a href='{URL}redistrib_13.4.2.json#top'>", "<a href=redistrib%5F13.3.1.json>"),
        ("13.3.1", "13.4.2", "13.5.0")),
)  # fmt: skip
def test_a_directory_lists_releases(body: bytes, labels: tuple[str, ...]) -> None:
    assert parse_labels(body, "text/html", URL) == labels


def test_what_is_no_page_of_a_directory_is_refused() -> None:
    with pytest.raises(ManifestError, match="cut off"):
        parse_labels(b"<html><a href='redistrib_1.0.0.json'>", "text/html", URL)


# ---- a manifest ----


def read(product: str, label: str, **components: object) -> ReleaseManifest:
    return parse_manifest(manifest(product, label, "2026-11-04", **components), product, label)


def test_a_drivers_manifest_names_the_cuda_of_its_compat_package() -> None:
    found = parse_manifest(driver("620.70.06", "2026-11-04", "13.5"), "nvidia-driver", "620.70.06")
    assert found == ReleaseManifest(
        label="620.70.06", released="2026-11-04", driver="620.70.06", cudas=("13.5",)
    )


@cases(
    "changes cudas",
    ("the platforms name it, too", {"cuda_variant": None}, ("13.5",)),
    ("no platforms", {"linux-x86_64": "x", "linux-sbsa": None}, ("13.5",)),
    ("several", {"cuda_variant": ["13.10", "13.6"]}, ("13.5", "13.6", "13.10")),
    ("odd ones", {"cuda_variant": [13, None, "any", "13", "1" * 400]}, ("13.5",)),
)
def test_the_cuda_of_a_driver_is_read_wherever_it_is(
    changes: dict[str, object], cudas: tuple[str, ...]
) -> None:
    compat = {**component("cuda_compat", "1.0", cudas=["13.5"]), **changes}
    assert read("nvidia-driver", "1.0", cuda_compat=compat).cudas == cudas


def test_a_jetsons_archive_is_not_that_of_a_server() -> None:
    compat = component("cuda_compat", "1.0", platforms=["linux-aarch64"], cudas=["13.5"])
    del compat["cuda_variant"]
    assert read("nvidia-driver", "1.0", cuda_compat=compat).cudas == ()


@pytest.mark.parametrize("version", [13, "new", "1" * 5000, None, ["1.0"]])
def test_a_version_that_is_none_is_not_read(version: object) -> None:
    entry = {**component("nvidia_driver", "1.0"), "version": version}
    assert read("cuda", "13.5.0", nvidia_driver=entry, more=[], other="text").driver is None


@cases(
    "date day",
    ("as it is today", "2026-11-04", "2026-11-04"),
    ("a day that could be a month", "04/11/2026", None),
    ("a day that is not in the calendar", "2026-02-30", None),
    ("foreign digits", "\u0662026-11-04", None),
    ("a number", 20261104, None),
    ("none at all", None, None),
)
def test_a_day_is_read_only_where_it_can_mean_one(date: object, day: str | None) -> None:
    body = manifest("cuda", "13.5.0", date, cuda_nvcc=component("cuda_nvcc", "13.5.37"))
    assert parse_manifest(body, "cuda", "13.5.0").released == day


NVCC = {"name": "CUDA NVCC", "version": "13.5.37"}


@cases(
    "body why",
    ("cut", b'{"release_date": "2026-1', "not complete JSON"),
    ("no text", b"\xff\xfe\x00", "not complete JSON"),
    ("nested without an end", b"[" * 200_000, "not complete JSON"),
    ("a list", b"[]", "no object"),
    ("an empty object", b"{}", "names no component"),
    ("another release", json.dumps({"release_label": "13.4.2", "cuda_nvcc": NVCC}).encode(),
        "it says that it is '13.4.2'"),
    ("another product", json.dumps({"release_product": "cudnn", "cuda_nvcc": NVCC}).encode(),
        "it says that it is of 'cudnn'"),
    ("a product that is a list", json.dumps({"release_product": ["cuda"],
        "cuda_nvcc": NVCC}).encode(), "it says that it is of"),
    ("components that are texts", json.dumps({"release_label": "13.5.0",
        "cuda_nvcc": "13.5.37"}).encode(), "names no component"),
)  # fmt: skip
def test_what_is_no_manifest_of_the_release_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(ManifestError, match=why):
        parse_manifest(body, "cuda", "13.5.0")


# ---- driver branches ----


@cases(
    "branches modules",
    ("whether proprietary modules stay is not known", BRANCHES, None),
    ("gone they stay gone", [BRANCHES[0], branch(615, "13.4", **ONLY)], "only"),
)
def test_a_new_branch_is_the_one_before_it_with_its_own_cuda(
    tmp_path: Path, server: SimpleIndex, branches: list[dict[str, object]], modules: str | None
) -> None:
    drivers(
        server,
        ("615.80.01", None),
        ("620.40.01", None),
        ("620.70.06", driver("620.70.06", "2026-11-04", "13.5")),
    )
    found = refreshed(made(tmp_path, branches=branches), server, "driver-manifests")
    assert found.failures == ()
    row = only(found, "branches")
    assert (row["branch"], row["max_cuda"], row["latest_seen"], row["latest_date"]) == (
        620, "13.5", "620.70.06", "2026-11-04",
    )  # fmt: skip
    assert (row["dropped_below"], row["adds"], row["adds_confidence"]) == ("7.5", [], "assumed")
    assert row.get("open_modules") == modules
    after = laid_over(tmp_path, found)
    assert [r.branch for r in after.branches] == [610, 615, 620]
    assert after.branches[-1].dropped_source.startswith("carried over from branch 615: made up")
    package = after.forward_compat("13.5")
    assert package is not None
    assert (package.built_from_branch, package.official_base_branches) == (620, None)
    asked = [path for path in server.paths() if path.endswith(".json")]
    assert [path.rpartition("/")[2] for path in asked] == ["redistrib_620.70.06.json"]
    assert "CUDA 13.5, newest version 620.70.06" in found.changes[0].sentence
    assert refreshed(after, server, "driver-manifests").rows == {}


@cases(
    "label body words",
    ("a manifest without a compat", "620.70.06", driver("620.70.06", "2026-11-04"),
     "for which CUDA is not known"),
    ("a compat for a major alone", "620.70.06",
     driver("620.70.06", "2026-11-04", cuda_compat=component("cuda_compat", "620.70.06",
     cudas=["13"])), "for which CUDA is not known"),
    ("a CUDA older than the one before", "620.70.06", driver("620.70.06", "2026-11-04", "13.1"),
     "would be for CUDA 13.1, out of the order"),
    ("a CUDA newer than the one behind", "612.10.01", driver("612.10.01", "2026-11-04", "13.5"),
     "would be for CUDA 13.5, out of the order"),
)  # fmt: skip
def test_what_cannot_be_a_row_is_noted(
    catalog: Catalog, server: SimpleIndex, label: str, body: bytes, words: str
) -> None:
    drivers(server, (label, body))
    found = refreshed(catalog, server, "driver-manifests")
    assert (found.failures, found.rows) == ((), {})
    assert words in found.notes[0]


def test_a_day_that_is_still_to_come_is_not_kept(catalog: Catalog, server: SimpleIndex) -> None:
    drivers(server, ("620.80.01", driver("620.80.01", "2030-05-06", "13.5")))
    found = refreshed(catalog, server, "driver-manifests")
    assert "latest_date" not in only(found, "branches")
    assert "redistrib_620.80.01.json of nvidia-driver is dated 2030-05-06." in found.notes


def test_a_manifest_that_holds_another_driver_is_left_aside(
    catalog: Catalog, server: SimpleIndex
) -> None:
    other = component("nvidia_driver", "615.71.09")
    drivers(server, ("620.70.06", driver("620.70.06", "2026-11-04", "13.5", nvidia_driver=other)))
    found = refreshed(catalog, server, "driver-manifests")
    (failure,) = found.failures
    assert failure.partial
    assert "redistrib_620.70.06.json holds driver 615.71.09" in failure.message
    assert found.rows == {}


# ---- toolkits ----


@cases(
    "sources on_pypi",
    ("the manifests alone", ("cuda-manifests",), False),
    ("and the package index", ("toolkits", "cuda-manifests"), True),
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
        {
            "9.2.148": None,
            "13.4.2": None,
            "13.5.1": cuda("13.5.1", "2026-12-01"),
            "13.5.0": cuda("13.5.0", "2026-11-04"),
        },
    )
    found = refreshed(catalog, server, *sources)
    assert found.failures == ()
    after = laid_over(tmp_path, found)
    first, second = after.toolkits_of("13.5")
    assert (first.full, first.update, first.released) == ("13.5.0", 0, "2026-11-04")
    assert (second.full, second.update, second.on_pypi) == ("13.5.1", 1, False)
    assert first.on_pypi is on_pypi
    assert first.sm_targets == ((7, 5), (9, 0))
    assert first.sm_source == "carried over from 13.4.2: made up for a test"
    assert first.confidence == "assumed"
    assert ("page of cuda-toolkit" in first.source) is on_pypi
    assert "redistrib_*.json of cuda" in first.source
    assert refreshed(after, server, *sources).rows == {}


def test_a_toolkit_of_the_index_alone_is_shown_and_not_kept(
    catalog: Catalog, server: SimpleIndex
) -> None:
    found = refreshed(catalog, server, "toolkits")
    (change,) = found.changes
    assert change.sentence.startswith("CUDA 13.5.0 is new, and is not kept: cuda, driver, ")
    assert found.rows == {}


@pytest.mark.parametrize(
    "label", ["14.0.0", "13.4.0"], ids=["a new major", "one before an update that is known"]
)
def test_a_toolkit_like_none_before_it_is_shown_and_not_kept(
    catalog: Catalog, server: SimpleIndex, label: str
) -> None:
    server.pages |= directory("cuda", {label: cuda(label, "2027-01-01")})
    found = refreshed(catalog, server, "cuda-manifests")
    assert f"CUDA {label} is new, and is not kept: " in found.changes[0].sentence
    assert found.rows == {}


# ---- faults on the way ----


@cases(
    "fault",
    ("there is none", Fault(status=404)),
    ("a login page", Fault(body=b"<html>log in</html>", kind="text/html")),
    ("it is of another release", Fault(body=driver("615.9", None, "13.4"))),
    ("it is of another product", Fault(body=cuda("625.80.01", None))),
)
def test_a_manifest_that_cannot_be_read_costs_nothing_but_its_row(
    catalog: Catalog, server: SimpleIndex, fault: Fault
) -> None:
    drivers(
        server,
        ("620.70.06", driver("620.70.06", "2026-11-04", "13.5")),
        ("625.80.01", driver("625.80.01", "2027-01-01", "13.6")),
    )
    server.faults["/compute/nvidia-driver/redist/redistrib_625.80.01.json"] = fault
    found = refreshed(catalog, server, "driver-manifests")
    assert only(found, "branches")["branch"] == 620
    (failure,) = found.failures
    assert (failure.source, failure.partial) == ("driver-manifests", True)
    assert "127.0.0.1" in failure.message
    assert "--nvidia" in failure.fix
    assert found.exit_code == Exit.DONE


@cases(
    "broken why",
    ("it lists nothing", Fault(body=b"<html></html>"), "lists no redistrib_"),
    ("it is JSON", Fault(body=b"{}", kind="application/json"), "does not list manifests"),
)
def test_a_directory_that_cannot_be_read_fails_its_source_alone(
    catalog: Catalog, server: SimpleIndex, broken: Fault, why: str
) -> None:
    drivers(server, ("620.70.06", driver("620.70.06", "2026-11-04", "13.5")))
    server.pages |= directory("cuda", {"13.5.0": cuda("13.5.0", "2026-09-16")})
    server.faults["/compute/nvidia-driver/redist/"] = broken
    found = refreshed(catalog, server, "nvidia")
    (failure,) = found.failures
    assert (failure.source, failure.partial) == ("driver-manifests", False)
    assert why in failure.message
    assert only(found, "toolkits")["full"] == "13.5.0"
    assert found.exit_code == Exit.DONE
