"""What is exported: an image, a command, and the resources that it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from provision.errors import ImageNotPullableError
from provision.model.plan import TITLES, Framework

GIB, MIB = 1 << 30, 1 << 20
SHM_BYTES_PER_GPU = GIB
"""What NCCL's documentation gives a container:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#docker
Each GPU's process has data loader workers, too, which share memory through the same directory.
"""
STACK_BYTES = 64 * MIB
"""The stack limit in NVIDIA's instructions for its own images:
https://docs.nvidia.com/deeplearning/frameworks/user-guide/
"""
WORKSPACE = "/workspace"
"""The directory in which images of `provision build` start."""
GATE = ("verify", "--level", "quick", "--require", "gpu")
"""Runs the suite; it ends with 1 if a check fails or no GPU could be tested."""
PORT = 29500
"""torchrun's own default: https://docs.pytorch.org/docs/stable/elastic/run.html"""

ImageKind = Literal["reference", "engine", "oci", "oci-archive", "docker-archive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """An image by kind: `name` is a reference, or "PATH[:NAME]" with an absolute path."""

    kind: ImageKind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """An image and how it is to run. No text in it has an unprintable character; words and values
    may have line ends and tabs.

    `gpus` are those of each node, None: all of them. `products` are the kinds of GPU by the names
    that NVML prints, () if any will do. `driver` is the oldest that the image's CUDA needs, None if
    that is not known. `user` is the numeric user, 0 for root.
    """

    image: ImageSource
    name: str
    command: tuple[str, ...]
    framework: Framework
    framework_version: str
    cuda: str
    arch: str | None = None
    gpus: int | None = 1
    nodes: int = 1
    shm_bytes: int | None = None
    environment: tuple[tuple[str, str], ...] = ()
    products: tuple[str, ...] = ()
    driver: str | None = None
    user: int = 0
    gate: bool = False

    @property
    def title(self) -> str:
        """ "PyTorch 2.9.1, CUDA 12.8"."""
        return f"{TITLES[self.framework]} {self.framework_version}, CUDA {self.cuda}"

    @property
    def room(self) -> str:
        """ "2 nodes with 8 GPUs each"."""
        count = "all GPUs" if self.gpus is None else f"{self.gpus} GPU{'s' * (self.gpus != 1)}"
        return count if self.nodes == 1 else f"{self.nodes} nodes with {count} each"

    @property
    def shm(self) -> int:
        """The size of /dev/shm in bytes."""
        return self.shm_bytes or (self.gpus or 1) * SHM_BYTES_PER_GPU


def reference_of(one: Deployment, consumer: str, *, engine: bool = False) -> str:
    """The image's reference, for a consumer that pulls it; with `engine` an image of this
    machine's engine will do. ImageNotPullableError: it is neither.
    """
    kind = one.image.kind
    if kind == "reference" or (engine and kind == "engine"):
        return one.image.name
    what = "an image of this machine's engine" if kind == "engine" else "a file or a directory"
    raise ImageNotPullableError(
        f"{consumer} needs an image of a registry, and {one.image.name} is {what}.",
        fix="Push it, and name it as REGISTRY/PATH:TAG: provision build --push REGISTRY/PATH:TAG",
    )


def size(size_bytes: int, units: tuple[str, str, str]) -> str:
    """A size with the unit for GiB, MiB or bytes that divides it."""
    for step, unit in ((GIB, units[0]), (MIB, units[1])):
        if size_bytes % step == 0:
            return f"{size_bytes // step}{unit}"
    return f"{size_bytes}{units[2]}"
