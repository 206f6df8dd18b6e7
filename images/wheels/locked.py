"""Files of packages as a lock names them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A package's file, by its digest; `size` in bytes, None where the index does not say. `url`
    may be a `file:` one.
    """

    name: str
    version: str
    url: str
    size: int | None
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel(RemoteFile):
    """One locked wheel."""
