"""The shipped rows against the real default index: the same words about everything both know."""

from __future__ import annotations

import os
from datetime import datetime, timezone

import pytest

from provision.catalog.catalog import Catalog
from provision.catalog.loading import load
from provision.catalog.refresh import FetchLimits, Refreshed, refresh, to_overlay
from provision.lock.network import ca_bundle
from tests.need import lacking

PATIENT = FetchLimits(total_s=400.0)
_RECHECKED = 8


def newest(catalog: Catalog) -> Catalog:
    """The catalog without its older releases of PyTorch, whose wheels cannot change any more."""
    kept = catalog.torch_releases[-_RECHECKED:]
    versions = {row.version for row in kept}
    builds = tuple(row for row in catalog.torch if row.version in versions)
    return catalog.with_tables(torch_releases=kept, torch=builds)


def read_index(catalog: Catalog, *sources: str, recheck: bool) -> Refreshed:
    """A refresh from the index that this machine is configured for."""
    found = refresh(
        catalog,
        sources=sources,
        ca_bundle=ca_bundle(None, os.environ),
        today=datetime.now(timezone.utc).date().isoformat(),
        recheck=recheck,
        limits=PATIENT,
    )
    if found.exit_code:
        lacking(f"the package index cannot be read: {found.failures[0].message}")
    return found


def test_torch_and_cudnn_are_on_the_index_as_the_catalog_says() -> None:
    """METADATA of the newest default builds is read; sizes, Pythons and glibc are too."""
    found = read_index(newest(load()), "torch", "cudnn", recheck=True)
    assert found.failures == ()
    disagreements = [c.sentence for c in found.changes if c.kind in {"conflict", "gone"}]
    assert disagreements == []
    answered = {asked.url.rstrip("/").rpartition("/")[2] for asked in found.asked}
    assert {"torch", "torchvision", "torchaudio", "nvidia-cudnn-cu12"} <= answered
    builds = [row for row in newest(load()).torch if "pypi" in row.at]
    assert len(builds) >= _RECHECKED
    assert len(found.asked) > len(builds)
    load(overlay=to_overlay(found, None))


def test_a_release_that_is_taken_out_of_the_catalog_is_found_again() -> None:
    """The whole way of a new release, which the catalog happens to know already."""
    shipped = load()
    last = shipped.torch_releases[-1]
    without = shipped.with_tables(
        torch_releases=shipped.torch_releases[:-1],
        torch=tuple(row for row in shipped.torch if row.version != last.version),
    )
    found = read_index(without, "torch", recheck=False)
    known = {
        f"{row.tag} {row.arch}": row
        for row in shipped.torch
        if row.version == last.version and "pypi" in row.at
    }
    rows = {
        f"{r['tag']} {r['arch']}": r for r in found.rows["builds"] if r["version"] == last.version
    }
    assert rows.keys() == known.keys()
    for key, row in rows.items():
        expected = known[key]
        for name in ("cuda", "cudnn", "nccl", "glibc", "size_min_bytes", "size_max_bytes"):
            assert row[name] == getattr(expected, name), name
        assert set(row["pins"]) == set(expected.pins)  # type: ignore[call-overload]  # a list
        assert set(row["python_tags"]) == set(expected.python_tags)  # type: ignore[call-overload]
    release = next(r for r in found.rows["releases"] if r["version"] == last.version)
    assert (release["requires_python"], release["yanked"]) == (last.requires_python, last.yanked)


def test_a_usual_refresh_of_the_index_is_small() -> None:
    found = read_index(
        load(), "torch", "tensorflow", "jax", "cudnn", "nccl", "toolkits", recheck=False
    )
    assert found.failures == ()
    assert [c.sentence for c in found.changes if c.kind in {"conflict", "gone"}] == []
    fresh = sum(change.kind == "new" for change in found.changes)
    assert sum(asked.received for asked in found.asked) < (6 + 8 * fresh) * 1_000_000


@pytest.mark.skipif("CI" in os.environ, reason="CI does not reach NVIDIA's download server")
def test_the_shipped_address_lists_the_newest_driver_of_the_catalog() -> None:
    shipped = load()
    found = refresh(shipped, sources=["driver-manifests"], today="2099-01-01")
    if found.exit_code:
        pytest.skip(f"NVIDIA's download server cannot be read: {found.failures[0].message}")
    assert [c.sentence for c in found.changes if c.kind == "conflict"] == []
    load(overlay=to_overlay(found, None))
