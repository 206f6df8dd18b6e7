"""Opens an offline bundle for a build: checks it, then puts its parts where a build looks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images.errors import Failure
from images.oci.archive_reader import open_archive
from images.oci.inflate import inflate
from images.oci.model import platform_of
from images.store.store import Store
from images.system.scratch import scratch_directory
from provision.build.base import UnpackedBundle, require_plan
from provision.build.offline.bundlefile import BundleReader
from provision.build.offline.errors import BadBundleError, BundleArchError
from provision.build.offline.pack import (
    BLOBS,
    CATALOG,
    COPY,
    IMAGE,
    LOCK,
    SUITE,
    WHEELS,
    refuse_unpackable,
    wheel_name,
)
from provision.build.pipeline import gigabytes
from provision.catalog.catalog import Catalog
from provision.catalog.loading import load
from provision.catalog.overlay import read_overlay
from provision.errors import CatalogError
from provision.lock.lockfile import Lock, read_lock
from provision.model.plan import HostFacts, Plan, Request
from provision.output.console import Console
from provision.resolve import resolve
from provision.version import VERSION

_AGAIN = "Create it again: provision bundle"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedBundle:
    """A bundle, checked; `lock_file`, `parts` and the catalog's tables are in a temporary
    directory.
    """

    reader: BundleReader
    lock: Lock
    lock_file: Path
    catalog: Catalog
    parts: UnpackedBundle


@contextmanager
def open_bundle(path: Path, console: Console) -> Iterator[OpenedBundle]:
    """Check a whole bundle, and unpack its small parts and its base into a temporary directory.
    BadBundleError: it is damaged or incomplete. Nothing of it is kept then.
    """
    with BundleReader(path) as reader, scratch_directory() as scratch:
        with console.step("bundle", f"checking {path.name}"):
            total = sum(file.size for file in reader.files)
            with console.transfer() as progress:
                progress.will_copy(total)
                reader.check(progress.copied)
            lock = _lock_of(reader)
            for directory in (SUITE, CATALOG):
                for file in reader.below(directory):
                    reader.unpack(file, scratch / file.path)
            parts = _parts(reader, lock.plan, scratch)
            (scratch / LOCK).write_text(lock.text, encoding="utf-8")
            catalog = _catalog_in(reader, scratch)
            if (here := f"gpu-provision {VERSION}") != reader.made_by:
                console.note(f"{path.name} was made by {reader.made_by}; this is {here}")
            console.result(f"{len(reader.files)} files, {gigabytes(total)}")
        yield OpenedBundle(
            reader=reader, lock=lock, lock_file=scratch / LOCK, catalog=catalog, parts=parts
        )


@contextmanager
def in_store(
    bundle: OpenedBundle, state: Path, *, limit_bytes: int | None, console: Console
) -> Iterator[None]:
    """Put the wheels and the base's blobs into the store, by their digests; they stay there at
    least while this is open.
    """
    reader = bundle.reader
    with Store.open(state, limit_bytes=limit_bytes, on_note=console.note) as store:
        with console.step("unpack", "the wheels into the store"):
            wheels = {wheel_name(one): one.sha256 for one in bundle.lock.wheels}
            files = {name: reader.find(f"{WHEELS}/{name}") for name in wheels}
            blobs = reader.below(BLOBS)
            missing = [n for n, sha256 in wheels.items() if not store.wheel(sha256, file_name=n)]
            store.make_room(sum(f.size for f in (*(files[name] for name in missing), *blobs)))
            for name, sha256 in wheels.items():
                pieces = reader.pieces(files[name])
                store.add("wheel", sha256, pieces, files[name].size, file_name=name)
            for file in blobs:
                store.add("blob", f"sha256:{file.sha256}", reader.pieces(file), file.size)
            console.result(f"{len(missing)} of {len(wheels)} wheels were not there yet")
        yield


def refuse_other_machine(bundle: OpenedBundle, here: HostFacts, machine: str) -> None:
    """Refuse a bundle whose image would not run on this machine. BundleArchError: it is for
    another architecture; else the resolver's refusal.
    """
    plan = bundle.lock.plan
    have = here.arch or machine
    if plan.arch != have:
        raise BundleArchError(
            f"The bundle is for {plan.arch}, and this machine is {have}.",
            fix=f"Create one on or for a {have} machine: provision bundle --host FILE; or build it "
            "for another machine: --no-verify",
        )
    anywhere = resolve([HostFacts(arch=have)], _request_of(plan), bundle.catalog)
    found = resolve([here], _request_of(plan), bundle.catalog)
    if found.error is not None and anywhere.error is None:
        require_plan(found)


def _request_of(plan: Plan) -> Request:
    """The request that has only the lock's build as its answer."""
    bootstrap = plan.base is not None and plan.base.kind == "bootstrap"
    return Request(
        cuda=plan.cuda,
        framework=plan.framework,
        framework_version=f"=={plan.framework_version}",
        python=plan.python,
        flavour=plan.flavour,
        base="bootstrap" if bootstrap else None,
    )


def _lock_of(reader: BundleReader) -> Lock:
    """The lock, if the bundle has everything that it names."""
    try:
        lock = read_lock(reader.content(reader.find(LOCK)).decode())
        refuse_unpackable(lock.plan)
    except UnicodeDecodeError as error:
        raise BadBundleError(reader.path, f"its {LOCK} is not a text", fix=_AGAIN) from error
    except Failure as failure:
        raise BadBundleError(
            reader.path, f"its lock is invalid: {failure.message.rstrip('.')}", fix=_AGAIN
        ) from failure
    for wheel in lock.wheels:
        if reader.find(f"{WHEELS}/{wheel_name(wheel)}").sha256 != wheel.sha256:
            raise BadBundleError(
                reader.path, f"its {wheel_name(wheel)} is not the wheel of its lock", fix=_AGAIN
            )
    return lock


def _parts(reader: BundleReader, plan: Plan, scratch: Path) -> UnpackedBundle:
    suite = scratch / SUITE / "verify"
    if not (suite / "__main__.py").is_file():
        raise BadBundleError(reader.path, "it has no suite", fix=_AGAIN)
    assert plan.base is not None
    if plan.base.kind != "bootstrap":
        reader.find(f"{BLOBS}/{(plan.base.digest or '').removeprefix('sha256:')}")
        for file in reader.below(BLOBS):
            if file.path != f"{BLOBS}/{file.sha256}":
                raise BadBundleError(reader.path, f"{file.path} is not its sha256", fix=_AGAIN)
        return UnpackedBundle(suite=suite)
    archive = scratch / IMAGE
    reader.unpack(reader.find(IMAGE), archive)
    _check_base(reader, plan, archive)
    return UnpackedBundle(suite=suite, base=archive)


def _check_base(reader: BundleReader, plan: Plan, archive: Path) -> None:
    """The archive must be the lock's base, down to the digests of its layers."""
    assert plan.base is not None
    try:
        image = open_archive(archive, None, platform_of(plan.arch or ""))
        found = []
        for layer in image.layers:
            digest = hashlib.sha256()
            for piece in inflate(layer.stream(), image.shown):
                digest.update(piece)
            found.append(f"sha256:{digest.hexdigest()}")
    except Failure as failure:
        raise BadBundleError(
            reader.path, f"its base is unreadable: {failure.message.rstrip('.')}", fix=_AGAIN
        ) from failure
    if found != [layer.diff_id for layer in image.layers]:
        raise BadBundleError(reader.path, "a layer of its base has another digest", fix=_AGAIN)
    if plan.base.digest not in {image.image_id, *found}:
        raise BadBundleError(reader.path, "its base is not the one of its lock", fix=_AGAIN)


def _catalog_in(reader: BundleReader, scratch: Path) -> Catalog:
    copy = scratch / COPY
    try:
        overlay = read_overlay(copy) if copy.exists() else None
        return load(scratch / CATALOG, overlay)
    except (CatalogError, OSError, ValueError) as error:
        raise BadBundleError(
            reader.path,
            f"its catalog is not one that gpu-provision {VERSION} reads: {str(error).rstrip('.')}",
            fix=f"Use the version that made it ({reader.made_by}), which --with-tool packs.",
        ) from error
