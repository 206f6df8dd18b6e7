"""The rows of the catalog that the answers come from, each with its source, for the page's tables.

A row begins with what its address is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from provision.catalog.catalog import Catalog
from provision.model.plan import TITLES
from provision.page.nodes import Nodes
from provision.resolve.builds import Build, builds_of
from provision.resolve.fleet import show_capability
from provision.resolve.rules.base import python_tags_of
from provision.resolve.specifiers import version

Row = Sequence[object]

_COLUMNS = {
    "cards": ("name", "capability", "generation", "memory", "since", "confidence", "source"),
    "branches": ("branch", "cuda", "type", "first", "latest", "end", "drives", "source"),
    "builds": ("build", "cuda", "code", "ptx", "pythons", "glibc", "exists", "source"),
}
_FILES = {"cards": "gpus.json", "branches": "drivers.json", "builds": "torch.json"}
ARCHS = ("x86_64", "aarch64")


def facts(catalog: Catalog, nodes: Nodes) -> dict[str, Any]:
    """Each table: the date of its data, its columns, and the nodes of its rows."""
    rows = {"cards": _cards(catalog), "branches": _branches(catalog), "builds": _builds(catalog)}
    return {
        name: {
            "date": catalog.files[_FILES[name]].text("date"),
            "columns": list(columns),
            "rows": [nodes.add(row) for row in rows[name]],
        }
        for name, columns in _COLUMNS.items()
    }


def _cards(catalog: Catalog) -> Iterator[Row]:
    for row in catalog.gpus:
        first = catalog.first_branch(row.chip) if row.chip else None
        yield (
            row.name,
            row.name,
            show_capability(row.compute_capability),
            row.architecture,
            row.memory_gb,
            row.driver_from or (first and str(first.branch)),
            row.confidence,
            _sources(row.source, row.driver_source, first and (first.adds_source or first.source)),
        )


def _branches(catalog: Catalog) -> Iterator[Row]:
    for row in reversed(catalog.branches):
        yield (
            str(row.branch),
            str(row.branch),
            row.max_cuda,
            row.type,
            row.first_version,
            " ".join(filter(None, (row.latest_seen, row.latest_date and f"({row.latest_date})"))),
            row.end_of_life,
            show_capability(row.dropped_below),
            _sources(row.source, row.type_source, row.dropped_source, row.latest_source),
        )


def _builds(catalog: Catalog) -> Iterator[Row]:
    for framework in TITLES:
        found = [build for arch in ARCHS for build in builds_of(framework, arch, catalog)]
        for build in sorted(found, key=lambda b: (version(b.version), version(b.cuda)))[::-1]:
            pythons = python_tags_of(build)
            yield (
                f"{framework}-{build.version}-{build.tag or f'cuda{build.cuda}'}-{build.arch}",
                f"{build.name}, {build.arch}",
                build.cuda,
                _code(build),
                f"compute_{build.ptx[0]}{build.ptx[1]}" if build.ptx else None,
                f"{pythons[0]} to {pythons[-1]}" if len(pythons) > 1 else " ".join(pythons),
                build.glibc,
                build.existence,
                _sources(build.source, build.sm_source),
            )


def _code(build: Build) -> str:
    listed = " ".join(f"{major}{minor}" for major, minor in build.sm)
    return f"{listed} (compiled at run time)" if build.compiled_on_host else listed or "unknown"


def _sources(*texts: str | None) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))
