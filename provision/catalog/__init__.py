"""The knowledge: what goes with what, as data. A file an upstream, a row a fact, with its source.

`load` reads the tables of `data/` into rows and raises CatalogError at the first value of the wrong
shape; those that a PyTorch plan does not need are read when they are first asked for.
`provision.catalog.check` holds how rows fit together. How rows are joined into a decision is code
(`provision.resolve`); nothing joined is stored. `current` lays over them what the user's own copy
holds (`provision.catalog.overlay`).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import suppress
from functools import cache, cached_property
from typing import TYPE_CHECKING

from provision.catalog.gpus import GpuMatch, GpuNames
from provision.catalog.reading import DataFiles, WrongError, overlay_file
from provision.catalog.rows import (
    BinaryNote,
    CompilerWheels,
    CudaFamily,
    CudaToolkit,
    DebianSuite,
    DriverBranch,
    ForwardCompat,
    GpuModel,
    PythonImage,
    PythonRelease,
    TorchBuild,
    TorchRelease,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import dataclass
    from pathlib import Path

    from provision.catalog.later_rows import (
        CudaImage,
        CudnnRelease,
        DevelImage,
        Flavour,
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
    from provision.catalog.overlay import Overlay
    from provision.catalog.side_rows import (
        Conflict,
        CudaDropped,
        Excused,
        HighestMajor,
        KernelModules,
        OpenModules,
    )
    from provision.model.plan import ComputeCapability
else:
    from provision.model.frozen import dataclass

__all__ = ["DATA", "FILES", "LATER", "Catalog", "GpuMatch", "current", "load"]

DATA = os.path.join(os.path.dirname(__file__), "data")  # noqa: PTH118, PTH120  pathlib starts slowly
"""Where the tables lie."""

FILES = (
    "cuda.json",
    "drivers.json",
    "gpus.json",
    "torch.json",
    "bases.json",
    "tensorflow.json",
    "jax.json",
    "nvidia.json",
    "images.json",
)
"""The files of tables; the first five are read at every start."""

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
"""The tables that are read when they are first asked for; `Catalog` has each by its name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalog:
    """Every row, in the order of the files, and the look-ups that the rules need."""

    files: DataFiles
    families: tuple[CudaFamily, ...]
    toolkits: tuple[CudaToolkit, ...]
    branches: tuple[DriverBranch, ...]  # oldest first
    compat_packages: tuple[ForwardCompat, ...]
    gpus: tuple[GpuModel, ...]
    torch_releases: tuple[TorchRelease, ...]
    torch: tuple[TorchBuild, ...]
    debian_suites: tuple[DebianSuite, ...]  # the one to prefer first, as all that follow
    pythons: tuple[PythonRelease, ...]  # oldest first
    python_images: tuple[PythonImage, ...]
    compilers: tuple[CompilerWheels, ...]
    pytorch_index_template: str
    redist_template: str

    def family(self, cuda: str) -> CudaFamily | None:
        """The family of a CUDA version; None before 11, which had no such thing."""
        return self._families.get(cuda.partition(".")[0])

    def toolkit(self, cuda: str, update: int = 0) -> CudaToolkit | None:
        """One toolkit release of CUDA X.Y; update 0 is the first."""
        return self._toolkits.get((cuda, update))

    def toolkits_of(self, cuda: str) -> tuple[CudaToolkit, ...]:
        """Every update of CUDA X.Y, oldest first."""
        return tuple([row for row in self.toolkits if row.cuda == cuda])

    def cuda_versions(self) -> tuple[str, ...]:
        """Every X.Y that has a toolkit, oldest first."""
        return tuple(dict.fromkeys(row.cuda for row in self.toolkits))

    def branch_of(self, driver: str) -> DriverBranch | None:
        """The newest known branch at or below this driver's; None below the oldest one."""
        position = bisect_right(self._branch_numbers, _branch_number(driver))
        return self.branches[position - 1] if position else None

    def is_known_branch(self, driver: str) -> bool:
        """Whether the table has the branch of this driver itself."""
        return _branch_number(driver) in self._branch_numbers

    def open_modules(
        self, capability: ComputeCapability, name: str | None = None
    ) -> OpenModules | None:
        """Which kernel modules a GPU takes; `name` as in gpus.json.

        None: it is in Jetson modules alone, whose driver is another, or older than every row.
        """
        if capability in self.tegra_capabilities:
            return None
        fitting = [
            row.open_modules
            for row in self.kernel_modules
            if row.capability <= capability and (not row.gpus or name in row.gpus)
        ]
        return fitting[-1] if fitting else None

    def first_branch(self, chip: str) -> DriverBranch | None:
        """The driver branch that was the first to drive a chip, where that is known."""
        return self._first_branches.get(chip)

    def forward_compat(self, cuda: str) -> ForwardCompat | None:
        """The cuda-compat package that brings CUDA X.Y onto an older driver."""
        return self._compat.get(cuda)

    def torch_release(self, version: str) -> TorchRelease | None:
        """One PyTorch release."""
        return self._releases.get(version)

    def torch_builds(
        self, version: str | None = None, cuda: str | None = None, arch: str | None = None
    ) -> tuple[TorchBuild, ...]:
        """The builds that agree with everything given; CPU builds are among them."""
        return tuple(
            [
                row
                for row in self.torch
                if (version is None or row.version == version)
                and (cuda is None or row.cuda == cuda)
                and (arch is None or row.arch == arch)
            ]
        )

    def pytorch_index(self, tag: str) -> str:
        """The PyTorch index of one wheel tag: "cu117", "cpu"."""
        return self.pytorch_index_template.format(tag=tag)

    def cuda_images(
        self, cuda: str, flavour: Flavour, *, cudnn: bool | None
    ) -> tuple[CudaImage, ...]:
        """NVIDIA's images for CUDA X.Y with or without cuDNN (None: either), the newest first.

        Of one toolkit the newest Ubuntu comes first; images that also hold TensorRT are left out.
        """
        from provision.catalog.images import newest_first

        return newest_first(
            [
                row
                for row in self.images
                if row.cuda == cuda
                and row.flavour == flavour
                and (cudnn is None or row.cudnn == cudnn)
                and not row.tensorrt
            ]
        )

    def devel_images(self, cuda: str) -> tuple[DevelImage, ...]:
        """NVIDIA's images with compiler for CUDA X.Y, the newest Ubuntu first.

        Without cuDNN: the wheels bring theirs, and a second one would be found before it.
        """
        from provision.catalog.images import best_first

        return best_first([row for row in self.devel if row.cuda == cuda and not row.cudnn])

    def cuda_image(self, tag: str) -> CudaImage | None:
        """NVIDIA's image of one tag."""
        return self._images.get(tag)

    def start_rule(self, cuda_full: str, os: str) -> StartRule | None:
        """What the images of one toolkit ("12.8.1") ask of the driver on one system
        ("ubuntu24.04"); None where it was not read.
        """
        return self._start_rules.get((cuda_full, os))

    def compiler_wheels(self, cuda: str) -> CompilerWheels | None:
        """NVIDIA's compiler for CUDA X.Y as packages, where they hold one."""
        return next((row for row in self.compilers if row.cuda == cuda), None)

    def binary_note(self, capability: str) -> BinaryNote | None:
        """What is known of older code on the GPUs of one capability ("12.1")."""
        wanted = tuple(int(figure) for figure in capability.split(".") if figure.isdigit())
        return next((row for row in self.binary_notes if row.compute_capability == wanted), None)

    def find_gpu(self, name: str) -> GpuMatch:
        """The GPU that a name means; see `provision.catalog.gpus`."""
        return self._gpu_names.find(name)

    def other_vendor(self, name: str) -> str | None:
        """Who makes a GPU of this name, where it is not NVIDIA."""
        spoken = name.casefold()
        if self.find_gpu(name).status != "unknown" or "nvidia" in spoken:
            return None
        return next((row.vendor for row in self.other_vendors if row.pattern.search(spoken)), None)

    def gpus_of(self, capability: ComputeCapability) -> tuple[GpuModel, ...]:
        """Every GPU of one compute capability."""
        return tuple([row for row in self.gpus if row.compute_capability == capability])

    def settled_pythons(self, day: str) -> frozenset[str]:
        """The Pythons that already had a successor on a day ("2026-03-23", or longer)."""
        followed = zip(self.pythons, self.pythons[1:], strict=False)
        return frozenset(row.python for row, after in followed if after.released <= day[:10])

    @cached_property
    def shipped_date(self) -> str:
        """The day on which the newest of the files was drawn up."""
        return max(self.files[name].text("date") for name in FILES)

    @cached_property
    def dropped(self) -> tuple[CudaDropped, ...]:
        """Which CUDA stopped to compile for which GPUs, oldest first."""
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
        """Which GPUs take NVIDIA's open kernel modules, by compute capability, lowest first."""
        from provision.catalog.side_rows import KernelModules

        def make(**values: object) -> KernelModules:
            row: Callable[..., KernelModules] = KernelModules
            return row(capability=values.pop("from"), **values)

        return self.files["drivers.json"].rows("kernel_modules", make)

    @cached_property
    def binary_notes(self) -> tuple[BinaryNote, ...]:
        """GPUs that few wheels have code of their own for."""
        return self.files["gpus.json"].rows("binary_notes", BinaryNote)

    @cached_property
    def other_vendors(self) -> tuple[OtherVendor, ...]:
        """The makers of GPUs that are not NVIDIA's."""
        from provision.catalog.later_rows import OtherVendor

        return self.files["gpus.json"].rows("other_vendors", OtherVendor)

    @cached_property
    def ubuntu_releases(self) -> tuple[UbuntuRelease, ...]:
        """What NVIDIA's images stand on, the newest first."""
        from provision.catalog.later_rows import UbuntuRelease

        return self.files["bases.json"].rows("ubuntu_releases", UbuntuRelease)

    @cached_property
    def tensorflow_releases(self) -> tuple[TensorflowRelease, ...]:
        """TensorFlow's releases and candidates, oldest first."""
        from provision.catalog.later_rows import TensorflowRelease

        return self.files["tensorflow.json"].rows("tensorflow_releases", TensorflowRelease)

    @cached_property
    def tensorflow_wheels(self) -> tuple[TensorflowWheel, ...]:
        """Their wheels, a row a machine."""
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
        """What images ask of the driver before they start."""
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

    @cached_property
    def tegra_capabilities(self) -> frozenset[ComputeCapability]:
        """Capabilities that only Jetson modules have: those take no other's binary code."""
        others = {row.compute_capability for row in self.gpus if row.kind != "jetson"}
        return frozenset(row.compute_capability for row in self.gpus) - others

    @cached_property
    def _families(self) -> dict[str, CudaFamily]:
        return {str(row.major): row for row in self.families}

    @cached_property
    def _toolkits(self) -> dict[tuple[str, int], CudaToolkit]:
        return {(row.cuda, row.update): row for row in self.toolkits}

    @cached_property
    def _branch_numbers(self) -> tuple[int, ...]:
        return tuple(row.branch for row in self.branches)

    @cached_property
    def _first_branches(self) -> dict[str, DriverBranch]:
        return {chip: row for row in self.branches for chip in row.adds}

    @cached_property
    def _compat(self) -> dict[str, ForwardCompat]:
        return {row.provides_cuda: row for row in self.compat_packages}

    @cached_property
    def _releases(self) -> dict[str, TorchRelease]:
        return {row.version: row for row in self.torch_releases}

    @cached_property
    def _images(self) -> dict[str, CudaImage]:
        return {row.tag: row for row in self.images}

    @cached_property
    def _start_rules(self) -> dict[tuple[str, str], StartRule]:
        from provision.catalog.images import rules_by_image

        return rules_by_image(self.start_rules)

    @cached_property
    def _gpu_names(self) -> GpuNames:
        return GpuNames(self.gpus)


def load(directory: str | Path | None = None, overlay: Overlay | None = None) -> Catalog:
    """The shipped catalog, or that of another directory, with the overlay's rows laid over it.

    CatalogError: a shipped row is malformed. OverlayError: one of the overlay's makes it so.
    """
    name = DATA if directory is None else str(directory)
    return _shipped(name) if overlay is None else _read(name, overlay)


def current(env: Mapping[str, str]) -> tuple[Catalog, str | None]:
    """The catalog that this user has: the shipped one with the user's own copy laid over it.

    Where that copy is broken: the shipped catalog, and a sentence with what to do. Where there is
    none, this costs one look at the disk.
    """
    with suppress(OSError, ValueError):  # what is wrong with the file is said below
        if not _is_there(overlay_file(env)):
            return load(), None
    from provision.catalog.overlay import OverlayError, overlay_path, read_overlay

    try:
        overlay = read_overlay(overlay_path(env))
        return load(overlay=overlay), None
    except OverlayError as error:
        return load(), f"Your catalog copy is left aside. {error.message} {error.fix}"


@cache
def _shipped(directory: str) -> Catalog:
    return _read(directory, None)


def _read(directory: str, overlay: Overlay | None) -> Catalog:
    files = DataFiles(directory, overlay)
    cuda, drivers, gpus, torch, bases = [files[name] for name in FILES[:5]]
    suites = bases.rows("debian_suites", DebianSuite)
    catalog = Catalog(
        files=files,
        families=cuda.rows("families", CudaFamily),
        toolkits=cuda.rows("toolkits", CudaToolkit),
        branches=drivers.rows("branches", DriverBranch),
        compat_packages=drivers.rows("forward_compat", ForwardCompat),
        gpus=gpus.rows("gpus", GpuModel),
        torch_releases=torch.rows("releases", TorchRelease),
        torch=torch.rows("builds", TorchBuild),
        debian_suites=suites,
        pythons=bases.rows("pythons", PythonRelease),
        python_images=bases.rows(
            "python_images", _python_image(bases.text("python_reference"), suites)
        ),
        compilers=bases.rows("compiler_wheels", CompilerWheels),
        pytorch_index_template=torch.text("index"),
        redist_template=cuda.text("redistributables"),
    )
    # Whether an overlay's rows can be read is known now, not in the middle of a command.
    for table in LATER:
        if overlay is not None and table in overlay.tables:
            getattr(catalog, table)
    return catalog


def _python_image(template: str, suites: tuple[DebianSuite, ...]) -> Callable[..., PythonImage]:
    by_name = {row.suite: row for row in suites}
    image: Callable[..., PythonImage] = PythonImage

    def make(*, python: str, suite: str, **values: object) -> PythonImage:
        below = by_name.get(suite)
        if below is None:
            raise WrongError(f"suite {suite} is not among debian_suites")
        reference = template.format(python=python, suite=suite)
        return image(python=python, suite=suite, reference=reference, glibc=below.glibc, **values)

    return make


def _is_there(path: str) -> bool:
    try:
        os.stat(path)  # noqa: PTH116  pathlib starts slowly
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _branch_number(driver: str) -> int:
    major = driver.strip().partition(".")[0]
    return int(major) if major.isascii() and major.isdigit() and len(major) < 10 else -1
