"""Secrets that network access needs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What the build may read and the image must not contain. Contents, never paths of the host.

    `values` are the bare secrets (tokens, passwords), which are redacted in all output.
    """

    ca_bundle: str = ""
    netrc: str = field(default="", repr=False)
    pip_index: str = field(default="", repr=False)
    values: tuple[str, ...] = field(default=(), repr=False)
