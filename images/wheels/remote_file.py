"""Package files as a lock lists them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A package's file and its digest; `size` in bytes, None if the index does not say. `url` may
    be a `file:` URL. `direct`: the user named this file, no index lists it.
    """

    name: str
    version: str
    url: str
    size: int | None
    sha256: str
    direct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel(RemoteFile):
    """One locked wheel."""
