"""Errors of the store and of the downloads that fill it."""

from __future__ import annotations

from images.errors import Failure

REACH_FIX = (
    "Check that this host can reach it (HTTPS_PROXY, NO_PROXY, --ca-bundle FILE), and build again: "
    "what has arrived is kept."
)
ELSEWHERE_FIX = "Name a directory of your own for it: XDG_CACHE_HOME=DIRECTORY provision ..."


class StoreUnusableError(Failure):
    """The store's directory cannot be created, read or written, or belongs to another user."""

    code = "store-unusable"
    exit_code = 4


class OfflineError(Failure):
    """A required file is not on this machine, and --offline forbids downloading it."""

    code = "offline"
    exit_code = 5


class CalledOffError(Failure):
    """A download was cancelled: another part of the build failed, or Ctrl-C was pressed."""

    code = "called-off"
    exit_code = 130


def in_units(count: int) -> str:
    """Format a number of bytes for people: "1.2 GB"."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size * 0.9995:
            return f"{count / size:.{0 if count >= size * 99.95 else 1}f} {unit}"
    return f"{count} bytes"
