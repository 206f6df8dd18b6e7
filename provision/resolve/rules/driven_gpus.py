"""Which GPUs a driver supports, by its branch."""

from __future__ import annotations

from collections.abc import Iterable

from provision.catalog.catalog import Catalog
from provision.catalog.rows.nvidia import DriverBranch
from provision.model.plan import ComputeCapability
from provision.resolve.blockers import Blocker
from provision.resolve.fleet import GpuKind, Site, with_capability
from provision.resolve.specifiers import driver_is_at_least, version


def driven_blocker(site: Site, device: GpuKind, catalog: Catalog) -> Blocker | None:
    """A driver drives no GPU whose chip came with a later branch, and none of a generation that
    its branch has dropped; but a GPU that the running driver itself lists, it drives.
    """
    return None if site.seen else documented_blocker(site, device, catalog)


def documented_blocker(site: Site, device: GpuKind, catalog: Catalog) -> Blocker | None:
    """The same by NVIDIA's documents alone. If they name no first branch, nothing is refused."""
    branch, capability = site.branch, device.capability
    first = first_branch_for(device, catalog)
    # An assumed branch must not refuse a machine that may work.
    if first is not None and first.adds_confidence == "confirmed" and is_older(site, first):
        return Blocker(
            code="gpu-not-driven",
            message=f"Driver {site.driver} does not support {with_capability(device)}, which needs "
            f"driver branch {first.branch} or newer.",
            fix=_apart(site, catalog),
            source=first.adds_source or first.source,
        )
    if branch is None or capability is None or capability >= branch.dropped_below:
        return None
    return Blocker(
        code="gpu-not-driven",
        message=f"Driver {site.driver} no longer supports {with_capability(device)}.",
        fix=_apart(site, catalog),
        source=branch.dropped_source,
    )


def _apart(site: Site, catalog: Catalog) -> str:
    """What to do with a host whose GPUs no single driver branch supports; "" if one does."""
    devices = [device for device in site.devices or () if device.capability is not None]
    firsts = [(row.branch, d) for d in devices if (row := first_branch_for(d, catalog))]
    lasts = [
        (last, d)
        for d in devices
        if d.capability and (last := last_branch_for(d.capability, catalog))
    ]
    if not firsts or not lasts:
        return ""
    (low, newer), (high, older) = max(firsts, key=_number), min(lasts, key=_number)
    if low <= high:
        return ""
    return (
        f"No driver branch supports both: {newer.words} needs {low} or newer, {older.words} {high} "
        "or older. Use them in different machines."
    )


def _number(pair: tuple[int, GpuKind]) -> int:
    return pair[0]


def last_branch_for(capability: ComputeCapability, catalog: Catalog) -> int | None:
    """The newest branch that still drives this compute capability."""
    driving = (row.branch for row in catalog.branches if row.dropped_below <= capability)
    return max(driving, default=None)


def first_branch_for(device: GpuKind, catalog: Catalog) -> DriverBranch | None:
    """The branch that first supported a kind of GPU; if several are possible, the oldest. None if
    that is not known for one of them.
    """
    found = [catalog.first_branch(row.chip) if row.chip else None for row in device.rows]
    known = [row for row in found if row is not None]
    # One name can be of several chips; the oldest branch refuses none that works.
    return min(known, key=lambda row: row.branch) if known and len(known) == len(found) else None


def first_drivers(site: Site, catalog: Catalog) -> list[str]:
    """The first driver for each kind of GPU of a host, where that is known: the oldest whose
    documents list such a GPU; but an older one of its branch usually drives it too, and one that
    lists the GPU itself does.
    """
    found = []
    for device in site.devices or ():
        branch = first_branch_for(device, catalog)
        if branch is None or (site.seen and is_older(site, branch)):
            continue
        first = catalog.first_driver(branch, device.capability)
        is_between = site.driver is not None and not is_older(site, branch)
        is_between = is_between and not driver_is_at_least(site.driver or "", first)
        found.append(str(branch.branch) if is_between else first)
    return found


def is_older(site: Site, branch: DriverBranch) -> bool:
    """Whether a site's driver is of an older branch."""
    return site.driver is not None and version(site.driver).major < branch.branch


def driver_for(device: GpuKind, first: DriverBranch) -> str:
    """The driver to install for a GPU: the oldest whose documents list it, else the branch."""
    listed = {row.driver_from for row in device.rows}
    return (listed.pop() if len(listed) == 1 else None) or str(first.branch)


def right_driver(site: Site, catalog: Catalog) -> str | None:
    """The driver that drives every GPU of a host: the oldest that does where the host's own is too
    old for one, else the last branch. None: its own drives them all, or no branch does.
    """
    gpus = [(site, device) for device in site.devices or ()]
    if not any(driven_blocker(site, device, catalog) for _, device in gpus):
        return None
    needed, last = needed_driver(gpus, catalog), last_driver(gpus, catalog)
    # An old and a new GPU in one machine: no branch drives both.
    if needed and last and version(needed).major > version(last).major:
        return None
    return needed or last


def needed_driver(gpus: Iterable[tuple[Site, GpuKind]], catalog: Catalog) -> str | None:
    """The oldest driver that drives every GPU whose own driver is too old for it; None: all are
    driven, or the others were dropped.
    """
    needs = [
        driver_for(device, first)
        for site, device in gpus
        if driven_blocker(site, device, catalog) is not None
        and (first := first_branch_for(device, catalog)) is not None
        and is_older(site, first)
    ]
    return max(needs, key=version, default=None)


def last_driver(gpus: Iterable[tuple[Site, GpuKind]], catalog: Catalog) -> str | None:
    """The newest branch that still drives every GPU; None: that is not known."""
    capabilities = [device.capability for _, device in gpus if device.capability]
    lasts = [last_branch_for(one, catalog) for one in capabilities]
    return str(min(last for last in lasts if last)) if any(lasts) else None


def is_old(capability: ComputeCapability, catalog: Catalog) -> bool:
    """Whether the newest drivers no longer drive it: then it is worth checking what else dropped
    it.
    """
    return capability < catalog.branches[-1].dropped_below
