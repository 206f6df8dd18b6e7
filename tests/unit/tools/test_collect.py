"""What the maintainers' tool reads of a small world, and the patch that it proposes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.catalog.catalog import Catalog
from provision.catalog.data_files import DATA
from provision.catalog.loading import load
from provision.catalog.refresh import Refreshed
from tests.kit.cases import cases
from tests.kit.manifest_maker import cuda, directory, driver
from tests.kit.simple_index import (
    TODAY,
    Fault,
    SimpleIndex,
    make_wheel,
    refreshed,
    small_catalog,
    world,
)
from tools.collect import __main__ as program
from tools.collect.images import cuda_of_image
from tools.collect.proposal import proposed, unlisted, without_newest

LINUX = "manylinux_2_18_x86_64.whl"


@pytest.fixture
def index() -> Iterator[SimpleIndex]:
    with world().serving() as running:
        yield running


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return small_catalog(tmp_path / "data")


def run(catalog: Catalog, at: SimpleIndex, *sources: str) -> Refreshed:
    return refreshed(catalog, at, *sources, among=program.every_source(at.address))


def files(found: Refreshed, tmp_path: Path) -> dict[str, Any]:
    return dict(proposed(found, str(tmp_path / "data")))


def rows(files: Mapping[str, Any], name: str, table: str, **key: object) -> list[dict[str, Any]]:
    return [r for r in files[name][table] if all(r[column] == key[column] for column in key)]


def test_new_rows_are_proposed_in_their_order_with_their_sources(
    catalog: Catalog, index: SimpleIndex, tmp_path: Path
) -> None:
    found = run(catalog, index)
    assert found.failures == ()
    changed = files(found, tmp_path)
    torch = changed["torch.json"]
    assert torch["date"] == TODAY
    assert [row["version"] for row in torch["releases"]] == ["9.0.0", "9.1.0"]
    (build,) = rows(changed, "torch.json", "builds", version="9.1.0", arch="x86_64")
    assert "as_of" not in build
    assert build["source"] == [f"torch-{TODAY}", f"pytorch-index-{TODAY}"]
    assert "the PyTorch index at 127" in torch["sources"][f"pytorch-index-{TODAY}"]
    (cudnn,) = rows(changed, "nvidia.json", "cudnn", version="9.91.0.1")
    assert (cudnn["sm_confidence"], cudnn["capabilities"]) == ("assumed", ["7.5", "8.0"])
    assert changed["nvidia.json"]["sources"][cudnn["sm_source"]].startswith("carried over from")
    assert [row["version"] for row in changed["nvidia.json"]["nccl"]] == ["2.90.1", "2.91.1"]
    tags = [row["tag"] for row in changed["images.json"]["images"]]
    assert tags[-1] == "99.0.1-cudnn-devel-ubuntu24.04"
    shutil.copytree(tmp_path / "data", tmp_path / "after")
    for name, raw in changed.items():
        (tmp_path / "after" / name).write_text(json.dumps(raw))
    after = load(tmp_path / "after")
    assert after.torch_release("9.1.0") is not None
    assert list(proposed(run(after, index), str(tmp_path / "after"))) == []


def test_what_is_read_again_is_proposed_only_where_it_differs(
    index: SimpleIndex, tmp_path: Path
) -> None:
    """What a page does not say (places, GPUs), and what would be carried over, stays as it is."""
    plugin = {"cuda_major": 12, "package": "jax-cuda12-plugin", "extra": "cuda12", "nccl": None,
              "cuda_runtime": None, "cudnn": None, "sm_min": "5.2",
              "driver_source": "made-up"}  # fmt: skip
    versions = {"0.89.0": "450", "0.90.0": "525"}
    catalog = small_catalog(
        tmp_path / "data",
        jax_releases=[
            {"version": one, "python_tags": ["cp312-cp312"], "archs": ["x86_64"], "glibc": "2.27"}
            for one in versions
        ],
        jax_plugins=[{"version": v, "min_driver": d, **plugin} for v, d in versions.items()],
    )
    wheels = [w for w in index.wheels if not w.name.startswith("torch-9.0.0-cp313-cp313-many")]
    index.wheels = [
        *wheels,
        make_wheel("torch-9.0.0-cp313-cp313-manylinux_2_30_x86_64.whl"),
        make_wheel("jax_cuda12_plugin-0.90.0-cp312-cp312-manylinux_2_27_x86_64.whl"),
    ]
    changed = files(run(without_newest(catalog, 1), index, "torch", "jax"), tmp_path)
    (build,) = rows(changed, "torch.json", "builds", version="9.0.0", tag="cu126")
    assert (build["glibc"], build["sm"]) == ("2.30", ["sm_80", "sm_90"])
    assert build["at"] == ["pytorch", "pypi"]
    assert build["source"] == [f"torch-{TODAY}", "made-up"]
    (old,) = rows(changed, "jax.json", "jax_plugins", version="0.90.0")
    assert (old["min_driver"], old["source"]) == ("525", "made-up")


def test_what_a_source_no_longer_lists_is_said(catalog: Catalog, index: SimpleIndex) -> None:
    found = run(catalog, index, "cuda-images", "python-images", "pytorch-index")
    assert sorted(unlisted(found, catalog)) == [
        f'{index.address} does not list images ["12.6.2-devel-ubuntu22.04"].',
        f'{index.address} does not list python_images ["3.11", "bookworm"].',
    ]
    index.tags["cu126"] = index.tags["cu118"]
    (said,) = unlisted(run(catalog, index, "pytorch-index"), catalog)
    assert said.endswith('does not list builds ["9.0.0", "cu126", "x86_64"].')
    index.wheels = [make_wheel("jaxlib-0.91.0-cp312-cp312-manylinux_2_27_x86_64.whl")]
    (said,) = unlisted(run(catalog, index, "jax"), catalog)
    assert said.endswith("lists 0 of 1 jax_releases.")
    index.faults["/simple/jax-cuda12-plugin/"] = Fault(status=500)
    assert list(unlisted(run(catalog, index, "jax"), catalog)) == []  # it was read in part


def test_dates_of_known_branches_and_toolkits_are_read(
    catalog: Catalog, index: SimpleIndex, tmp_path: Path
) -> None:
    newest = catalog.branches[-1]
    label = f"{newest.branch}.999.01"
    undated = next(row.full for row in catalog.toolkits if row.released is None)
    index.pages |= directory("nvidia-driver", {label: driver(label, "2029-01-01")})
    index.pages |= directory("cuda", {undated: cuda(undated, "2028-01-01")})
    found = run(catalog, index, "driver-dates", "cuda-dates")
    assert found.failures == ()
    changed = files(found, tmp_path)
    (row,) = rows(changed, "drivers.json", "branches", branch=newest.branch)
    assert (row["latest_seen"], row["latest_date"]) == (label, "2029-01-01")
    source = changed["drivers.json"]["sources"][row["latest_source"]]
    assert f"redistrib_{label}.json of nvidia-driver" in source
    (toolkit,) = rows(changed, "cuda.json", "toolkits", full=undated)
    assert toolkit["released"] == "2028-01-01"


def test_a_driver_that_is_dated_before_the_known_one_is_noted(
    catalog: Catalog, index: SimpleIndex
) -> None:
    newest = next(row for row in reversed(catalog.branches) if row.latest_date)
    label = f"{newest.branch}.999.01"
    index.pages |= directory("nvidia-driver", {label: driver(label, "2001-01-01")})
    found = run(catalog, index, "driver-dates")
    assert found.rows == {}
    assert f"Driver {label} is dated 2001-01-01, before {newest.latest_seen}" in found.notes[0]


@cases(
    "tag cuda_version",
    ("with cuDNN", "12.8.1-cudnn-devel-ubuntu24.04", "12.8"),
    ("with the number of cuDNN", "11.8.0-cudnn8-runtime-ubi8", "11.8"),
    ("another system", "13.0.0-base-rockylinux9", "13.0"),
    ("no version", "latest", None),
    ("of one machine", "12.8.1-devel-ubuntu24.04-amd64", None),
)
def test_an_image_tag_names_cuda(tag: str, cuda_version: str | None) -> None:
    found = cuda_of_image(tag)
    assert (str(found) if found else None) == cuda_version


@cases(
    "tags status",
    ("known: stays supported", ["12.6.3-base-ubuntu22.04"], "supported"),
    ("inferred: now seen", ["12.6.3-devel-ubuntu22.04"], "seen"),
    ("new", ["12.9.0-devel-ubuntu22.04"], "seen"),
    ("older than the catalog", ["9.0-base-ubuntu16.04", "latest"], None),
)
def test_tags_of_cuda_images(
    catalog: Catalog, index: SimpleIndex, tags: list[str], status: str | None
) -> None:
    index.images["nvidia/cuda"] = tags
    found = run(catalog, index, "cuda-images").readings["cuda-images"].rows
    assert [row["status"] for _, row in found] == ([status] if status else [])


def test_tags_of_python_images(catalog: Catalog, index: SimpleIndex) -> None:
    index.images["library/python"] += ["3.8-slim-buster"]
    reading = run(catalog, index, "python-images").readings["python-images"]
    assert [(row["python"], row.get("confidence")) for _, row in reading.rows] == [
        ("3.12", "confirmed"),
        ("3.13", None),
    ]
    assert reading.notes == [
        f"{index.address} has python 3.13 for nosuch, a release of Debian that the catalog lacks."
    ]


@pytest.mark.parametrize("option", [None, "--write"])
def test_the_command_prints_a_patch_and_writes_only_if_asked(
    index: SimpleIndex,
    option: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(DATA, tmp_path / "data")
    monkeypatch.setattr(program, "DATA", str(tmp_path / "data"))
    argv = ["collect", "--from", "nccl", "--index", index.url, *([option] if option else [])]
    monkeypatch.setattr("sys.argv", argv)
    name = f"nvidia_nccl_cu{load().nccl[-1].cuda_major}-99.1.1-py3-none-{LINUX}"
    index.wheels = [make_wheel(name)]
    assert program.main() == 0
    out, err = capsys.readouterr()
    assert "lists 0 of" in err
    row = '    {"version": "99.1.1", "cuda_major": '
    written = (tmp_path / "data" / "nvidia.json").read_text()
    if option:
        assert (row in written, out) == (True, "")
    else:
        assert row not in written
        assert out.startswith("--- a/provision/catalog/data/nvidia.json\n")
        assert f"+{row}" in out
