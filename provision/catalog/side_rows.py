"""Rows that no plan reads: for `provision catalog` and its checks.

The conventions are those of `provision.catalog.rows`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from provision.model.plan import ComputeCapability

OpenModules: TypeAlias = Literal["unsupported", "optional", "required"]
"""How a GPU relates to NVIDIA's open kernel modules: it needs the proprietary ones, works with
either, or needs the open ones.
"""


class CudaDropped(NamedTuple):
    """GPUs of one generation that CUDA X.Y ("13.0") was the first not to compile for."""

    cuda: str
    sm: tuple[ComputeCapability, ...]
    generation: str
    source: str


class HighestMajor(NamedTuple):
    """The highest CUDA major that NVIDIA's page lists for a driver branch without a compat
    package.
    """

    branch: int
    cuda_major: int
    source: str


class KernelModules(NamedTuple):
    """Which kernel modules the GPUs from one compute capability on support; a later row takes
    precedence.

    `gpus` (): all of them; else only these, by their names in gpus.json.
    """

    capability: ComputeCapability
    open_modules: OpenModules
    gpus: tuple[str, ...]
    source: str


class Conflict(NamedTuple):
    """Two sources that disagree, and which one the rows use."""

    what: str
    a: str
    b: str
    use: str
    source: str


class Excused(NamedTuple):
    """A row that is known to break an invariant of `provision.catalog.check`, and why."""

    rule: str
    row: str
    reason: str
    source: str
