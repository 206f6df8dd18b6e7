"""How a driver runs a CUDA version, if it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from provision.catalog.catalog import Catalog
from provision.catalog.rows.nvidia import CudaToolkit
from provision.model.plan import ComputeCapability, Verdict
from provision.resolve.blockers import Blocker
from provision.resolve.fleet import GpuKind, Site
from provision.resolve.rules.driven_gpus import first_drivers
from provision.resolve.specifiers import driver_is_at_least, version

_FORWARD = "https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html"


class DriverFit(NamedTuple):
    """How a driver runs a CUDA version: natively, by minor-version or forward compatibility.

    `have` is the driver, or what is known of it; `need` the oldest that suffices for the CUDA and
    supports the GPUs.
    """

    verdict: Verdict
    cuda: str
    have: str | None
    need: str | None
    native_up_to: str | None
    source: str


def native_cuda(site: Site) -> tuple[str | None, str]:
    """The highest CUDA a driver supports natively is its branch's; the driver's own answer counts
    if the branch is not in the table. Returned with its source.
    """
    if site.branch is not None and (site.branch_known or not site.driver_cuda):
        return site.branch.max_cuda, site.branch.source
    if site.driver_cuda is not None:
        return site.driver_cuda, "reported by the driver"
    return None, ""


def driver_floor(cuda: str, catalog: Catalog) -> tuple[str | None, str]:
    """Within a CUDA major with minor-version compatibility the family's floor is enough; before
    that the toolkit's own driver is needed. Returned with its source.
    """
    toolkit = catalog.toolkit(cuda)
    family = catalog.family(cuda)
    if family is not None and (toolkit is None or toolkit.minor_version_compatibility):
        return family.min_driver, family.source
    return (toolkit.driver, toolkit.source) if toolkit else (None, "")


def runs_natively(site: Site, cuda: str, toolkit: CudaToolkit | None) -> bool:
    """A driver natively supports the CUDA of its branch and all before, from the version on that
    the toolkit of that branch shipped with; JetPack numbers the drivers of a branch otherwise, and
    has its CUDA.
    """
    highest, _ = native_cuda(site)
    if highest is None or version(highest) < version(cuda):
        return False
    if site.driver is None or toolkit is None or toolkit.driver is None or site.is_jetson:
        return True
    return driver_is_at_least(site.driver, toolkit.driver)


def runs_by_minor_version(
    site: Site, cuda: str, toolkit: CudaToolkit | None, floor: str | None
) -> bool:
    """From CUDA 11 on, a driver of the same CUDA major runs a newer minor if it is at or above
    the family's floor.
    """
    highest, _ = native_cuda(site)
    if highest is None or toolkit is None or not toolkit.minor_version_compatibility:
        return False
    if version(highest).major != version(cuda).major:
        return False
    return floor is not None and (site.driver is None or driver_is_at_least(site.driver, floor))


def runs_forward(site: Site, cuda: str, catalog: Catalog) -> bool:
    """The cuda-compat package carries a newer user-mode driver onto an older kernel driver, on
    data-centre GPUs and on the driver branches that NVIDIA lists for it, and nowhere else.
    Branches past their end of life are no longer on NVIDIA's page, but its images accept them.
    """
    row = catalog.forward_compat(cuda)
    if row is None or site.driver is None or site.branch is None or not site.takes_compat:
        return False
    return site.branch.branch in {*(row.official_base_branches or ()), *row.accepted_base_branches}


def fit_driver(site: Site, cuda: str, catalog: Catalog) -> DriverFit:
    """Native before minor-version before forward compatibility; unverified without a known
    driver.
    """
    toolkit = catalog.toolkit(cuda)
    floor, floor_source = driver_floor(cuda, catalog)
    highest, native_source = native_cuda(site)
    verdict: Verdict = "none"
    source = floor_source
    if highest is None and site.driver is None:
        verdict = "unverified"
    elif runs_natively(site, cuda, toolkit):
        verdict, source = "direct", native_source
    elif runs_by_minor_version(site, cuda, toolkit, floor):
        verdict = "minor-version"
    elif runs_forward(site, cuda, catalog):
        row = catalog.forward_compat(cuda)
        verdict, source = "forward", row.source if row else _FORWARD
    have = site.driver or (f"one for CUDA {site.driver_cuda}" if site.driver_cuda else None)
    needs = [floor, *first_drivers(site, catalog)] if floor else []
    return DriverFit(
        verdict=verdict,
        cuda=cuda,
        have=have,
        need=max(needs, key=version, default=None),
        native_up_to=highest,
        source=source,
    )


def by_minor_version(
    sites: Sequence[Site], fits: Sequence[DriverFit]
) -> dict[ComputeCapability, str]:
    """Of the GPUs on sites that run a CUDA by minor-version compatibility: what the oldest driver
    supports natively. `fits` are those of the sites, in their order.
    """
    found: dict[ComputeCapability, str] = {}
    for site, fit in zip(sites, fits, strict=True):
        native = fit.native_up_to
        if fit.verdict != "minor-version" or native is None:
            continue
        for device in site.devices or ():
            if device.capability is not None:
                before = found.get(device.capability, native)
                found[device.capability] = min(before, native, key=version)
    return found


def driver_blocker(site: Site, fit: DriverFit, catalog: Catalog) -> Blocker | None:
    """A driver below the floor, on a GPU that cuda-compat does not serve, runs nothing."""
    if fit.verdict != "none":
        return None
    row = catalog.forward_compat(fit.cuda)
    why = ""
    if row is not None and site.devices and not site.takes_compat:
        # cudaErrorCompatNotSupportedOnDevice
        why = f" {row.package} would help on data-centre GPUs only; elsewhere it ends in error 804."
    held = next((d for d in site.devices or () if _is_dropped_by(fit.need, d, catalog)), None)
    if held is not None:
        why += f" Driver {fit.need} no longer supports {held.words}."
    return Blocker(
        code="driver-too-old",
        message=f"CUDA {fit.cuda} needs driver {fit.need} or newer; found {fit.have}.{why}",
        source=fit.source,
    )


def _is_dropped_by(driver: str | None, device: GpuKind, catalog: Catalog) -> bool:
    """Whether a driver no longer drives a kind of GPU."""
    branch = catalog.branch_of(driver) if driver else None
    return bool(branch and device.capability and device.capability < branch.dropped_below)
