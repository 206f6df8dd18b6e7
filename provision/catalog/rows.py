"""The rows of the catalog: one upstream fact each, immutable, versions in the upstream spelling.

`source` is the full text of where the fact was read; several are joined by "; ". Where part of a
row is less sure than the rest, a `*_confidence` beside it says so.

Creating a class takes longer than reading its table, and a dataclass five times as long as a named
tuple: so the rows are named tuples, and those that a PyTorch plan does not need are in separate
modules, imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from provision.model.plan import ComputeCapability

if TYPE_CHECKING:
    from provision.catalog.later_rows import (
        CudaImage,
        CudnnRelease,
        DevelImage,
        JaxPlugin,
        JaxRelease,
        NcclRelease,
        StartRule,
        TensorflowGpu,
        TensorflowRelease,
        TensorflowWheel,
        UbuntuRelease,
    )
    from provision.catalog.side_rows import (
        Conflict,
        CudaDropped,
        Excused,
        HighestMajor,
        KernelModules,
    )

__all__ = [
    "Arch",
    "BinaryNote",
    "CompilerWheels",
    "Confidence",
    "Conflict",
    "CudaDropped",
    "CudaFamily",
    "CudaImage",
    "CudaToolkit",
    "CudnnRelease",
    "DebianSuite",
    "DevelImage",
    "DriverBranch",
    "Excused",
    "ForwardCompat",
    "GpuModel",
    "HighestMajor",
    "JaxPlugin",
    "JaxRelease",
    "KernelModules",
    "NcclRelease",
    "Place",
    "PythonImage",
    "PythonRelease",
    "StartRule",
    "TensorflowGpu",
    "TensorflowRelease",
    "TensorflowWheel",
    "TorchBuild",
    "TorchRelease",
    "UbuntuRelease",
]

Confidence: TypeAlias = Literal["confirmed", "likely", "doubtful", "assumed"]
"""confirmed: read at the source. likely, doubtful: how credible it is. assumed: not read here, but
carried over from a neighbouring row by the rule that the file's `about` states.
"""

Arch: TypeAlias = Literal["x86_64", "aarch64"]
Place: TypeAlias = Literal["pytorch", "pypi"]


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


class GpuModel(NamedTuple):
    """A GPU by the name that NVML prints; `aliases` are other names of the same chip.

    `chip` ("GB202") says which driver branches drive it (`DriverBranch.adds`); None: a chip older
    than the oldest branch of the table, or one of a Jetson. `driver_from` is the oldest driver
    whose own documents list the product. `host_arch` is that of every machine that has it; None: a
    card or module for any architecture. `forward_compat_eligible` None: only select server models
    of that card are. `tflops` are dense peak rates, by fp32, tf32, fp16, bf16, fp8; None:
    unsupported or unknown.
    """

    name: str
    compute_capability: ComputeCapability
    architecture: str
    kind: Literal["data-centre", "workstation", "geforce", "titan", "jetson", "dgx-spark"]
    data_centre: bool
    forward_compat_eligible: bool | None
    memory_gb: int | None
    memory_bandwidth_gbs: float | None
    tflops: Mapping[str, float | None]
    nvlink: bool | None
    source: str
    confidence: Confidence = "confirmed"
    note: str | None = None
    figures_confidence: Confidence = "doubtful"
    aliases: tuple[str, ...] = ()
    chip: str | None = None
    driver_from: str | None = None
    driver_source: str | None = None
    host_arch: Arch | None = None

    def __hash__(self) -> int:  # the peak rates are a dict
        return hash(self.name)


class TorchRelease(NamedTuple):
    """A PyTorch release, its companions, and the NumPy that its wheels were compiled against."""

    version: str
    requires_python: str | None
    torchvision: str | None
    torchaudio: str | None
    upload_time: str | None
    yanked: bool
    numpy: str | None
    source: str
    numpy_source: str | None = None
    pairing_note: str | None = None


class TorchBuild(NamedTuple):
    """One Linux build of a release: (version, tag, arch) names it. A CPU build has no `cuda`.

    `sm` are the capabilities with binary code; (): a CPU build, or its list was not read.
    `at` are the places that have it, the preferred one first.
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


class DebianSuite(NamedTuple):
    """A Debian release with its own Python and glibc: what a bootstrap installs."""

    suite: str
    release: str
    python: str
    glibc: str
    source: str


class PythonRelease(NamedTuple):
    """A Python X.Y and the day of its first release ("2024-10-07")."""

    python: str
    released: str
    source: str


class PythonImage(NamedTuple):
    """An official Python image. `reference` and `glibc` follow from its suite."""

    python: str
    suite: str
    reference: str
    glibc: str
    source: str
    confidence: Confidence = "confirmed"
    note: str | None = None


class BinaryNote(NamedTuple):
    """Whether code of the same major and a lower minor has been shown to run on a GPU."""

    compute_capability: ComputeCapability
    proven: bool
    source: str


class CompilerWheels(NamedTuple):
    """NVIDIA's compiler and headers of CUDA X.Y as packages of an index: one requirement line."""

    cuda: str
    requirement: str
    source: str


if not TYPE_CHECKING:

    def __getattr__(name: str) -> type:
        if name not in __all__:
            raise AttributeError(f"module {__name__} has no attribute {name}")
        side = name in {"Conflict", "CudaDropped", "Excused", "HighestMajor", "KernelModules"}
        module = import_module(f"provision.catalog.{'side' if side else 'later'}_rows")
        return getattr(module, name)
