"""NVIDIA's CUDA, drivers and libraries."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from provision.catalog.rows import Arch, Confidence
from provision.model.plan import ComputeCapability


class CudaFamily(NamedTuple):
    """A CUDA major with minor-version compatibility, and the driver floor that its minors share.

    `min_driver` is the floor of Linux; the driver of Windows also serves WSL.
    """

    major: int
    min_driver: str
    min_driver_windows: str
    source: str


class CudaToolkit(NamedTuple):
    """One toolkit release: cuda "11.7", full "11.7.1", update 1.

    `driver` is the Linux driver it shipped with; None where none was published. `on_pypi` is
    whether the package cuda-toolkit has it; `gcc_max` the newest GCC that nvcc takes (likely);
    `released` the day in NVIDIA's manifest of it, None where no manifest was read.
    """

    cuda: str
    full: str
    update: int
    driver: str | None
    minor_version_compatibility: bool
    sm_targets: tuple[ComputeCapability, ...]
    on_pypi: bool
    source: str
    sm_source: str
    confidence: Confidence = "confirmed"
    gcc_max: str | None = None
    released: str | None = None


class CudaDropped(NamedTuple):
    """GPUs of one generation that CUDA X.Y ("13.0") was the first not to compile for."""

    cuda: str
    sm: tuple[ComputeCapability, ...]
    generation: str
    source: str


class CompilerWheels(NamedTuple):
    """NVIDIA's compiler and headers of CUDA X.Y as packages of an index: one requirement line."""

    cuda: str
    requirement: str
    source: str


class DriverBranch(NamedTuple):
    """A driver branch: the number before the first dot of a driver version.

    `max_cuda` is what it supports natively; `dropped_below` the lowest compute capability that it
    still drives; `adds` the chips ("GB202") that it was the first to drive by NVIDIA's documents.
    `open_modules`: whether it has open kernel modules beside the proprietary ones ("optional"),
    whether some GPUs need them, or whether they are its only ones ("only"); None: it has none, or
    it is not known. `latest_seen` is the newest version met in public, released on `latest_date`.
    """

    branch: int
    max_cuda: str
    first_version: str | None
    type: Literal["LTS", "production", "new feature", "developer"] | None
    end_of_life: str | None
    dropped_below: ComputeCapability
    adds: tuple[str, ...]
    source: str
    dropped_source: str
    adds_source: str | None = None
    type_source: str | None = None
    adds_confidence: Confidence = "confirmed"
    confidence: Confidence = "confirmed"
    note: str | None = None
    open_modules: Literal["optional", "required-from-blackwell", "only"] | None = None
    latest_seen: str | None = None
    modules_source: str | None = None
    latest_date: str | None = None
    latest_source: str | None = None


class ForwardCompat(NamedTuple):
    """A cuda-compat package and the kernel driver branches that it may be used on.

    `official_base_branches` is from NVIDIA's current page (None: not on it, or page not read);
    `accepted_base_branches` is what the start check of NVIDIA's images accepts, which
    includes branches past their end of life. (): not read.
    """

    package: str
    provides_cuda: str
    built_from_branch: int
    official_base_branches: tuple[int, ...] | None
    source: str
    accepted_base_branches: tuple[int, ...] = ()
    confidence: Confidence = "confirmed"
    note: str | None = None


class HighestMajor(NamedTuple):
    """The highest CUDA major that NVIDIA's page lists for a driver branch without a compat
    package.
    """

    branch: int
    cuda_major: int
    source: str


OpenModules: TypeAlias = Literal["unsupported", "optional", "required"]
"""How a GPU relates to NVIDIA's open kernel modules: it needs the proprietary ones, works with
either, or needs the open ones.
"""


class KernelModules(NamedTuple):
    """Which kernel modules the GPUs from one compute capability on support; a later row takes
    precedence.

    `gpus` (): all of them; else only these, by their names in gpus.json.
    """

    capability: ComputeCapability
    open_modules: OpenModules
    gpus: tuple[str, ...]
    source: str


class CudnnRelease(NamedTuple):
    """A cuDNN release for one CUDA major, as a package. `archs` (): only for Windows."""

    version: str
    cuda_major: int
    capabilities: tuple[ComputeCapability, ...]
    min_driver: str
    archs: tuple[Arch, ...]
    upload_date: str | None
    yanked: bool
    source: str
    sm_source: str
    sm_confidence: Confidence = "confirmed"


class NcclRelease(NamedTuple):
    """An NCCL release for one CUDA major, as a package."""

    version: str
    cuda_major: int
    sm_min: ComputeCapability
    archs: tuple[Arch, ...]
    upload_date: str | None
    source: str
    sm_confidence: Confidence = "confirmed"
