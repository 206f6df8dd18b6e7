"""Secrets that network access needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What the build may read and the image must not contain. Contents, never paths of the host.

    `values` are the bare secrets (tokens, passwords), which are redacted in all output. `addresses`
    are files' whole addresses, with login and query, by those that a lock has of them.
    """

    ca_bundle: str = ""
    netrc: str = field(default="", repr=False)
    pip_index: str = field(default="", repr=False)
    addresses: Mapping[str, str] = field(default_factory=dict, repr=False)
    values: tuple[str, ...] = field(default=(), repr=False)
