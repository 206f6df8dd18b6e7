"""The storage that remains between runs, which the commands of the store show and shrink."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images.store.errors import in_units
from provision.cli.paths import image_home, state_directory, wheel_home
from provision.cli.sizes import store_limit
from provision.output.console import Console

if TYPE_CHECKING:
    from images.store.upkeep import Storage, StoreItem

SHOWN = 20


@contextlib.contextmanager
def storages(console: Console) -> Iterator[Sequence[Storage]]:
    """All storage that remains between runs; empty if there is none."""
    from images.bootstrap.storage import BasesStorage
    from images.engines.sandbox.roots_storage import RootsStorage
    from images.store.built_wheels import BuiltWheels
    from images.store.layout_storage import LayoutStorage
    from images.store.store import Store

    images = image_home()
    own: list[Storage] = [LayoutStorage(images)] if (images / "oci-layout").exists() else []
    own += [BuiltWheels(wheel_home())] if wheel_home().is_dir() else []
    roots = state_directory() / "roots"
    own += [RootsStorage(roots)] if roots.is_dir() else []
    own += [BasesStorage(state_directory())] if (state_directory() / "bases").is_dir() else []
    if not directory().is_dir():
        yield own
        return
    limit = store_limit(os.environ)
    with Store.open(state_directory(), limit_bytes=limit, on_note=console.note) as store:
        yield [store, *own]


def directory() -> Path:
    from images.store.entries import store_directory

    return store_directory(state_directory())


def limit_bytes() -> int:
    """The limit of the store: the user's, else a share of the disk that it is on."""
    from images.store.store import default_limit

    limit = store_limit(os.environ)
    return default_limit(existing()) if limit is None else limit


def existing() -> Path:
    """The store, or the nearest directory above it that is there: the disk that it is on."""
    place = directory()
    return next(one for one in (place, *place.parents) if one.is_dir())


def described(found: Sequence[StoreItem]) -> list[str]:
    """A line for each, at most SHOWN."""
    lines = [f"{one.title} ({in_units(one.size)}): {one.why}" for one in found[:SHOWN]]
    return lines + ([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else [])


def items_json(found: Sequence[StoreItem]) -> list[dict[str, Any]]:
    """What was removed, in the JSON of these commands."""
    return [
        {"kind": one.kind, "title": one.title, "bytes": one.size, "why": one.why} for one in found
    ]
