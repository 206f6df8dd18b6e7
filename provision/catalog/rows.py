"""The rows of the catalog: one upstream fact each, frozen, versions in the upstream spelling.

`source` is the full text of where the fact was read; several are joined by "; ". Where part of a
row is less sure than the rest, a `*_confidence` beside it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from provision.model import ComputeCapability

Confidence: TypeAlias = Literal["confirmed", "likely", "doubtful", "assumed"]
"""confirmed: read at the source. likely, doubtful: how far it is believed. assumed: not read
here, but carried over from a neighbouring row by the rule that the file's `about` states."""

Arch: TypeAlias = Literal["x86_64", "aarch64"]
Place: TypeAlias = Literal["pytorch", "pypi"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFamily:
    """A CUDA major with minor-version compatibility, and the one driver floor of its minors."""

    major: int
    min_driver: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaToolkit:
    """One toolkit release: cuda "11.7", full "11.7.1", update 1.

    `driver` is the Linux driver it shipped with; None where none was published.
    """

    cuda: str
    full: str
    update: int
    driver: str | None
    minor_version_compatibility: bool
    sm_targets: tuple[ComputeCapability, ...]
    source: str
    sm_source: str
    confidence: Confidence = "confirmed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverBranch:
    """A driver branch: the number before the first dot of a driver version.

    `max_cuda` is what it supports natively; `dropped_below` the lowest compute capability that it
    still drives; `adds` those that it was the first to drive.
    """

    branch: int
    max_cuda: str
    first_version: str | None
    type: Literal["LTS", "production", "new feature", "developer"] | None
    end_of_life: str | None
    dropped_below: ComputeCapability
    adds: tuple[ComputeCapability, ...]
    source: str
    dropped_source: str
    type_source: str | None = None
    adds_confidence: Confidence = "confirmed"
    confidence: Confidence = "confirmed"
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCompat:
    """A cuda-compat package and the kernel driver branches that it may be laid upon.

    `official_base_branches` is NVIDIA's current page (None: too old to be on it);
    `accepted_base_branches` is what the start check of NVIDIA's images lets through, which
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """A GPU by the name that NVML prints.

    `forward_compat_eligible` None: only select server models of that card are.
    """

    name: str
    compute_capability: ComputeCapability
    architecture: str
    kind: Literal["data-centre", "workstation", "geforce", "titan", "jetson", "dgx-spark"]
    data_centre: bool
    forward_compat_eligible: bool | None
    memory_gb: int | None
    source: str
    confidence: Confidence = "confirmed"
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRelease:
    """A PyTorch release, its companions, and the NumPy that its wheels were compiled against."""

    version: str
    requires_python: str
    torchvision: str | None
    torchaudio: str | None
    upload_time: str
    yanked: bool
    numpy: str | None
    source: str
    numpy_source: str | None = None
    pairing_note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """One Linux build of a release: (version, tag, arch) names it. A CPU build has no `cuda`.

    `sm` are the capabilities with binary code; (): a CPU build, or its list was not read.
    `at` are the places that have it, the one to ask first in front.
    """

    version: str
    tag: str
    cuda: str | None
    arch: Arch
    python_tags: tuple[str, ...]
    sm: tuple[ComputeCapability, ...]
    ptx: ComputeCapability | None
    cudnn: str | None
    nccl: str | None
    glibc: str | None
    existence: Literal["confirmed", "likely", "doubtful"]
    at: tuple[Place, ...]
    source: str
    sm_source: str | None = None
    sm_confidence: Confidence = "confirmed"
    python_confidence: Confidence = "confirmed"
    glibc_confidence: Confidence = "confirmed"
    pins: tuple[str, ...] = ()
    size_min_bytes: int | None = None
    size_max_bytes: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianSuite:
    """A Debian release with its own Python and glibc: what a bootstrap installs."""

    suite: str
    release: str
    python: str
    glibc: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UbuntuRelease:
    """An Ubuntu release with its own Python and glibc: what NVIDIA's images stand on."""

    release: str
    python: str
    glibc: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonImage:
    """An official Python image. `reference` and `glibc` follow from its suite."""

    python: str
    suite: str
    reference: str
    glibc: str
    source: str
    confidence: Confidence = "confirmed"
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevelImage:
    """An nvidia/cuda image with compiler and headers; Python and glibc are its Ubuntu's.

    `archs` None: not recorded. `status` inferred: its existence follows from another tag's.
    """

    cuda: str
    full: str
    ubuntu: str
    tag: str
    cudnn: bool
    cudnn_version: str | None
    archs: tuple[Arch, ...] | None
    status: Literal["supported", "end-of-life", "seen", "inferred"]
    reference: str
    python: str
    glibc: str
    source: str
    confidence: Confidence = "confirmed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerWheels:
    """NVIDIA's compiler and headers of CUDA X.Y as packages of the index: one requirement line."""

    cuda: str
    requirement: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two sources that disagree, and which one the rows follow."""

    what: str
    a: str
    b: str
    use: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Excused:
    """A row that is known to break an invariant of `provision.catalog.check`, and why."""

    rule: str
    row: str
    reason: str
    source: str
