"""Leads through the making of a base: from the store if it is there, else from a mirror."""

from __future__ import annotations

import errno
import hashlib
import math
import re
import time
from collections.abc import Callable
from pathlib import Path

from images import process
from images.bootstrap import host
from images.bootstrap.archive import canonical_json, image_config, write_archive
from images.bootstrap.errors import BootstrapError, BootstrapUnfitError
from images.bootstrap.mirrors import Snapshot, is_stamp
from images.bootstrap.squeeze import squeeze
from images.bootstrap.store import (
    BootstrapBase,
    add,
    bases_directory,
    find_recent,
    locked,
    remove_leftovers,
    work_directory,
)
from images.bootstrap.tools import Job, explain, make_tree
from images.bootstrap.tree import write_layer
from images.errors import Failure

DEFAULT_PACKAGES = ("ca-certificates", "python3", "python3-venv")

FORMAT = 2
"""Part of the store's key: raise it when the same packages shall give another image."""

TIMEOUT_S = 20 * 60.0


def bootstrap(
    suite: str,
    *,
    python: str,
    arch: str,
    store: Path,
    packages: tuple[str, ...] = DEFAULT_PACKAGES,
    epoch: int,
    on_line: Callable[[str], None] | None = None,
    max_age_days: float = 7,
    snapshot: str | None = None,
    clock: Callable[[], float] = time.time,
) -> BootstrapBase:
    """Make a Debian base, or find the one made in the last days for the same request.

    `python` is the version that the suite brings, such as "3.11"; a base with another is refused.
    The same packages, `arch` and `epoch` (seconds since 1970) give the same image id, and the same
    bytes; with `snapshot` ("20260301T000000Z") these are the packages that Debian had then. What is
    half made when this ends early is removed, then or by the next call.
    """
    arch = host.debian_arch(arch)
    _check_suite(suite)
    _check_times(epoch, snapshot)
    host.check_arch(arch)
    say = on_line or _ignore
    bases = bases_directory(store)
    named = tuple(sorted({*packages}))
    request = canonical_json([FORMAT, suite, python, arch, epoch, named, snapshot]).decode()
    if snapshot is not None:
        max_age_days = math.inf  # what was then does not change
    try:
        bases.mkdir(parents=True, exist_ok=True)
        with locked(bases, say):
            remove_leftovers(bases)
            found = find_recent(bases, request, now=clock(), max_age_days=max_age_days)
            if found is not None:
                return found
            host.check_tools()
            host.check_space(bases)
            with work_directory(bases) as work:
                past = None if snapshot is None else Snapshot(host.snapshot_service(), snapshot)
                job = Job(
                    suite=suite,
                    packages=named,
                    epoch=epoch,
                    work=work,
                    on_line=say,
                    deadline=time.monotonic() + TIMEOUT_S,
                    snapshot=past,
                )
                made = _make(job, python=python, arch=arch)
                return add(bases, made, request=request, now=clock())
    except OSError as exc:
        if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
            existing = next(path for path in (bases, *bases.parents) if path.is_dir())
            raise host.no_space(existing) from exc
        raise BootstrapError(
            f"The store {bases} cannot be used: {exc.strerror or exc}.",
            fix=f"See that you own it and may write there: ls -ld {bases}",
        ) from exc


def _check_suite(suite: str) -> None:
    # it becomes an argument of a command and part of an address, so it may not be just anything
    if not re.fullmatch(r"[a-z][a-z0-9.-]*", suite):
        raise BootstrapUnfitError(
            f"{suite!r} does not name a Debian suite.",
            fix="Name a release as the mirror's dists/ directory does, in lower case.",
        )


def _check_times(epoch: int, snapshot: str | None) -> None:
    if epoch > time.time():
        raise BootstrapUnfitError(
            f"The files' latest time, {epoch}, lies in the future: the base would depend on when it"
            " is made.",
            fix="Set SOURCE_DATE_EPOCH to a time that has been, or see to this host's clock.",
        )
    if snapshot is not None and not is_stamp(snapshot):
        raise BootstrapUnfitError(
            f"{snapshot!r} does not name a snapshot of Debian.",
            fix="Write a time as YYYYMMDDTHHMMSSZ, for example 20260301T000000Z",
        )


def _make(job: Job, *, python: str, arch: str) -> BootstrapBase:
    """Make the base; its archive lies in the job's work directory."""
    started = time.monotonic()
    completed = make_tree(job)
    if not completed.ok:
        raise _failure(completed, job)
    job.on_line("writing the image")
    layer_path = job.work / "layer.tar"
    layer = write_layer(job.tree, layer_path, job.epoch, job.suite)
    job.tree.unlink()  # it takes as much space as the archive will
    if python not in layer.pythons:
        raise BootstrapError(
            f"Debian {job.suite} gave {_named(layer.pythons)}; Python {python} was asked for.",
            fix="Ask for the Python of the suite, or give another base: --base IMAGE",
        )
    config = image_config(
        suite=job.suite, python=python, arch=arch, diff_id=layer.diff_id, epoch=job.epoch
    )
    digest = hashlib.sha256(config).hexdigest()
    reference = f"gpu-provision/base:{job.suite}-py{python}-{digest[:12]}"
    archive = job.work / "archive.tar"
    squeezed = squeeze(layer_path, layer.diff_id, job)
    image_id = write_archive(archive, config=config, layer=squeezed, reference=reference)
    return BootstrapBase(
        reference=reference,
        image_id=image_id,
        diff_id=layer.diff_id,
        archive=archive,
        packages=layer.packages,
        seconds=time.monotonic() - started,
    )


def _named(pythons: tuple[str, ...]) -> str:
    return " and ".join(f"Python {version}" for version in pythons) or "no Python"


def _failure(completed: process.Completed, job: Job) -> Failure:
    if "No space left on device" in completed.output:
        return host.no_space(job.work)
    return explain(completed.output, job.suite) or BootstrapError(
        f"{completed.argv[0]} {process.describe_exit(completed.code)} "
        f"while making Debian {job.suite}.",
        fix="Its last lines say why. Another way: --base IMAGE",
        detail=completed.last_lines(),
    )


def _ignore(line: str) -> None:
    del line
