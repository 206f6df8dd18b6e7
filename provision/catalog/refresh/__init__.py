"""Updates the user's catalog between releases: frameworks' builds, CUDA and drivers.

    SOURCES --read--> SourceReading --compare--> changes and rows --to_overlay--> the user's copy
                                                                     (provision.catalog.overlay)

Each source turns pages into rows: `pytorch`, `tensorflow` and `jax` of the package index and the
PyTorch index, `nvidia` of NVIDIA's manifests. Each fails by itself: what could be read counts.
Nothing is written here; a fact is in `Refreshed.rows` only if it was read and the catalog did not
have it, with its source and the date. What no source says about a new JAX plugin, toolkit or driver
branch (which GPUs, which driver) is carried over from the release before it, and marked so. What
else changes upstream is proposed to the maintainers by `tools.collect`, with further sources.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from images.errors import Failure
from provision.catalog.catalog import Catalog
from provision.catalog.index.fetch import AnsweredRequest, FetchLimits, PageFetcher
from provision.catalog.overlay import Overlay, extended, named_sources
from provision.catalog.refresh import jax, nvidia, pytorch, tensorflow
from provision.catalog.refresh.compare import compare
from provision.catalog.refresh.current_rows import CurrentRows, ident
from provision.catalog.refresh.model import (
    Asking,
    CatalogChange,
    CatalogSource,
    Refreshed,
    RefreshOfflineError,
    SourceFailure,
    SourceReading,
    UnknownSourceError,
)
from provision.catalog.refresh.store import refused_rows, with_sources

__all__ = ["SOURCES", "FetchLimits", "Refreshed", "refresh", "to_overlay"]

SOURCES: Mapping[str, CatalogSource] = {
    "torch": CatalogSource(
        "pypi", "PyTorch's releases, and its default builds", pytorch.read_torch
    ),
    "tensorflow": CatalogSource("pypi", "TensorFlow", tensorflow.read_tensorflow),
    "jax": CatalogSource("pypi", "JAX", jax.read_jax),
    "toolkits": CatalogSource("pypi", "which CUDA toolkits are packages", nvidia.read_packages),
    "pytorch-index": CatalogSource(
        "pytorch", "PyTorch's builds for each CUDA", pytorch.read_pytorch_index
    ),
    "driver-manifests": CatalogSource("nvidia", "drivers", nvidia.read_drivers),
    "cuda-manifests": CatalogSource("nvidia", "CUDA toolkits", nvidia.read_toolkits),
}
"""Every source by its name, grouped by the server that it queries: the package index, the PyTorch
index, NVIDIA's download server. The first one that read a column counts.
"""


def refresh(
    catalog: Catalog,
    *,
    among: Mapping[str, CatalogSource] = SOURCES,
    sources: Sequence[str] = (),
    index: str | None = None,
    pytorch_index: str | None = None,
    nvidia: str | None = None,
    ca_bundle: Path | None = None,
    offline: bool = False,
    today: str,
    on_progress: Callable[[str], None] = lambda _: None,
    limits: FetchLimits | None = None,
    env: Mapping[str, str] | None = None,
) -> Refreshed:
    """Query the sources and compare their answers with the catalog, which should be the user's own.

    `sources` are names or groups of those in `among`; empty means all. `index`, `pytorch_index` and
    `nvidia` replace the default ones; `today` is the date of the rows ("2026-11-21").
    `on_progress` receives a line for every answered request, from any thread. A source that fails
    is among `failures`; `exit_code` is 5 only if every queried source failed completely.

    RefreshOfflineError: the network may not be used. UnknownSourceError: no such source.
    """
    names = _chosen(sources, among)
    if offline:
        raise RefreshOfflineError(
            "The catalog cannot be refreshed offline: every source is on the network.",
            fix="Leave out --offline. Until then the catalog is used as it is.",
        )
    started, env = time.monotonic(), os.environ if env is None else env

    def on_asked(one: AnsweredRequest) -> None:
        said = f"HTTP {one.status}, {one.received} bytes, {one.seconds:.2f} s"
        on_progress(f"{one.url}: {said}")

    known = CurrentRows(catalog)
    asking = Asking(
        known=known,
        fetcher=PageFetcher(ca_bundle=ca_bundle, limits=limits, env=env, on_asked=on_asked),
        today=today,
        env=env,
        index_url=index,
        pytorch_index=pytorch_index,
        nvidia=nvidia,
    )
    readings: dict[str, SourceReading] = {}
    failures: list[SourceFailure] = []
    for name in names:
        try:
            readings[name] = among[name].read(asking)
            errors: Sequence[Failure] = readings[name].troubles
        except Failure as error:
            errors = [error]
        if errors:
            failures.append(_failure(name, errors, partial=name in readings))
    changes, found = compare(readings, known)
    texts = {name: reading.text for name, reading in readings.items()}
    tables, used = with_sources(found, texts, today)
    refused = refused_rows(tables, known, used, today)
    kept = {
        table: tuple(row for row in rows if (table, ident(table, row)) not in refused)
        for table, rows in tables.items()
    }
    keys = {key for rows in kept.values() for row in rows for key in named_sources(row)}
    return Refreshed(
        today=today,
        names=names,
        rows={table: rows for table, rows in kept.items() if rows},
        sources={key: text for key, text in used.items() if key in keys},
        changes=tuple(_judged(change, refused) for change in changes),
        failures=tuple(failures),
        readings=readings,
        requests=asking.fetcher.requests,
        seconds=time.monotonic() - started,
    )


def to_overlay(found: Refreshed, previous: Overlay | None) -> Overlay:
    """The user's copy with what a refresh found."""
    return extended(previous, found.today, found.rows, found.sources)


def _chosen(sources: Sequence[str], among: Mapping[str, CatalogSource]) -> tuple[str, ...]:
    groups = tuple(dict.fromkeys(source.group for source in among.values()))
    for name in sources:
        if name not in groups and name not in among:
            raise UnknownSourceError(
                f"{name[:60]!r} is not a source of the catalog.",
                fix=f"Use some of: {', '.join((*groups, *among))}",
            )
    wanted = set(sources or groups)
    return tuple(name for name, source in among.items() if wanted & {name, source.group})


def _failure(name: str, errors: Sequence[Failure], *, partial: bool) -> SourceFailure:
    first, *more = dict.fromkeys(error.message for error in errors)
    message = f"{first} And {len(more)} more of the kind." if more else first
    return SourceFailure(source=name, message=message, fix=errors[0].fix, partial=partial)


def _judged(change: CatalogChange, refused: Mapping[tuple[str, str], str]) -> CatalogChange:
    why = refused.get((change.table, ident(change.table, change.key)))
    if why is None:
        return change
    subject = change.sentence.partition(" is new")[0]
    return replace(change, sentence=f"{subject} is new, and is not kept: {why}.")
