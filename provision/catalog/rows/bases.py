"""What images are built on: systems, Pythons, and NVIDIA's own images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from provision.catalog.rows import Arch, Confidence

Flavour: TypeAlias = Literal["base", "runtime", "devel"]


class DebianSuite(NamedTuple):
    """A Debian release with its own Python and glibc: what a bootstrap installs."""

    suite: str
    release: str
    python: str
    glibc: str
    source: str


class UbuntuRelease(NamedTuple):
    """An Ubuntu release with its own Python and glibc, which NVIDIA's images are built on."""

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
