"""The tables of the catalog as rows.

Those that every plan needs are read at once. The others, TensorFlow's, JAX's and those of NVIDIA's
images among them, are read on first use: reading them all takes longer than a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final

from provision.catalog.data_files import DataFiles
from provision.catalog.images import image_maker, python_image_maker
from provision.catalog.rows import Conflict, Excused
from provision.catalog.rows.bases import (
    CudaImage,
    DebianSuite,
    DevelImage,
    PythonRelease,
    StartRule,
    UbuntuRelease,
)
from provision.catalog.rows.frameworks import (
    JaxPlugin,
    JaxRelease,
    TensorflowGpu,
    TensorflowRelease,
    TensorflowWheel,
    TorchBuild,
    TorchRelease,
)
from provision.catalog.rows.gpus import BinaryNote, GpuModel, OtherVendor
from provision.catalog.rows.nvidia import (
    CompilerWheels,
    CudaDropped,
    CudaFamily,
    CudaToolkit,
    CudnnRelease,
    DriverBranch,
    ForwardCompat,
    HighestMajor,
    KernelModules,
    NcclRelease,
)
from provision.catalog.tables import FILES


class CatalogTables:
    """Every table under a name of its own, its rows in the order of the file."""

    def __init__(self, files: DataFiles) -> None:
        """CatalogError: a row is malformed."""
        cuda, drivers, gpus, torch, bases = [files[name] for name in FILES[:5]]
        self.files: Final = files
        self.families: Final = cuda.rows("families", CudaFamily)
        self.toolkits: Final = cuda.rows("toolkits", CudaToolkit)
        self.branches: Final = drivers.rows("branches", DriverBranch)
        """Oldest first, as the Pythons."""
        self.compat_packages: Final = drivers.rows("forward_compat", ForwardCompat)
        self.gpus: Final = gpus.rows("gpus", GpuModel)
        self.torch_releases: Final = torch.rows("releases", TorchRelease)
        self.torch: Final = torch.rows("builds", TorchBuild)
        self.debian_suites: Final = bases.rows("debian_suites", DebianSuite)
        """The preferred one first, as the images of Python."""
        self.pythons: Final = bases.rows("pythons", PythonRelease)
        self.python_images: Final = bases.rows(
            "python_images",
            python_image_maker(bases.text("python_reference"), self.debian_suites),
        )
        self.compilers: Final = bases.rows("compiler_wheels", CompilerWheels)
        self.pytorch_index_template: Final = torch.text("index")
        self.redist_template: Final = cuda.text("redistributables")

    @cached_property
    def dropped(self) -> tuple[CudaDropped, ...]:
        """Which CUDA stopped compiling for which GPUs, oldest first."""

        def make(**values: object) -> CudaDropped:
            row: Callable[..., CudaDropped] = CudaDropped
            return row(cuda=values.pop("in"), **values)

        return self.files["cuda.json"].rows("dropped", make)

    @cached_property
    def highest_majors(self) -> tuple[HighestMajor, ...]:
        """The CUDA majors of driver branches, as NVIDIA's page has them."""
        return self.files["drivers.json"].rows("highest_majors", HighestMajor)

    @cached_property
    def kernel_modules(self) -> tuple[KernelModules, ...]:
        """Which GPUs support NVIDIA's open kernel modules, by compute capability, lowest first."""

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
        return self.files["gpus.json"].rows("other_vendors", OtherVendor)

    @cached_property
    def ubuntu_releases(self) -> tuple[UbuntuRelease, ...]:
        """What NVIDIA's images are built on, the newest first."""
        return self.files["bases.json"].rows("ubuntu_releases", UbuntuRelease)

    @cached_property
    def tensorflow_releases(self) -> tuple[TensorflowRelease, ...]:
        """TensorFlow's releases and candidates, oldest first."""
        return self.files["tensorflow.json"].rows("tensorflow_releases", TensorflowRelease)

    @cached_property
    def tensorflow_wheels(self) -> tuple[TensorflowWheel, ...]:
        """Their wheels, one row per machine."""
        return self.files["tensorflow.json"].rows("tensorflow_wheels", TensorflowWheel)

    @cached_property
    def tensorflow_gpu(self) -> tuple[TensorflowGpu, ...]:
        """The releases of the old package tensorflow-gpu."""
        return self.files["tensorflow.json"].rows("tensorflow_gpu", TensorflowGpu)

    @cached_property
    def jax_releases(self) -> tuple[JaxRelease, ...]:
        """The releases of jaxlib, oldest first."""
        return self.files["jax.json"].rows("jax_releases", JaxRelease)

    @cached_property
    def jax_plugins(self) -> tuple[JaxPlugin, ...]:
        """Their CUDA plugins."""
        return self.files["jax.json"].rows("jax_plugins", JaxPlugin)

    @cached_property
    def cudnn(self) -> tuple[CudnnRelease, ...]:
        """The releases of cuDNN by CUDA major, oldest first."""
        return self.files["nvidia.json"].rows("cudnn", CudnnRelease)

    @cached_property
    def nccl(self) -> tuple[NcclRelease, ...]:
        """The releases of NCCL by CUDA major, oldest first."""
        return self.files["nvidia.json"].rows("nccl", NcclRelease)

    @cached_property
    def images(self) -> tuple[CudaImage, ...]:
        """NVIDIA's images, by tag."""
        file = self.files["images.json"]
        return file.rows("images", image_maker(file.text("image_reference"), self.ubuntu_releases))

    @cached_property
    def devel(self) -> tuple[DevelImage, ...]:
        """Those with compiler and headers on an Ubuntu, without TensorRT."""
        return tuple(
            [row for row in self.images if isinstance(row, DevelImage) and not row.tensorrt]
        )

    @cached_property
    def start_rules(self) -> tuple[StartRule, ...]:
        """What images require of the driver before they start."""
        return self.files["images.json"].rows("start_rules", StartRule)

    @cached_property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Where sources disagree, over all files."""
        return tuple(
            [row for name in FILES for row in self.files[name].rows("conflicts", Conflict)]
        )

    @cached_property
    def excused(self) -> tuple[Excused, ...]:
        """The rows that are known to break a rule, over all files."""
        return tuple(
            [row for name in FILES for row in self.files[name].rows("exceptions", Excused)]
        )


ON_DEMAND = tuple(
    n for n, value in vars(CatalogTables).items() if isinstance(value, cached_property)
)
"""The tables that are read on first use."""
