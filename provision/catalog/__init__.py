"""The knowledge: what goes with what, as data. A file an upstream, a row a fact, with its source.

`load` reads the tables of `data/` into rows and raises CatalogError at the first value of the wrong
shape; `provision.catalog.check` holds how rows fit together. How rows are joined into a decision is
code (`provision.resolve`); nothing joined is stored.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from provision.catalog.gpus import GpuMatch, GpuNames
from provision.catalog.reading import DataFile, WrongError
from provision.catalog.rows import (
    CompilerWheels,
    Conflict,
    CudaFamily,
    CudaToolkit,
    DebianSuite,
    DevelImage,
    DriverBranch,
    Excused,
    ForwardCompat,
    GpuModel,
    PythonImage,
    TorchBuild,
    TorchRelease,
    UbuntuRelease,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from provision.model import ComputeCapability

__all__ = ["DATA", "FILES", "Catalog", "GpuMatch", "load"]

DATA = os.path.join(os.path.dirname(__file__), "data")  # noqa: PTH118, PTH120  pathlib starts slowly
"""Where the tables lie."""

FILES = ("cuda.json", "drivers.json", "gpus.json", "torch.json", "bases.json")
"""The tables, in the order in which they are read."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalog:
    """Every row, in the order of the files, and the look-ups that the rules need."""

    families: tuple[CudaFamily, ...]
    toolkits: tuple[CudaToolkit, ...]
    branches: tuple[DriverBranch, ...]  # oldest first
    compat_packages: tuple[ForwardCompat, ...]
    gpus: tuple[GpuModel, ...]
    torch_releases: tuple[TorchRelease, ...]
    torch: tuple[TorchBuild, ...]
    debian_suites: tuple[DebianSuite, ...]  # the one to prefer first, as all that follow
    ubuntu_releases: tuple[UbuntuRelease, ...]
    python_images: tuple[PythonImage, ...]
    devel: tuple[DevelImage, ...]
    compilers: tuple[CompilerWheels, ...]
    conflicts: tuple[Conflict, ...]
    excused: tuple[Excused, ...]
    pytorch_index_template: str

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

    def devel_images(self, cuda: str) -> tuple[DevelImage, ...]:
        """NVIDIA's images with compiler for CUDA X.Y, the newest Ubuntu first.

        Without cuDNN: the wheels bring theirs, and a second one would be found before it.
        """
        return tuple([row for row in self.devel if row.cuda == cuda and not row.cudnn])

    def compiler_wheels(self, cuda: str) -> CompilerWheels | None:
        """NVIDIA's compiler for CUDA X.Y as packages, where they hold one."""
        return next((row for row in self.compilers if row.cuda == cuda), None)

    def find_gpu(self, name: str) -> GpuMatch:
        """The GPU that a name means; see `provision.catalog.gpus`."""
        return self._gpu_names.find(name)

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
    def _compat(self) -> dict[str, ForwardCompat]:
        return {row.provides_cuda: row for row in self.compat_packages}

    @cached_property
    def _releases(self) -> dict[str, TorchRelease]:
        return {row.version: row for row in self.torch_releases}

    @cached_property
    def _gpu_names(self) -> GpuNames:
        return GpuNames(self.gpus)


@cache
def load(directory: str | Path | None = None) -> Catalog:
    """The shipped catalog, or that of another directory."""
    files = [DataFile(DATA if directory is None else str(directory), name) for name in FILES]
    cuda, drivers, gpus, torch, bases = files
    suites = bases.rows("debian_suites", DebianSuite)
    ubuntus = bases.rows("ubuntu_releases", UbuntuRelease)
    return Catalog(
        families=cuda.rows("families", CudaFamily),
        toolkits=cuda.rows("toolkits", CudaToolkit),
        branches=drivers.rows("branches", DriverBranch),
        compat_packages=drivers.rows("forward_compat", ForwardCompat),
        gpus=gpus.rows("gpus", GpuModel),
        torch_releases=torch.rows("releases", TorchRelease),
        torch=torch.rows("builds", TorchBuild),
        debian_suites=suites,
        ubuntu_releases=ubuntus,
        python_images=bases.rows(
            "python_images", _python_image(bases.text("python_reference"), suites)
        ),
        devel=bases.rows("devel_images", _devel_image(bases.text("devel_reference"), ubuntus)),
        compilers=bases.rows("compiler_wheels", CompilerWheels),
        conflicts=tuple([row for file in files for row in file.rows("conflicts", Conflict)]),
        excused=tuple([row for file in files for row in file.rows("exceptions", Excused)]),
        pytorch_index_template=torch.text("index"),
    )


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


def _devel_image(template: str, ubuntus: tuple[UbuntuRelease, ...]) -> Callable[..., DevelImage]:
    by_release = {row.release: row for row in ubuntus}
    image: Callable[..., DevelImage] = DevelImage

    def make(*, ubuntu: str, tag: str, **values: object) -> DevelImage:
        below = by_release.get(ubuntu)
        if below is None:
            raise WrongError(f"ubuntu {ubuntu} is not among ubuntu_releases")
        return image(
            ubuntu=ubuntu,
            tag=tag,
            reference=template.format(tag=tag),
            python=below.python,
            glibc=below.glibc,
            **values,
        )

    return make


def _branch_number(driver: str) -> int:
    major = driver.strip().partition(".")[0]
    return int(major) if major.isascii() and major.isdigit() and len(major) < 10 else -1
