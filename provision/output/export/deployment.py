"""What is exported: an image, a command, and the resources that it gets."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from images.text.printable import printable
from provision.errors import BadInputError, ImageNotPullableError
from provision.model import grammar
from provision.model.plan import TITLES, ComputeCapability, Framework
from provision.model.request import quoted

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

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IN_VALUES = "\n\t\xa0"
"""Characters that words of a command and values of variables may have besides printable ones."""

ImageKind = Literal["reference", "engine", "oci", "oci-archive", "docker-archive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """An image by kind: `name` is a reference, or "PATH[:NAME]" with an absolute path."""

    kind: ImageKind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """An image and how it is to run. No text in it has an unprintable character; words and values
    may have line ends and tabs. The versions and the names of variables are what they should be,
    so that they may be written into any file. BadInputError: a text is something else.

    `gpus` are those of each node, None: all of them. `products` are the kinds of GPU by the names
    that NVML prints, `capabilities` those of GPUs whose name is not known; () if any will do.
    `driver` is the oldest that the image needs on these GPUs, None if that is not known. `user` is
    the numeric user, 0 for root.
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
    capabilities: tuple[ComputeCapability, ...] = ()
    driver: str | None = None
    user: int = 0
    gate: bool = False

    def __post_init__(self) -> None:
        words = (*self.command, *(value for _, value in self.environment))
        for text in (self.name, self.image.name, *self.products):
            _refuse(text, fits=text.isprintable())
        for text in words:
            _refuse(text, fits=all(c.isprintable() or c in _IN_VALUES for c in text))
        for name, _ in self.environment:
            _refuse(name, fits=VARIABLE.fullmatch(name) is not None)
        for text, kind in self._versions():
            _refuse(text, fits=kind.fits(text))

    def _versions(self) -> Iterator[tuple[str, grammar.Grammar]]:
        yield self.framework_version, grammar.VERSION
        yield self.cuda, grammar.NUMBERS
        if self.arch is not None:
            yield self.arch, grammar.NAME
        if self.driver is not None:
            yield self.driver, grammar.NUMBERS

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


def remark(text: str, sign: str = "#") -> str:
    """One line of a comment, whatever the text is."""
    return f"{sign} {printable(text, keep=_IN_VALUES[1:])}".rstrip()


def _refuse(text: str, *, fits: bool) -> None:
    if not fits:
        raise BadInputError(
            f"{quoted(text)} cannot be written into a file that runs an image.",
            fix="Use printable characters; put other ones into a script, and run that.",
        )


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


def over_the_network(one: Deployment, how: str) -> list[str]:
    """What a job of several nodes does not request, in lines of a comment; [] for one node. `how`:
    sentences that say how to add it.
    """
    if one.nodes == 1:
        return []
    text = (
        "Between nodes this job uses TCP: it requests neither RDMA devices nor the right to lock "
        f"memory, which InfiniBand, RoCE and EFA need. {how} With NCCL_DEBUG=INFO, NCCL prints the "
        "transport that it uses."
    )
    return [remark(line) for line in textwrap.wrap(text, 98)]


def size(size_bytes: int, units: tuple[str, str, str]) -> str:
    """A size with the unit for GiB, MiB or bytes that divides it."""
    for step, unit in ((GIB, units[0]), (MIB, units[1])):
        if size_bytes % step == 0:
            return f"{size_bytes // step}{unit}"
    return f"{size_bytes}{units[2]}"
