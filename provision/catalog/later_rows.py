"""The rows that a PyTorch plan on a plain Python image does not need: TensorFlow, JAX, the
libraries that they leave open, and NVIDIA's images.

The conventions are those of `provision.catalog.rows`, which exports these too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from provision.catalog.rows import Arch, Confidence
from provision.model.plan import ComputeCapability

Flavour: TypeAlias = Literal["base", "runtime", "devel"]


class TensorflowRelease(NamedTuple):
    """A TensorFlow release: the CUDA X.Y and cuDNN it was built and tested with.

    `libraries`: "extra" brings CUDA with tensorflow[and-cuda], "system" expects it in the image.
    `cuda` None: a candidate whose CUDA was not published. `sm` () and `ptx` None: not read.
    `ptx_only` is the target ("sm_90a") of kernels that exist as PTX only, `ptx_only_cuda` the
    CUDA whose drivers are the first to compile that PTX.
    """

    version: str
    cuda: str | None
    cudnn: str | None
    libraries: Literal["system", "extra"]
    requires_python: str | None
    upload_time: str | None
    yanked: bool
    prerelease: bool
    sm: tuple[ComputeCapability, ...]
    ptx: ComputeCapability | None
    source: str
    sm_source: str | None = None
    sm_confidence: Confidence = "confirmed"
    ptx_only: str | None = None
    ptx_only_cuda: str | None = None
    ptx_only_source: str | None = None
    note: str | None = None


class TensorflowWheel(NamedTuple):
    """The Linux wheels of one release for one machine; `gpu` is whether they hold GPU code.

    `pins` are the requirements of the and-cuda extra; `stands_for` the packages that an empty wheel
    points to. `extra_python_tags` are those that can install the extra; None: all.
    """

    version: str
    arch: Arch
    gpu: bool
    python_tags: tuple[str, ...]
    glibc: str
    size_max_bytes: int
    source: str
    pins: tuple[str, ...] = ()
    stands_for: tuple[str, ...] = ()
    extra_python_tags: tuple[str, ...] | None = None
    extra_source: str | None = None
    confidence: Confidence = "confirmed"


class TensorflowGpu(NamedTuple):
    """A release of the old package tensorflow-gpu; a "stub" only fails, on purpose."""

    version: str
    content: Literal["wheel", "stub"]
    python_tags: tuple[str, ...]
    source: str


class JaxRelease(NamedTuple):
    """A release of jaxlib. `glibc` suffices for all of its wheels."""

    version: str
    python_tags: tuple[str, ...]
    archs: tuple[Arch, ...]
    glibc: str
    source: str
    upload_time: str | None = None
    note: str | None = None


class JaxPlugin(NamedTuple):
    """The CUDA plugin of one jaxlib release: its requirements, as specifier sets; None: nothing.

    `extra` is that of the package jax ("jax[cuda12]"), `plugin_extra` the plugin's own. `toolkits`
    are the CUDA X.Y beside which it can be installed; `broken` says why it cannot be at all.
    """

    version: str
    cuda_major: int
    package: str
    extra: str
    cuda_runtime: str | None
    cudnn: str | None
    nccl: str | None
    min_driver: str
    sm_min: ComputeCapability
    source: str
    driver_source: str
    plugin_extra: str | None = None
    toolkits: str = ""
    toolkits_source: str | None = None
    broken: str | None = None


class OtherVendor(NamedTuple):
    """A GPU vendor that this catalog has no rows for, and how to recognize its names."""

    vendor: str
    pattern: re.Pattern[str]
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


class UbuntuRelease(NamedTuple):
    """An Ubuntu release with its own Python and glibc, which NVIDIA's images are built on."""

    release: str
    python: str
    glibc: str
    source: str


class CudaImage(NamedTuple):
    """An nvidia/cuda image: cuda "11.7", full "11.7.1", all of it read from the tag.

    `cudnn` is whether cuDNN is inside, `cudnn_version` which one (None: none, or not known).
    `python` and `glibc` are its Ubuntu's; None for other systems. `archs` None: not recorded.
    `status` seen: found outside NVIDIA's list; inferred: follows from another tag.
    """

    tag: str
    cuda: str
    full: str
    flavour: Flavour
    cudnn: bool
    cudnn_version: str | None
    tensorrt: bool
    os: str
    archs: tuple[Arch, ...] | None
    status: Literal["supported", "end-of-life", "seen", "inferred"]
    reference: str
    python: str | None
    glibc: str | None
    source: str
    confidence: Confidence = "confirmed"

    @property
    def listed(self) -> bool:
        """Whether NVIDIA's own list has it."""
        return self.status in {"supported", "end-of-life"}


class DevelImage(CudaImage):
    """One with compiler and headers whose Python is known."""

    __slots__ = ()
    if TYPE_CHECKING:
        python: str
        glibc: str


class StartRule(NamedTuple):
    """What images of one CUDA require of the driver before they start, on each system of `os`.

    The driver supports `min_cuda`, or its branch and the GPU's brand are among `brands`; for a
    branch without brands, the brands were not read. `eol` None: not known.
    """

    cuda: str
    os: tuple[str, ...]
    min_cuda: str
    brands: Mapping[int, tuple[str, ...]]
    eol: bool | None
    source: str
    confidence: Confidence = "confirmed"
    note: str | None = None

    def __hash__(self) -> int:  # the brands are a dict
        return hash((self.cuda, self.os))
