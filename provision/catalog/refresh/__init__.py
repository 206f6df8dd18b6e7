"""Updates the user's catalog: queries indexes and registries, and reports what is different.

    sources --fetch--> pages, METADATA, tags --(pure)--> Reading --compare--> changes and rows
                                                                                    |
                                      the user's copy (provision.catalog.overlay) <-+ to_overlay

Each source is a module that turns pages into rows: `pytorch`, `tensorflow`, `jax` and `nvidia` of
the default package index, `pytorch_index`, `registry`, and `redist` of NVIDIA's manifests. Each
fails by itself: what could be read counts. Nothing is written here; a fact is in `Refreshed.rows`
only if it was read and the catalog did not have it, with its source and the date. What no source
says about a new cuDNN, NCCL, JAX plugin, toolkit or driver branch (which GPUs, which driver) is
carried over from the release before it, and marked so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from images.errors import Failure
from provision.catalog.catalog import Catalog
from provision.catalog.refresh.fetch import THREADS, PageFetcher
from provision.catalog.refresh.model import (
    AnsweredRequest,
    CatalogChange,
    FetchLimits,
    Refreshed,
    RefreshOfflineError,
    Row,
    SourceFailure,
    SourceReading,
    UnknownSourceError,
)
from provision.catalog.refresh.threads import Threads
from provision.catalog.refresh.words import describe_changes, name_of, refreshed_to_json, say_asked

if TYPE_CHECKING:
    from provision.catalog.overlay import Overlay
    from provision.catalog.refresh.jobs import RefreshJob
    from provision.catalog.refresh.known import CurrentRows

__all__ = [
    "GROUPS",
    "SOURCES",
    "AnsweredRequest",
    "CatalogChange",
    "FetchLimits",
    "Refreshed",
    "SourceFailure",
    "describe_changes",
    "refresh",
    "refreshed_to_json",
    "to_overlay",
]

SOURCES = (
    "torch",
    "tensorflow",
    "jax",
    "cudnn",
    "nccl",
    "toolkits",
    "pytorch-index",
    "cuda-images",
    "python-images",
    "driver-manifests",
    "cuda-manifests",
    "cudnn-manifests",
)
"""Every source; each can fail by itself."""

GROUPS = {
    "pypi": SOURCES[:6],
    "pytorch": SOURCES[6:7],
    "registry": SOURCES[7:9],
    "nvidia": SOURCES[9:],
}
"""Groups of sources, by the server that they query: the default package index, the PyTorch index,
the image registry, NVIDIA's download server.
"""

_GRACE_S = 1.0
"""Grace time for the requests of a source to end by themselves before it is abandoned."""

# A row of the left table is useless without one of the right.
_PARENTS = {
    "builds": "releases",
    "tensorflow_wheels": "tensorflow_releases",
    "jax_plugins": "jax_releases",
}


def refresh(
    catalog: Catalog,
    *,
    sources: Sequence[str] = (),
    index: str | None = None,
    pytorch_index: str | None = None,
    registry: str | None = None,
    nvidia: str | None = None,
    ca_bundle: Path | None = None,
    offline: bool = False,
    today: str,
    on_progress: Callable[[str], None] | None = None,
    recheck: bool = False,
    limits: FetchLimits | None = None,
    env: Mapping[str, str] | None = None,
) -> Refreshed:
    """Query the sources and compare their answers with the catalog, which should be the user's own.

    `sources` are names of SOURCES or GROUPS; empty means all. `index`, `pytorch_index`, `registry`
    and `nvidia` replace the default ones; `today` is the date of the rows ("2026-11-21").
    `on_progress` receives a line for every answered request, from any thread, one at a time.
    `recheck` reads METADATA of known wheels too. A source that fails is among `failures`;
    `exit_code` is 5 only if every queried source failed completely.

    RefreshOfflineError: the network may not be used. UnknownSourceError: no such source.
    """
    names = _chosen(sources)
    if offline:
        raise RefreshOfflineError(
            "The catalog cannot be refreshed offline: every source is on the network.",
            fix="Leave out --offline. Until then the catalog is used as it is.",
        )
    from provision.catalog.refresh.jobs import Asking, make_jobs
    from provision.catalog.refresh.known import CurrentRows

    started = time.monotonic()
    env = os.environ if env is None else env

    def on_asked(asked: AnsweredRequest) -> None:
        if on_progress is not None:
            on_progress(say_asked(asked))

    fetcher = PageFetcher(ca_bundle=ca_bundle, limits=limits, env=env, on_asked=on_asked)
    known = CurrentRows(catalog)
    threads, readers = Threads(THREADS, "refresh"), Threads(len(names), "refresh-source")
    try:
        asking = Asking(
            known=known,
            fetcher=fetcher,
            threads=threads,
            today=today,
            index=index,
            pytorch_index=pytorch_index,
            registry=registry,
            nvidia=nvidia,
            recheck=recheck,
            env=env,
        )
        jobs, failed = make_jobs(names, asking)
        running = {name: readers.submit(_attempt, job.work) for name, job in jobs.items()}
        results = {name: _awaited(future, fetcher) for name, future in running.items()}
    finally:
        fetcher.stop()  # requests still under way are abandoned
        threads.close()
        readers.close()
    readings = [result for result in results.values() if isinstance(result, SourceReading)]
    failed |= {name: found for name, found in results.items() if isinstance(found, Failure)}
    return _finished(
        readings,
        known,
        jobs,
        today=today,
        names=names,
        failures=tuple(_failures(names, failed, readings)),
        fetcher=fetcher,
        seconds=time.monotonic() - started,
    )


def to_overlay(refreshed: Refreshed, previous: Overlay | None) -> Overlay:
    """The user's copy updated with the rows that a refresh found."""
    from provision.catalog.refresh import store

    return store.to_overlay(refreshed, previous)


def _chosen(sources: Sequence[str]) -> tuple[str, ...]:
    wanted: set[str] = set()
    for name in sources or SOURCES:
        if name not in GROUPS and name not in SOURCES:
            raise UnknownSourceError(
                f"{name[:60]!r} is not a source of the catalog.",
                fix=f"Use some of: {', '.join((*GROUPS, *SOURCES))}",
            )
        wanted.update(GROUPS.get(name, (name,)))
    return tuple(name for name in SOURCES if name in wanted)


def _attempt(work: Callable[[], SourceReading]) -> SourceReading | Failure:
    try:
        return work()
    except Failure as error:
        return error


def _awaited(
    future: Future[SourceReading | Failure], fetcher: PageFetcher
) -> SourceReading | Failure:
    try:
        return future.result(timeout=fetcher.seconds_left + _GRACE_S)
    except FutureTimeoutError:  # TimeoutError itself since Python 3.11
        return fetcher.late()


def _failures(
    names: Sequence[str], failed: Mapping[str, Failure], readings: Sequence[SourceReading]
) -> list[SourceFailure]:
    troubles = {reading.source: reading.troubles for reading in readings if reading.troubles}
    found = []
    for name in names:
        if name in failed:
            error = failed[name]
            found.append(SourceFailure(name=name, message=error.message, fix=error.fix))
        elif name in troubles:
            first, *more = dict.fromkeys(error.message for error in troubles[name])
            message = f"{first} And {len(more)} more of the kind." if more else first
            fix = troubles[name][0].fix
            found.append(SourceFailure(name=name, message=message, fix=fix, partial=True))
    return found


def _finished(
    readings: Sequence[SourceReading],
    known: CurrentRows,
    jobs: Mapping[str, RefreshJob],
    *,
    today: str,
    names: tuple[str, ...],
    failures: tuple[SourceFailure, ...],
    fetcher: PageFetcher,
    seconds: float,
) -> Refreshed:
    from provision.catalog.refresh.compare import compare
    from provision.catalog.refresh.known import ident
    from provision.catalog.refresh.store import refused_rows, with_sources

    compared = compare(readings, known, {name: job.name for name, job in jobs.items()})
    texts = {name: job.text for name, job in jobs.items()}
    tables, sources = with_sources(compared.rows, texts, today)
    fresh = {
        table: [row for row in rows if known.row(table, row) is None]
        for table, rows in tables.items()
    }
    refused = refused_rows(fresh, sources, today)
    refused |= _orphans(fresh, refused, known)
    kept = {
        table: tuple(row for row in rows if (table, ident(table, row)) not in refused)
        for table, rows in tables.items()
    }
    rows = {table: found for table, found in kept.items() if found}
    used = _used(rows)
    return Refreshed(
        today=today,
        names=names,
        rows=rows,
        sources={key: text for key, text in sources.items() if key in used},
        changes=tuple(_told(change, refused) for change in compared.changes),
        failures=failures,
        notes=tuple(note for reading in readings for note in reading.notes),
        asked=fetcher.asked,
        seconds=seconds,
    )


def _orphans(
    fresh: Mapping[str, Sequence[Row]], refused: Mapping[tuple[str, str], str], known: CurrentRows
) -> dict[tuple[str, str], str]:
    """New rows whose release is neither known nor among the new ones."""
    from provision.catalog.refresh.known import ident

    found = {}
    for table, parent in _PARENTS.items():
        born = {
            row["version"]
            for row in fresh.get(parent, ())
            if (parent, ident(parent, row)) not in refused
        }
        for row in fresh.get(table, ()):
            known_release = known.row(parent, row) is not None
            if not known_release and row["version"] not in born:
                found[table, ident(table, row)] = "its release could not be read"
    return found


def _told(change: CatalogChange, refused: Mapping[tuple[str, str], str]) -> CatalogChange:
    from provision.catalog.refresh.known import ident

    why = refused.get((change.table, ident(change.table, change.key)))
    if why is None:
        return change
    name = name_of(change.table, change.key)
    return replace(change, sentence=f"{name} is new, and is not kept: {why.rstrip('.')}.")


def _used(rows: Mapping[str, Sequence[Row]]) -> set[str]:
    from provision.catalog.refresh.store import named_sources

    return {key for found in rows.values() for row in found for key in named_sources(row)}
