"""What the network asks for and nobody else may see."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What the build may see and the image may not hold. Contents, never paths of the host.

    `values` are the bare words (tokens, passwords) that are blotted out of everything shown.
    """

    ca_bundle: str = ""
    netrc: str = field(default="", repr=False)
    pip_index: str = field(default="", repr=False)
    values: tuple[str, ...] = field(default=(), repr=False)
