"""The tables that a PyTorch plan does not need: read on first use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from provision.catalog.reading import DataFiles
from provision.catalog.rows import BinaryNote
from provision.catalog.tables import FILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from provision.catalog.later_rows import (
        CudaImage,
        CudnnRelease,
        DevelImage,
        JaxPlugin,
        JaxRelease,
        NcclRelease,
        OtherVendor,
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

LATER = (
    "dropped",
    "highest_majors",
    "kernel_modules",
    "binary_notes",
    "other_vendors",
    "ubuntu_releases",
    "tensorflow_releases",
    "tensorflow_wheels",
    "tensorflow_gpu",
    "jax_releases",
    "jax_plugins",
    "cudnn",
    "nccl",
    "images",
    "start_rules",
)
"""The tables that are read on first use; `Catalog` has each by its name."""


class LaterTables:
    """Each table under its own name, read once."""

    files: DataFiles

    @cached_property
    def shipped_date(self) -> str:
        """The date of the newest of the files."""
        return max(self.files[name].text("date") for name in FILES)

    @cached_property
    def dropped(self) -> tuple[CudaDropped, ...]:
        """Which CUDA stopped compiling for which GPUs, oldest first."""
        from provision.catalog.side_rows import CudaDropped

        def make(**values: object) -> CudaDropped:
            row: Callable[..., CudaDropped] = CudaDropped
            return row(cuda=values.pop("in"), **values)

        return self.files["cuda.json"].rows("dropped", make)

    @cached_property
    def highest_majors(self) -> tuple[HighestMajor, ...]:
        """The CUDA majors of driver branches, as NVIDIA's page has them."""
        from provision.catalog.side_rows import HighestMajor

        return self.files["drivers.json"].rows("highest_majors", HighestMajor)

    @cached_property
    def kernel_modules(self) -> tuple[KernelModules, ...]:
        """Which GPUs support NVIDIA's open kernel modules, by compute capability, lowest first."""
        from provision.catalog.side_rows import KernelModules

        def make(**values: object) -> KernelModules:
            row: Callable[..., KernelModules] = KernelModules
            return row(capability=values.pop("from"), **values)

        return self.files["drivers.json"].rows("kernel_modules", make)

    @cached_property
    def binary_notes(self) -> tuple[BinaryNote, ...]:
        """GPUs that few wheels have native code for."""
        return self.files["gpus.json"].rows("binary_notes", BinaryNote)

    @cached_property
    def other_vendors(self) -> tuple[OtherVendor, ...]:
        """The makers of GPUs that are not NVIDIA's."""
        from provision.catalog.later_rows import OtherVendor

        return self.files["gpus.json"].rows("other_vendors", OtherVendor)

    @cached_property
    def ubuntu_releases(self) -> tuple[UbuntuRelease, ...]:
        """What NVIDIA's images are built on, the newest first."""
        from provision.catalog.later_rows import UbuntuRelease

        return self.files["bases.json"].rows("ubuntu_releases", UbuntuRelease)

    @cached_property
    def tensorflow_releases(self) -> tuple[TensorflowRelease, ...]:
        """TensorFlow's releases and candidates, oldest first."""
        from provision.catalog.later_rows import TensorflowRelease

        return self.files["tensorflow.json"].rows("tensorflow_releases", TensorflowRelease)

    @cached_property
    def tensorflow_wheels(self) -> tuple[TensorflowWheel, ...]:
        """Their wheels, one row per machine."""
        from provision.catalog.later_rows import TensorflowWheel

        return self.files["tensorflow.json"].rows("tensorflow_wheels", TensorflowWheel)

    @cached_property
    def tensorflow_gpu(self) -> tuple[TensorflowGpu, ...]:
        """The releases of the old package tensorflow-gpu."""
        from provision.catalog.later_rows import TensorflowGpu

        return self.files["tensorflow.json"].rows("tensorflow_gpu", TensorflowGpu)

    @cached_property
    def jax_releases(self) -> tuple[JaxRelease, ...]:
        """The releases of jaxlib, oldest first."""
        from provision.catalog.later_rows import JaxRelease

        return self.files["jax.json"].rows("jax_releases", JaxRelease)

    @cached_property
    def jax_plugins(self) -> tuple[JaxPlugin, ...]:
        """Their CUDA plugins."""
        from provision.catalog.later_rows import JaxPlugin

        return self.files["jax.json"].rows("jax_plugins", JaxPlugin)

    @cached_property
    def cudnn(self) -> tuple[CudnnRelease, ...]:
        """The releases of cuDNN by CUDA major, oldest first."""
        from provision.catalog.later_rows import CudnnRelease

        return self.files["nvidia.json"].rows("cudnn", CudnnRelease)

    @cached_property
    def nccl(self) -> tuple[NcclRelease, ...]:
        """The releases of NCCL by CUDA major, oldest first."""
        from provision.catalog.later_rows import NcclRelease

        return self.files["nvidia.json"].rows("nccl", NcclRelease)

    @cached_property
    def images(self) -> tuple[CudaImage, ...]:
        """NVIDIA's images, by tag."""
        from provision.catalog.images import image_maker

        file = self.files["images.json"]
        return file.rows("images", image_maker(file.text("image_reference"), self.ubuntu_releases))

    @cached_property
    def devel(self) -> tuple[DevelImage, ...]:
        """Those with compiler and headers on an Ubuntu, without TensorRT."""
        from provision.catalog.later_rows import DevelImage

        return tuple(
            [row for row in self.images if isinstance(row, DevelImage) and not row.tensorrt]
        )

    @cached_property
    def start_rules(self) -> tuple[StartRule, ...]:
        """What images require of the driver before they start."""
        from provision.catalog.later_rows import StartRule

        return self.files["images.json"].rows("start_rules", StartRule)

    @cached_property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Where sources disagree, over all files."""
        from provision.catalog.side_rows import Conflict

        return tuple(
            [row for name in FILES for row in self.files[name].rows("conflicts", Conflict)]
        )

    @cached_property
    def excused(self) -> tuple[Excused, ...]:
        """The rows that are known to break a rule, over all files."""
        from provision.catalog.side_rows import Excused

        return tuple(
            [row for name in FILES for row in self.files[name].rows("exceptions", Excused)]
        )
