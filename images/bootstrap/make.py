"""Builds a base, or finds it in the store if it was built recently."""

from __future__ import annotations

import functools
import hashlib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.bootstrap import host
from images.bootstrap.archive import canonical_json, image_config, write_archive
from images.bootstrap.cache import BaseCache
from images.bootstrap.configure import modes, wanted_paths
from images.bootstrap.dependencies import choose_packages
from images.bootstrap.download import Downloads, Suite
from images.bootstrap.errors import BootstrapError, BootstrapUnfitError
from images.bootstrap.index import SuitePackage
from images.bootstrap.layer import write_layer
from images.bootstrap.mirrors import Snapshot, is_stamp, snapshot_sources
from images.bootstrap.store import (
    AddedPackage,
    BootstrapBase,
    add,
    bases_directory,
    find_recent,
    locked,
    remove_leftovers,
    work_directory,
)
from images.bootstrap.unpack import UnpackedPackage, unpack_all
from images.errors import FULL
from images.store.errors import ELSEWHERE_FIX, OfflineError
from images.store.store import Store
from images.system.ownership import another_owner

DEFAULT_PACKAGES = ("ca-certificates", "python3", "python3-venv")

FORMAT = 4
"""Part of the store's key: raise it when the image for the same packages changes."""


_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What to build, and the work directory."""

    suite: str
    python: str
    arch: str
    packages: tuple[str, ...]
    more: tuple[str, ...]
    epoch: int
    snapshot: str | None
    work: Path
    on_line: Callable[[str], None]


def bootstrap(
    suite: str,
    *,
    python: str,
    arch: str,
    store: Path,
    packages: tuple[str, ...] = DEFAULT_PACKAGES,
    more: tuple[str, ...] = (),
    epoch: int,
    on_line: Callable[[str], None] | None = None,
    max_age_days: float = 7,
    snapshot: str | None = None,
    ca_bundle: str = "",
    offline: bool = False,
    clock: Callable[[], float] = time.time,
) -> BootstrapBase:
    """Build a Debian base, or find one built in the last days for the same request.

    `python` is the suite's version, such as "3.11"; a base with another one is refused. `arch` is
    this machine's or another: nothing of the base is run. The same packages, `arch` and `epoch`
    (seconds since 1970) give the same image ID and the same bytes; with `snapshot`
    ("20260301T000000Z") the packages are those that Debian had at that time. `more` are packages
    beside the base's own: they and what they need are refused if their scripts are not known.
    `ca_bundle` has certificates (PEM) to trust for mirrors. An interrupted build's files are
    removed, at once or by the next call. OfflineError: there is no such base, and it may not be
    downloaded; BootstrapError: the store cannot be used, or the suite has another Python.
    """
    arch = host.debian_arch(arch)
    _check_suite(suite)
    _check_times(epoch, snapshot)
    say = on_line or (lambda _: None)
    bases = bases_directory(store)
    named, more = tuple(sorted({*packages})), tuple(sorted({*more}))
    request = canonical_json([FORMAT, suite, python, arch, epoch, named, more, snapshot]).decode()
    if snapshot is not None:
        max_age_days = math.inf  # a snapshot does not change
    try:
        bases.mkdir(mode=0o700, parents=True, exist_ok=True)
        if another := another_owner(bases, bases.lstat()):
            raise BootstrapError(
                f"The store {another}: images are not built on its bases.", fix=ELSEWHERE_FIX
            )
        with locked(bases, say):
            remove_leftovers(bases)
            found = find_recent(bases, request, now=clock(), max_age_days=max_age_days)
            if found is not None:
                return found
            if offline:
                raise OfflineError(
                    f"The base of Debian {suite} is not on this machine, and --offline forbids to"
                    " download its packages.",
                    fix="Run once without --offline, or name a base that is here with --base.",
                )
            host.check_space(bases)
            with work_directory(bases) as work:
                job = _Job(
                    suite=suite,
                    python=python,
                    arch=arch,
                    packages=named,
                    more=more,
                    epoch=epoch,
                    snapshot=snapshot,
                    work=work,
                    on_line=say,
                )
                made = _make(job, store, ca_bundle, clock)
                return add(bases, made, request=request, now=clock())
    except OSError as exc:
        if exc.errno in FULL:
            existing = next(path for path in (bases, *bases.parents) if path.is_dir())
            raise host.no_space(existing) from exc
        raise BootstrapError(
            f"The store {bases} cannot be used: {exc.strerror or exc}.",
            fix=f"Check that you may write there (ls -ld {bases}), or keep the store elsewhere: "
            "XDG_CACHE_HOME=DIR",
        ) from exc


def _check_suite(suite: str) -> None:
    # it becomes part of a URL, so it must not contain anything else
    if not re.fullmatch(r"[a-z][a-z0-9.-]*", suite):
        raise BootstrapUnfitError(
            f"{suite!r} does not name a Debian suite.",
            fix="Name a release as the mirror's dists/ directory does, in lower case.",
        )


def _check_times(epoch: int, snapshot: str | None) -> None:
    if epoch > time.time():
        raise BootstrapUnfitError(
            f"The files' latest time, {epoch}, is in the future: the base would depend on when it"
            " is made.",
            fix="Set SOURCE_DATE_EPOCH to a time in the past, or check this host's clock.",
        )
    if snapshot is not None and not is_stamp(snapshot):
        raise BootstrapUnfitError(
            f"{snapshot!r} does not name a snapshot of Debian.",
            fix="Write a time as YYYYMMDDTHHMMSSZ, for example 20260301T000000Z",
        )


def _make(job: _Job, store: Path, ca_bundle: str, clock: Callable[[], float]) -> BootstrapBase:
    """Build the base; its archive is in the job's work directory."""
    started = time.monotonic()
    if job.snapshot is None:
        sources = host.sources_for(job.suite)
    else:
        sources = snapshot_sources(Snapshot(host.snapshot_service(), job.snapshot), job.suite)
    settings = host.read_apt_settings(job.on_line)
    with (
        Store.open(store, on_note=job.on_line) as kept,
        Downloads(kept, settings, ca_bundle=ca_bundle, on_line=job.on_line, now=clock) as downloads,
    ):
        parts, added = _parts(job, downloads, downloads.suites(sources, job.arch), kept)
    layer = write_layer(
        job.work / "layer.tar.gz", parts, suite=job.suite, arch=job.arch, epoch=job.epoch
    )
    _refuse_unknown(layer.unconfigured, added, job.suite)
    if layer.unconfigured:
        job.on_line(
            f"unpacked, to be configured in the image (dpkg --configure -a): "
            f"{', '.join(layer.unconfigured)}"
        )
    if job.python not in layer.pythons:
        raise BootstrapError(
            f"Debian {job.suite} gave {_named(layer.pythons)}; Python {job.python} was asked for.",
            fix="Ask for the Python of the suite, or give another base: --base IMAGE",
        )
    config = image_config(
        suite=job.suite,
        python=job.python,
        arch=job.arch,
        diff_id=layer.diff_id,
        epoch=job.epoch,
    )
    digest = hashlib.sha256(config).hexdigest()
    reference = f"gpu-provision/base:{job.suite}-py{job.python}-{digest[:12]}"
    archive = job.work / "archive.tar"
    image_id = write_archive(archive, config=config, layer=layer, reference=reference)
    return BootstrapBase(
        reference=reference,
        image_id=image_id,
        diff_id=layer.diff_id,
        archive=archive,
        packages=layer.packages,
        added=added,
        seconds=time.monotonic() - started,
    )


def _refuse_unknown(
    unconfigured: Mapping[str, str], added: Sequence[AddedPackage], suite: str
) -> None:
    """Refuse packages beside the base's own that would not be completely installed."""
    refused = [one.name for one in added if one.name in unconfigured]
    if refused:
        reasons = "; ".join(f"{name}: {unconfigured[name]}" for name in refused[:_MOST_NAMED])
        others = len(refused) - _MOST_NAMED
        raise BootstrapUnfitError(
            "A base is built without running anything of it, and these packages of Debian"
            f" {suite} have scripts whose results are not known here: {reasons}"
            f"{f'; and {others} more' if others > 0 else ''}.",
            fix="Name other packages, or install them in an image of your own, and name that:"
            " --base IMAGE",
        )


def _parts(
    job: _Job, downloads: Downloads, suites: Sequence[Suite], store: Store
) -> tuple[list[UnpackedPackage], tuple[AddedPackage, ...]]:
    """Choose the packages, and unpack those that the store does not have yet. Returns them, and
    which of them are not the base's own.
    """
    for suite in suites:
        job.on_line(f"packages of {suite.source.shown}")
    wanted = wanted_paths()
    kept = BaseCache(store, key=canonical_json([FORMAT, job.epoch, wanted]).decode())
    indexes = functools.cache(lambda: downloads.indexes(suites))

    def choose(names: tuple[str, ...]) -> tuple[SuitePackage, ...]:
        request = canonical_json(
            [FORMAT, names, [[one.source.uri, one.index.sha256] for one in suites]]
        ).decode()
        chosen = kept.chosen(request)
        if chosen is None:
            chosen = choose_packages(indexes(), names, suite=job.suite)
            kept.remember_chosen(request, chosen)
        return chosen

    chosen = choose(tuple(sorted({*job.packages, *job.more})))
    own = {one.name for one in choose(job.packages)} if job.more else set()
    added = [one for one in chosen if job.more and one.name not in own]
    host.check_space(job.work, sum(one.size for one in chosen))
    known = kept.unpacked(chosen)
    missing = [package for package in chosen if package.name not in known]
    size = sum(package.size for package in missing)
    job.on_line(f"{len(chosen)} packages, {len(missing)} to download ({size / 1e6:.1f} MB)")
    fresh = list(
        unpack_all(
            downloads.packages(missing),
            epoch=job.epoch,
            wanted=wanted,
            modes=functools.partial(modes, job.suite),
        )
    )
    kept.remember_unpacked(fresh)
    known |= {one.package.name: one for one in fresh}
    return [known[package.name] for package in chosen], tuple(
        AddedPackage(one.name, one.version, one.sha256) for one in added
    )


def _named(pythons: tuple[str, ...]) -> str:
    return " and ".join(f"Python {version}" for version in pythons) or "no Python"
