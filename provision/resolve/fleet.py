"""The hosts, reduced to what differs: a thousand equal nodes are checked once.

Rules need a driver or a kind of GPU, never a node, so the cost of a fleet depends on its different
drivers and GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from provision.catalog.catalog import Catalog
from provision.catalog.gpus import host_arch_of
from provision.catalog.rows.gpus import GpuModel
from provision.catalog.rows.nvidia import DriverBranch
from provision.model.plan import ComputeCapability, Gpu, HostFacts

THIS_HOST = "this host"

DEFAULT_ARCH = "x86_64"
"""The default if no host states its own."""


class GpuKind(NamedTuple):
    """A kind of GPU. `rows` are the catalog's for its name; `capability` None: not known."""

    name: str | None
    capability: ComputeCapability | None
    rows: tuple[GpuModel, ...] = ()

    def __hash__(self) -> int:  # the rows follow from the name, and there may be many
        return hash((self.name, self.capability))

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        if self.name is not None:
            return self.name
        return f"a GPU of compute capability {show_capability(self.capability)}"

    @property
    def host_arch(self) -> str | None:
        """The CPU architecture of every machine that has it; None: a card for any architecture."""
        return host_arch_of(self.rows) if self.name else None

    @property
    def takes_compat(self) -> bool:
        """Whether cuda-compat works on it: only if the catalog knows that it does."""
        return bool(self.rows) and all(row.forward_compat_eligible for row in self.rows)


class Site(NamedTuple):
    """Hosts with the same driver and the same kinds of GPU.

    `devices` None: unknown; (): no GPUs. `branch` is the newest known at or below the
    driver's. `seen`: the running driver itself listed the devices.
    """

    labels: tuple[str, ...]
    driver: str | None
    driver_cuda: str | None
    devices: tuple[GpuKind, ...] | None
    branch: DriverBranch | None
    branch_known: bool
    seen: bool = False

    def __hash__(self) -> int:  # there may be thousands of labels; no host is in two sites
        return hash(self.labels[0])

    @property
    def where(self) -> str:
        """ "node7 and 41 more"; "" for the only host, if it has no name."""
        if self.labels == (THIS_HOST,):
            return ""
        first, more = self.labels[0], len(self.labels) - 1
        return f"{first} and {more} more" if more else first

    @property
    def takes_compat(self) -> bool:
        """cuda-compat works on a host if it works on all its GPUs."""
        return bool(self.devices) and all(d.takes_compat for d in self.devices or ())

    @property
    def is_jetson(self) -> bool:
        """Whether its driver came with JetPack: all its GPUs are those of a Jetson."""
        rows = [row for device in self.devices or () for row in device.rows]
        return bool(rows) and all(row.kind == "jetson" for row in rows)


class Foreign(NamedTuple):
    """A GPU of another vendor on the host of that label; `alone`: the host has no NVIDIA GPU beside
    it.
    """

    label: str
    name: str
    vendor: str
    alone: bool


class Fleet(NamedTuple):
    """What a plan has to support. `gpus` has one entry per GPU for one host, one per kind
    for more.
    """

    sites: tuple[Site, ...]
    gpus: tuple[tuple[Site, GpuKind], ...]
    archs: tuple[str, ...]
    arch_missing: tuple[str, ...]
    foreign: tuple[Foreign, ...] = ()

    @property
    def one_host(self) -> bool:
        """Whether it is one machine only."""
        return len(self.sites) == 1 and len(self.sites[0].labels) == 1

    @property
    def devices(self) -> tuple[GpuKind, ...]:
        """Every kind of GPU, once."""
        return tuple(dict.fromkeys(device for _, device in self.gpus))

    def only(self, sites: Collection[Site]) -> Fleet:
        """The same hosts, these alone."""
        kept = tuple(site for site in self.sites if site in sites)
        gpus = tuple((site, device) for site, device in self.gpus if site in sites)
        return Fleet(kept, gpus, self.archs, self.arch_missing)

    def without(self, sites: Collection[Site]) -> Fleet:
        """The other hosts."""
        return self.only([site for site in self.sites if site not in sites])

    def driven_by(self, driver: str, sites: Collection[Site], catalog: Catalog) -> Fleet:
        """The same hosts, these with another driver."""
        driver = driver if "." in driver else f"{driver}.999"  # any of that branch
        branch, known = catalog.branch_of(driver), catalog.is_known_branch(driver)
        others = {
            site: site._replace(
                driver=driver, driver_cuda=None, branch=branch, branch_known=known, seen=False
            )
            for site in sites
        }
        return self._replace(
            sites=tuple(others.get(site, site) for site in self.sites),
            gpus=tuple((others.get(site, site), device) for site, device in self.gpus),
        )

    def alone(self, site: Site, device: GpuKind) -> Fleet:
        """Only this kind of GPU on only this site's driver."""
        one = site._replace(devices=(device,))
        return Fleet((one,), ((one, device),), self.archs, self.arch_missing)


def read_fleet(hosts: Sequence[HostFacts], catalog: Catalog) -> Fleet:
    """Hosts -> what differs among them; `hosts` is never empty."""
    parted = [_part(facts, catalog) for facts in hosts]
    hosts = [facts for facts, _ in parted]
    kinds: dict[tuple[str | None, ComputeCapability | None], GpuKind] = {}

    def device(gpu: Gpu) -> GpuKind:
        key = (gpu.name, gpu.compute_capability)
        if key not in kinds:
            kinds[key] = _device(gpu, catalog)
        return kinds[key]

    archs = [
        facts.arch or next((arch for g in facts.gpus or () if (arch := device(g).host_arch)), None)
        for facts in hosts
    ]
    labels: dict[tuple[object, ...], list[str]] = {}
    found: dict[tuple[object, ...], tuple[HostFacts, tuple[GpuKind, ...] | None]] = {}
    for facts in hosts:
        own = None
        if facts.gpus is not None:
            own = tuple(dict.fromkeys(device(gpu) for gpu in facts.gpus))
        seen = facts.driver_reports_gpus
        key = (facts.driver, facts.driver_cuda, None if own is None else frozenset(own), seen)
        labels.setdefault(key, []).append(facts.label)
        found.setdefault(key, (facts, own))
    sites = tuple(
        Site(
            labels=tuple(labels[key]),
            driver=facts.driver,
            driver_cuda=facts.driver_cuda,
            devices=own,
            branch=catalog.branch_of(facts.driver) if facts.driver else None,
            branch_known=facts.driver is not None and catalog.is_known_branch(facts.driver),
            seen=facts.driver_reports_gpus,
        )
        for key, (facts, own) in found.items()
    )
    if len(hosts) == 1:
        gpus = tuple((sites[0], device(gpu)) for gpu in hosts[0].gpus or ())
    else:
        gpus = tuple((site, one) for site in sites for one in site.devices or ())
    return Fleet(
        sites=sites,
        gpus=gpus,
        archs=tuple(sorted({one for one in archs if one})),
        arch_missing=tuple(
            dict.fromkeys(f.label for f, one in zip(hosts, archs, strict=True) if one is None)
        ),
        foreign=tuple(one for _, others in parted for one in others),
    )


def _part(facts: HostFacts, catalog: Catalog) -> tuple[HostFacts, tuple[Foreign, ...]]:
    """A host with only its NVIDIA GPUs, and those of other vendors."""
    vendors = [catalog.other_vendor(gpu.name) if gpu.name else None for gpu in facts.gpus or ()]
    if not any(vendors):
        return facts, ()
    pairs = list(zip(facts.gpus or (), vendors, strict=True))
    kept = tuple(gpu for gpu, vendor in pairs if vendor is None)
    foreign = tuple(
        Foreign(facts.label, gpu.name or "", vendor, not kept) for gpu, vendor in pairs if vendor
    )
    return facts._replace(gpus=kept), tuple(dict.fromkeys(foreign))


def _device(gpu: Gpu, catalog: Catalog) -> GpuKind:
    """The capability from the host; else the catalog's for exactly this name; never a guess.

    Without a known name its rows are all GPUs of that capability: what holds for each of them holds
    for this one.
    """
    match = catalog.find_gpu(gpu.name) if gpu.name else None
    if match is not None and match.status == "one":
        return GpuKind(gpu.name, gpu.compute_capability or match.compute_capability, match.rows)
    capability = gpu.compute_capability
    return GpuKind(gpu.name, capability, catalog.gpus_of(capability) if capability else ())


def show_capability(capability: ComputeCapability | None) -> str:
    """(8, 6) -> "8.6"."""
    return "?" if capability is None else f"{capability[0]}.{capability[1]}"


def show_sm(capability: ComputeCapability) -> str:
    """(8, 6) -> "sm_86"."""
    return f"sm_{capability[0]}{capability[1]}"


def with_capability(device: GpuKind) -> str:
    """A kind of GPU by its name, with its compute capability."""
    if device.name is None:
        return device.words
    return f"{device.name} (compute capability {show_capability(device.capability)})"


def place_of(sites: Sequence[Site]) -> str:
    """Where something applies, in words: the labels of some sites, at most three of them."""
    labels = [label for site in dict.fromkeys(sites) for label in site.labels]
    if len(labels) == 1:
        return next(iter(sites)).where
    shown = ", ".join(labels[:3])
    return f"{shown} and {len(labels) - 3} more" if len(labels) > 3 else shown
