"""What was read out of a wheel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

How = Literal["flags", "fatbins", "build-info"]
Capability = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCode:
    """One shared library's device code, counted.

    A fatbin is what one compiled source file left: the same kernels for several targets. `sass`
    and `ptx` count how many of the `fatbins` hold a target ("sm_90a", "compute_120"); `other` how
    many hold something that is neither ("LTO-IR"). That many more lie `outside` the sections for
    device code, and are not counted in; None where no section table tells them apart.
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

    `source` is the path or address without anything secret. `version` is the one with the build
    ("2.0.1+cu117") where the package's own version.py tells it. `python_tag` holds the ABI too
    ("cp311-cp311"). `arch` is None where the wheel fits every machine, or another. `cuda` is "X.Y".

    `sm` are the capabilities that have binary code, `ptx` the highest that has PTX, which later
    GPUs could compile; `how` says who says so. `flags` is the text that the build left, split;
    `libraries` is empty where none had to be read. `bytes_read` of `bytes_total` travelled or were
    read from the disk.
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
