"""The data that was read from a wheel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

How = Literal["flags", "fatbins", "build-info"]
Capability = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCode:
    """One shared library's device code, counted.

    A fatbin is from one compiled source file: the same kernels for several targets. `sass` and
    `ptx` count how many of the `fatbins` contain a target ("sm_90a", "compute_120"); `other` counts
    anything else ("LTO-IR"). `outside` more are outside the sections for device code, and are not
    counted; None if there is no section table.
    """

    name: str
    fatbins: int
    sass: Mapping[str, int] = field(default_factory=dict)
    ptx: Mapping[str, int] = field(default_factory=dict)
    other: Mapping[str, int] = field(default_factory=dict)
    outside: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelCode:
    """A wheel, as far as it was read.

    `source` is the path or URL without secrets. `version` includes the build ("2.0.1+cu117") if the
    package's version.py has it. `python_tag` includes the ABI ("cp311-cp311"). `arch` is None if
    the wheel is for every machine, or for an unsupported one. `cuda` is "X.Y".

    `sm` are the capabilities with binary code, `ptx` the highest with PTX, which later GPUs can
    compile; `how` is the source of this. `flags` are the build's recorded flags; `libraries` is
    empty if none had to be read. `bytes_read` of `bytes_total` were downloaded or read from disk.
    """

    source: str
    name: str
    version: str
    python_tag: str
    platform_tags: tuple[str, ...]
    arch: Literal["x86_64", "aarch64"] | None
    cuda: str | None
    cudnn: str | None
    flags: tuple[str, ...]
    libraries: tuple[LibraryCode, ...]
    sm: tuple[Capability, ...]
    ptx: Capability | None
    how: How
    requires: tuple[str, ...]
    bytes_read: int
    bytes_total: int
    notes: tuple[str, ...]
