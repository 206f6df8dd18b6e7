"""Loads the catalog from its files: as shipped, or with the user's own copy merged over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from provision.catalog.catalog import Catalog
from provision.catalog.catalog_tables import ON_DEMAND
from provision.catalog.data_files import DATA, DataFiles, overlay_file

if TYPE_CHECKING:
    from pathlib import Path

    from provision.catalog.overlay import Overlay


def load(directory: str | Path | None = None, overlay: Overlay | None = None) -> Catalog:
    """The shipped catalog, or that of another directory, with the overlay's rows merged over it.

    CatalogError: a shipped row is malformed. OverlayError: one of the overlay's rows makes it so.
    """
    name = DATA if directory is None else str(directory)
    return _shipped(name) if overlay is None else _read(name, overlay)


def current(env: Mapping[str, str]) -> tuple[Catalog, str | None]:
    """This user's catalog: the shipped one with the user's own copy merged over it.

    If that copy is broken: the shipped catalog, and a sentence that says what to do. If there is
    none, this costs one look at the disk.
    """
    with suppress(OSError, ValueError):  # the error in the file is reported below
        if not _is_there(overlay_file(env)):
            return load(), None
    from provision.catalog.overlay import OverlayError, overlay_path, read_overlay

    try:
        overlay = read_overlay(overlay_path(env))
        return load(overlay=overlay), None
    except OverlayError as error:
        return load(), f"Your catalog copy is left aside. {error.message} {error.fix}"


@cache
def _shipped(directory: str) -> Catalog:
    return _read(directory, None)


def _read(directory: str, overlay: Overlay | None) -> Catalog:
    catalog = Catalog(DataFiles(directory, overlay))
    # Check now, not in the middle of a command, whether an overlay's rows can be read.
    for table in ON_DEMAND:
        if overlay is not None and table in overlay.tables:
            getattr(catalog, table)
    return catalog


def _is_there(path: str) -> bool:
    try:
        os.stat(path)  # noqa: PTH116  pathlib starts slowly
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
