"""Which questions the page can ask: drivers by what the catalog tells apart, the catalog's GPUs,
and for each framework and CPU architecture the CUDA versions and Pythons of its builds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from provision.catalog.catalog import Catalog
from provision.catalog.rows.gpus import GpuModel
from provision.catalog.rows.nvidia import DriverBranch
from provision.model.plan import TITLES, Framework, Gpu, HostFacts, Request
from provision.resolve.builds import builds_of
from provision.resolve.rules.base import python_tags_of
from provision.resolve.specifiers import version

ARCHS = ("x86_64", "aarch64")
_NOWHERE = ".77777"  # no driver has such a number, so that its text is found in an answer
_SINCE = ".66666"  # nor this one, which is below it
_ZEROS = ".0.0.0.0"  # the same version, in a spelling that no other text has


class DriverRange(NamedTuple):
    """Drivers of one branch that get the same answers: from `first` to the next range.

    `first` "" is the beginning of the branch, `native` the CUDA that it supports natively. `branch`
    None: no driver is known.
    """

    branch: int | None
    first: str
    native: str | None

    @property
    def sample(self) -> str | None:
        """A driver of the range, in a spelling that is in no other text."""
        return None if self.branch is None else (self.first or f"{self.branch}.0") + _NOWHERE


class Choices(NamedTuple):
    """What can be asked about one framework on one CPU architecture, beside "any" (None)."""

    framework: Framework
    arch: str
    cudas: tuple[str | None, ...]
    pythons: tuple[str | None, ...]

    def requests(self) -> Iterator[Request]:
        """Every request, those of one Python after each other."""
        for python, cuda in product(self.pythons, self.cudas):
            yield Request(framework=self.framework, cuda=cuda, python=python)


def driver_ranges(catalog: Catalog) -> tuple[DriverRange, ...]:
    """Every range, oldest first; that without a driver is the first.

    The rules compare a driver with the numbers of branches, the floors of CUDA families, the first
    drivers for GPUs and the drivers that the first toolkit of each CUDA shipped with, and with
    nothing else.
    """
    known = [row.min_driver for row in catalog.families]
    known += [first for row in catalog.gpus if (first := first_driver(row, catalog))]
    known += [row.driver for row in catalog.toolkits if row.driver and row.update == 0]
    longer = {text.rpartition(".")[0] for text in known}  # "450.51" of "450.51.05" bounds nothing
    bounds = sorted({text for text in known if "." in text} - longer, key=version)
    found = [DriverRange(None, "", None)]
    for row in catalog.branches:
        of_branch = [bound for bound in bounds if version(bound).major == row.branch]
        found += [DriverRange(row.branch, bound, row.max_cuda) for bound in ("", *of_branch)]
    return tuple(found)


def first_driver(gpu: GpuModel, catalog: Catalog) -> str | None:
    """The oldest driver for a GPU that documents name, where that is known."""
    branch = catalog.first_branch(gpu.chip) if gpu.chip else None
    return branch and catalog.first_driver(branch, gpu.compute_capability)


def marked(catalog: Catalog) -> Catalog:
    """The same catalog, in which what answers only repeat is spelled so that `holes` finds it."""
    return catalog.with_tables(
        branches=tuple(row._replace(max_cuda=row.max_cuda + _ZEROS) for row in catalog.branches),
        gpus=tuple(
            row._replace(driver_from=row.driver_from and row.driver_from + _SINCE)
            for row in catalog.gpus
        ),
    )


def holes(gpu: GpuModel, drivers: DriverRange, catalog: Catalog) -> dict[str, str]:
    """What the answers for a GPU of a marked catalog and these drivers repeat of the question, and
    the name of the hole that is left there.
    """
    found = {gpu.name: "{gpu}"}
    if gpu.driver_from:
        found[gpu.driver_from] = "{since}"
    first = first_driver(gpu, catalog) or ""
    if first.endswith(_SINCE):  # that of another product, perhaps
        found.setdefault(first, first.removesuffix(_SINCE))
    if drivers.sample and drivers.native:
        found |= {drivers.sample: "{driver}", drivers.native + _ZEROS: "{native}"}
    return found


def offered_driver(row: DriverBranch) -> str | None:
    """The version that stands for a branch in a list: the newest seen, or the first."""
    return row.latest_seen or row.first_version


def choices(catalog: Catalog) -> tuple[Choices, ...]:
    """What can be asked, for each framework and CPU architecture."""
    return tuple(_choices(name, arch, catalog) for name in TITLES for arch in ARCHS)


def _choices(framework: Framework, arch: str, catalog: Catalog) -> Choices:
    builds = [b for b in builds_of(framework, arch, catalog) if not (b.prerelease or b.yanked)]
    offered = {row.python for row in catalog.python_images if row.confidence == "confirmed"}
    pythons = {python for build in builds for python in python_tags_of(build)} & offered
    return Choices(
        framework,
        arch,
        (None, *sorted({build.cuda for build in builds}, key=version, reverse=True)),
        (None, *sorted(pythons, key=version, reverse=True)),
    )


def host_of(gpu: GpuModel, driver: str | None, arch: str) -> HostFacts:
    """The machine of a question, as `provision plan --gpu NAME --driver V` assumes it."""
    model = Gpu(name=gpu.name, compute_capability=gpu.compute_capability)
    return HostFacts(driver=driver, gpus=(model,), arch=gpu.host_arch or arch)
