"""Every row of the tables, and the look-ups that the rules need."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

from provision.catalog.catalog_tables import CatalogTables
from provision.catalog.gpus import GpuMatch, GpuNames
from provision.catalog.images import best_first, newest_first, rules_by_image
from provision.catalog.rows.bases import CudaImage, DevelImage, Flavour, StartRule
from provision.catalog.rows.frameworks import TorchBuild, TorchRelease
from provision.catalog.rows.gpus import BinaryNote, GpuModel
from provision.catalog.rows.nvidia import (
    CompilerWheels,
    CudaFamily,
    CudaToolkit,
    DriverBranch,
    ForwardCompat,
    OpenModules,
)
from provision.model.plan import ComputeCapability, Gpu, HostFacts


class Catalog(CatalogTables):
    """Every row, and the look-ups that the rules need."""

    def with_tables(self, **tables: tuple[NamedTuple, ...]) -> Catalog:
        """The catalog with these tables, which every plan needs, in place of its own."""
        other = object.__new__(Catalog)
        for name, value in vars(self).items():
            if not isinstance(getattr(Catalog, name, None), cached_property):
                vars(other)[name] = tables.get(name, value)
        return other

    def family(self, cuda: str) -> CudaFamily | None:
        """The family of a CUDA version; None before 11, which had no families."""
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
        """The newest known branch at or below this driver's; None if it is older than all."""
        position = bisect_right(self._branch_numbers, _branch_number(driver))
        return self.branches[position - 1] if position else None

    def is_known_branch(self, driver: str) -> bool:
        """Whether the table has the branch of this driver itself."""
        return _branch_number(driver) in self._branch_numbers

    def open_modules(
        self, capability: ComputeCapability, name: str | None = None
    ) -> OpenModules | None:
        """Which kernel modules a GPU supports; `name` as in gpus.json.

        None: only in Jetson modules, which have another driver, or older than every row.
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

    def first_driver(self, branch: DriverBranch, capability: ComputeCapability | None) -> str:
        """The oldest driver of a branch whose documents list a GPU of this compute capability, else
        the first of the branch.
        """
        first = branch.first_version or str(branch.branch)
        return self._first_drivers.get((branch.branch, capability), first)

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

        For one toolkit the newest Ubuntu comes first; images that also hold TensorRT are left out.
        """
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

        Without cuDNN: the wheels bring theirs, and the image's would be found before it.
        """
        return best_first([row for row in self.devel if row.cuda == cuda and not row.cudnn])

    def cuda_image(self, tag: str) -> CudaImage | None:
        """NVIDIA's image of one tag."""
        return self._images.get(tag)

    def start_rule(self, cuda_full: str, os: str) -> StartRule | None:
        """What the images of one toolkit ("12.8.1") require of the driver on one system
        ("ubuntu24.04"); None if it was not read.
        """
        return self._start_rules.get((cuda_full, os))

    def compiler_wheels(self, cuda: str) -> CompilerWheels | None:
        """NVIDIA's compiler for CUDA X.Y as packages, if they contain one."""
        return next((row for row in self.compilers if row.cuda == cuda), None)

    def binary_note(self, capability: str) -> BinaryNote | None:
        """What is known of older code on the GPUs of one capability ("12.1")."""
        wanted = tuple(int(figure) for figure in capability.split(".") if figure.isdigit())
        return next((row for row in self.binary_notes if row.compute_capability == wanted), None)

    def find_gpu(self, name: str) -> GpuMatch:
        """The GPU that a name means; see `provision.catalog.gpus`."""
        return self._gpu_names.find(name)

    def capability_of(self, gpu: Gpu) -> ComputeCapability | None:
        """The compute capability of a GPU, which its name may say."""
        if gpu.compute_capability is None and gpu.name:
            return self.find_gpu(gpu.name).compute_capability
        return gpu.compute_capability

    def products(self, name: str) -> tuple[str, ...]:
        """The products that a name means, as the driver calls them: several for a family; the name
        itself where the catalog does not have it whole. () if it is not known how the driver spells
        their names.
        """
        match = self.find_gpu(name)
        if match.status != "one" or match.shortened:
            return (name,)
        return tuple(row.name for row in match.rows if row.confidence == "confirmed")

    def with_capabilities(self, facts: HostFacts) -> HostFacts:
        """A host, with the compute capability of GPUs whose name a table has cut ("A100-SXM..."),
        if all GPUs whose names begin so have the same.
        """

        def known(gpu: Gpu) -> Gpu:
            if gpu.compute_capability is not None or not (gpu.name or "").endswith("..."):
                return gpu
            begins = str(gpu.name).removesuffix("...").rstrip()
            found = {
                row.compute_capability
                for row in self.gpus
                if any(name.startswith(begins) for name in (row.name, *row.aliases))
            }
            return gpu._replace(compute_capability=found.pop()) if len(found) == 1 else gpu

        return facts._replace(gpus=facts.gpus and tuple(map(known, facts.gpus)))

    def other_vendor(self, name: str) -> str | None:
        """The maker of a GPU of this name, if it is not NVIDIA."""
        spoken = name.casefold()
        if self.find_gpu(name).status != "unknown" or "nvidia" in spoken:
            return None
        return next((row.vendor for row in self.other_vendors if row.pattern.search(spoken)), None)

    def gpus_of(self, capability: ComputeCapability) -> tuple[GpuModel, ...]:
        """Every GPU of one compute capability."""
        return tuple([row for row in self.gpus if row.compute_capability == capability])

    def settled_pythons(self, day: str) -> frozenset[str]:
        """The Pythons that already had a successor on a given day ("2026-03-23", or longer)."""
        followed = zip(self.pythons, self.pythons[1:], strict=False)
        return frozenset(row.python for row, after in followed if after.released <= day[:10])

    @cached_property
    def tegra_capabilities(self) -> frozenset[ComputeCapability]:
        """Capabilities that only Jetson modules have: those do not run other capabilities' binary
        code.
        """
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
    def _first_drivers(self) -> dict[tuple[int, ComputeCapability | None], str]:
        listed = [
            ([int(number) for number in row.driver_from.split(".")], row)
            for row in self.gpus
            if row.driver_from is not None
        ]
        oldest_last = sorted(listed, key=itemgetter(0), reverse=True)
        return {
            (numbers[0], row.compute_capability): row.driver_from or ""
            for numbers, row in oldest_last
        }

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
        return rules_by_image(self.start_rules)

    @cached_property
    def _gpu_names(self) -> GpuNames:
        return GpuNames(self.gpus)


def _branch_number(driver: str) -> int:
    major = driver.strip().partition(".")[0]
    return int(major) if major.isascii() and major.isdigit() and len(major) < 10 else -1
