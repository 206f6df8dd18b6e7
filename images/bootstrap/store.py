"""Stores the built bases: archives and an index, in `<store>/bases`.

Several processes may use a store at once, and any may be killed: one that builds a base holds the
lock, and a file gets its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from images.oci.blobfiles import sync_directory
from images.system.ownership import another_owner


class AddedPackage(NamedTuple):
    """A package that was added to a base. `sha256` is that of its file, in hex digits."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapBase:
    """A base built here."""

    reference: str
    """Its name in the archive: "gpu-provision/base:bookworm-py3.11-<12 hex>"."""
    image_id: str
    """The digest of its configuration, "sha256:..."."""
    diff_id: str
    """The digest of its only layer as a plain tar."""
    archive: Path
    """The file for `docker load`."""
    packages: tuple[str, ...]
    """Each as "name=version"."""
    added: tuple[AddedPackage, ...] = ()
    """Those of them that were named beside the base's own, and what they need."""
    seconds: float
    """How long the build took; 0 if the base was in the store already."""


def bases_directory(store: Path) -> Path:
    """The directory of a store's bases."""
    return store.absolute() / "bases"


def find(store: Path, image_id: str) -> BootstrapBase | None:
    """Find a base built earlier by its image ID or its diffID, however old it is."""
    bases = bases_directory(store)
    for entry in _read_index(bases).values():
        if image_id in {entry.get("image_id"), entry.get("diff_id")}:
            return _from_entry(bases, entry)
    return None


def find_recent(
    bases: Path, request: str, *, now: float, max_age_days: float
) -> BootstrapBase | None:
    """Find the newest base built for a request in the last `max_age_days`."""
    recent = [
        entry
        for entry in _read_index(bases).values()
        if entry.get("request") == request
        and isinstance(entry.get("made"), (int, float))
        and 0 <= now - entry["made"] < max_age_days * 86400
    ]
    for entry in sorted(recent, key=lambda entry: float(entry["made"]), reverse=True):
        base = _from_entry(bases, entry)
        if base is not None:
            return base
    return None


def add(bases: Path, base: BootstrapBase, *, request: str, now: float) -> BootstrapBase:
    """Move a base's archive from its work directory into the store, and add it to the index."""
    work = base.archive.parent
    size = base.archive.stat().st_size
    kept = replace(base, archive=_archive_path(bases, base.image_id))
    _put(base.archive, kept.archive)
    facts = {**asdict(kept), "archive": kept.archive.name, "bytes": size, "made": now}
    index = {**_read_index(bases), base.image_id: {**facts, "request": request}}
    written = work / "index.json"
    written.write_bytes(json.dumps(index, indent=1, sort_keys=True).encode() + b"\n")
    _put(written, bases / "index.json")
    return kept


@contextlib.contextmanager
def locked(bases: Path, on_line: Callable[[str], None]) -> Iterator[None]:
    """Hold the exclusive lock: two processes would build the same base twice."""
    with (bases / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_line("another process is making a base here: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as exc:  # some network file systems have no locks
            on_line(f"the store cannot be locked ({exc.strerror}): going on without")
        yield


@contextlib.contextmanager
def work_directory(bases: Path) -> Iterator[Path]:
    """Yield a directory on the store's disk, from which a finished file can be renamed into it."""
    work = Path(tempfile.mkdtemp(prefix=".work-", dir=bases))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def remove_leftovers(bases: Path) -> None:
    """Remove the work directories of killed processes; requires the lock."""
    for work in bases.glob(".work-*"):
        shutil.rmtree(work, ignore_errors=True)


def archives(bases: Path) -> dict[Path, int]:
    """The archives of all bases, and their sizes in bytes."""
    found = {}
    for path in sorted(bases.glob("*.tar")):
        with contextlib.suppress(OSError):  # removed meanwhile
            found[path] = path.lstat().st_size
    return found


def remove_all(bases: Path) -> None:
    """Remove all bases, and what killed processes left; requires the lock. A base that a lock names
    is built again from the same packages.
    """
    remove_leftovers(bases)
    (bases / "index.json").unlink(missing_ok=True)
    for path in archives(bases):
        path.unlink(missing_ok=True)


def _archive_path(bases: Path, image_id: str) -> Path:
    return bases / f"{image_id.partition(':')[2]}.tar"


def _put(finished: Path, target: Path) -> None:
    """Sync a finished file and rename it: atomic, even with a power cut."""
    with finished.open("rb") as file:
        os.fsync(file.fileno())
    finished.replace(target)
    sync_directory(target.parent)


def _read_index(bases: Path) -> dict[str, dict[str, Any]]:
    try:
        if another_owner(bases, bases.lstat()):
            return {}
        document = json.loads((bases / "index.json").read_bytes())
    except (OSError, ValueError):  # lost or damaged: the bases are built again
        return {}
    entries = document if isinstance(document, dict) else {}
    return {key: entry for key, entry in entries.items() if isinstance(entry, dict)}


def _from_entry(bases: Path, entry: Mapping[str, Any]) -> BootstrapBase | None:
    """Read an entry of the index; None if its archive is missing or has another size."""
    try:
        image_id = str(entry["image_id"])
        archive = _archive_path(bases, image_id)
        if archive.stat().st_size != entry["bytes"]:
            return None
        return BootstrapBase(
            reference=str(entry["reference"]),
            image_id=image_id,
            diff_id=str(entry["diff_id"]),
            archive=archive,
            packages=tuple(map(str, entry["packages"])),
            added=tuple(AddedPackage(*map(str, one)) for one in entry.get("added", ())),
            seconds=0.0,
        )
    except (OSError, KeyError, TypeError):
        return None
