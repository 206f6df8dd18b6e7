"""PyTorch, TensorFlow and JAX."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from provision.catalog.rows import Arch, Confidence
from provision.model.plan import ComputeCapability

Place: TypeAlias = Literal["pytorch", "pypi"]


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
    source: str
    size_max_bytes: int | None = None
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
