"""The shipped rows against the real default index: the same words about everything both know."""

from __future__ import annotations

import os
from datetime import datetime, timezone

import pytest

from provision.catalog.canonical import dump
from provision.catalog.catalog import Catalog
from provision.catalog.loading import load
from provision.catalog.refresh import SOURCES, FetchLimits, Refreshed, refresh, to_overlay
from provision.catalog.refresh.current_rows import CurrentRows
from provision.lock.network import ca_bundle
from tests.need import lacking
from tools.collect.__main__ import every_source, patch
from tools.collect.proposal import proposed, unlisted, without_newest

PATIENT = FetchLimits(total_s=400.0)
_RECHECKED = 8


def read_index(catalog: Catalog, *sources: str) -> Refreshed:
    """A refresh from the index that this machine is configured for."""
    found = refresh(
        catalog,
        among=every_source(None),
        sources=sources,
        ca_bundle=ca_bundle(None, os.environ),
        today=datetime.now(timezone.utc).date().isoformat(),
        limits=PATIENT,
    )
    if found.exit_code:
        lacking(f"the package index cannot be read: {found.failures[0].message}")
    return found


def test_the_index_says_what_the_catalog_says_of_the_newest_releases() -> None:
    """METADATA of the newest default builds is read again; sizes, Pythons and glibc are, too."""
    shipped = load()
    found = read_index(without_newest(shipped, _RECHECKED), "pypi")
    assert found.failures == ()
    known = {(row.version, row.arch) for row in shipped.torch if "pypi" in row.at}
    read = [row for row in found.rows["builds"] if (row["version"], row["arch"]) in known]
    assert len(read) >= _RECHECKED
    fresh = {change.key.get("version") for change in found.changes} - _versions(shipped)
    differ = [patch({name: dump(raw)}) for name, raw in proposed(found)]
    assert fresh or differ == []
    assert list(unlisted(found, shipped)) == []
    load(overlay=to_overlay(found, None))


def _versions(catalog: Catalog) -> set[object]:
    known = CurrentRows(catalog)
    tables = ("releases", "tensorflow_releases", "jax_releases")
    return {row["version"] for table in tables for row in known.rows(table)}


def test_a_release_that_is_taken_out_of_the_catalog_is_found_again() -> None:
    """The whole way of a new release, which the catalog happens to know already."""
    shipped = load()
    last = shipped.torch_releases[-1]
    without = shipped.with_tables(
        torch_releases=shipped.torch_releases[:-1],
        torch=tuple(row for row in shipped.torch if row.version != last.version),
    )
    found = read_index(without, "torch")
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
    found = read_index(load(), *(name for name, one in SOURCES.items() if one.group == "pypi"))
    assert found.failures == ()
    fresh = sum(change.kind == "new" for change in found.changes)
    assert sum(asked.received for asked in found.requests) < (6 + 8 * fresh) * 1_000_000


@pytest.mark.skipif("CI" in os.environ, reason="CI does not reach NVIDIA's download server")
def test_the_shipped_address_lists_the_newest_driver_of_the_catalog() -> None:
    shipped = load()
    found = refresh(shipped, sources=["driver-manifests"], today="2099-01-01")
    if found.exit_code:
        pytest.skip(f"NVIDIA's download server cannot be read: {found.failures[0].message}")
    load(overlay=to_overlay(found, None))
