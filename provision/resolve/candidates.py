"""Checks one build against every host: the resulting plan, what blocks it, how it ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, get_args

from provision.catalog.catalog import Catalog
from provision.model.plan import Base, ComputeCapability, GpuVerdict, Request, Verdict
from provision.resolve.bases import Offer, base_blocker, choose_base, offer, python_blocker
from provision.resolve.blockers import Blocker
from provision.resolve.builds import Build
from provision.resolve.fleet import Fleet, GpuKind, Site, place_of, show_capability
from provision.resolve.other_frameworks import OtherFrameworks
from provision.resolve.packages import companion_blockers as companions_against
from provision.resolve.rules.base import allowed_pythons, choose_python
from provision.resolve.rules.driven_gpus import driven_blocker, is_old
from provision.resolve.rules.driver import DriverFit, by_minor_version, driver_blocker, fit_driver
from provision.resolve.rules.gpu_code import (
    choose_cudnn,
    code_blocker,
    code_for,
    cudnn_blocker,
    lowest_of_cudnn,
    partly_ptx_blocker,
    ptx_blocker,
)
from provision.resolve.specifiers import version

Asked: TypeAlias = "Callable[[Build, Request], bool]"

OF_A_REQUEST = 2  # the first stage of a candidate that depends on more than builds and hosts

# From the best to the worst, as declared; what is true of the worst host is true of the plan.
RANK: dict[Verdict, int] = {verdict: rank for rank, verdict in enumerate(get_args(Verdict))}


class Candidate(NamedTuple):
    """One build checked against all hosts: the resulting plan, and what blocks it.

    `stage` counts how far it came, and `against` how many GPUs and hosts it fails on there, so that
    of many refused builds the nearest miss explains. `driver` is the fit of the host with the worst
    one.
    """

    build: Build
    verdict: Verdict
    driver: DriverFit
    stage: int
    against: int
    python: str | None = None
    python_why: str = ""
    base: Base | None = None
    pinned: bool = False
    """Whether the request names exactly this release."""
    has_cudnn: bool = True
    """Whether its cuDNN supports every GPU, as far as that is known."""

    @property
    def fits(self) -> bool:
        """Whether nothing blocks it."""
        return self.against == 0


class BuildAnswers(NamedTuple):
    """Everything that was found out about the chosen build on its hosts, for its description."""

    fleet: Fleet
    drivers: tuple[DriverFit, ...]
    """How each site's driver runs the build's CUDA, each kind of answer once."""
    gpus: tuple[GpuVerdict, ...]
    """What each GPU runs: one row per GPU for one host, one per kind for more."""
    codes: tuple[tuple[GpuKind, str], ...]
    """Which code of the build each kind of GPU runs."""
    cudnn: str | None


class _Cuda(NamedTuple):
    """What one CUDA version means to every site."""

    fits: tuple[DriverFit, ...]
    worst: DriverFit
    refusing: int
    by_minor: Mapping[ComputeCapability, str]
    """Of the GPUs on sites that run it by minor-version: what the oldest driver supports natively.
    """


class Examiner:
    """Checks builds against one fleet; caches what builds have in common."""

    def __init__(self, fleet: Fleet, catalog: Catalog) -> None:
        self.fleet = fleet
        self.catalog = catalog
        self._devices = fleet.devices
        self._undriven = {
            (site, device): driven_blocker(site, device, catalog) for site, device in fleet.gpus
        }
        self._not_driven = sum(self._undriven[one] is not None for one in fleet.gpus)
        self._blind = any(not site.devices for site in fleet.sites) or any(
            device.capability is None for device in self._devices
        )
        self._old = [
            d.capability for d in self._devices if d.capability and is_old(d.capability, catalog)
        ]
        self._position = {site: position for position, site in enumerate(fleet.sites)}
        self._cuda: dict[str, _Cuda] = {}
        self._builds: dict[int, Candidate] = {}  # by the identity of the build, which it holds
        self._offers: dict[tuple[object, ...], Offer] = {}
        self.beside = OtherFrameworks(catalog, self._runs)

    def examine(self, build: Build, request: Request, *, whole: bool = False) -> Candidate:
        """Everything but the texts: those are made only for the build that is described.

        A base that brings cuda-compat, or CUDA itself, is looked for only with `whole`: the table
        of NVIDIA's images is long, and most plans do not need it. `pick` uses it when necessary.
        """
        found = self._of_build(build)
        found = found._replace(pinned=request.framework_version == f"=={build.version}")
        if found.against:
            return found
        if against := len(self.companion_blockers(build, request)):
            return found._replace(stage=OF_A_REQUEST, against=against)
        compat = found.driver.verdict == "forward"
        if request.base is None and not whole and (compat or build.libraries == "system"):
            return found
        offered = self._offer(build, request, compat=compat)
        python, why = self._python(build, request, offered)
        base = choose_base(offered, python, build.glibc) if python else None
        stage, against = (5, 0) if base else (3 if python is None else 4, 1)
        return found._replace(
            python=python, python_why=why, base=base, stage=stage, against=against
        )

    def _of_build(self, build: Build) -> Candidate:
        """What is the same for every request."""
        if id(build) not in self._builds:
            cuda = self._for_cuda(build.cuda)
            blocked = sum(bool(self._against_gpu(build, device)) for device in self._devices)
            against = self._not_driven + blocked
            self._builds[id(build)] = Candidate(
                build=build,
                verdict=self._verdict(build, cuda),
                driver=cuda.worst,
                stage=0 if against else 1 if cuda.refusing else 5,
                against=against or cuda.refusing,
                has_cudnn=self._has_cudnn(build),
            )
        return self._builds[id(build)]

    def fitting(
        self, builds: Sequence[Build], request: Request, is_asked_for: Asked
    ) -> Sequence[Candidate]:
        """Those of the builds that fit, and may exist, in order."""
        asked = (self.examine(build, request) for build in builds if is_asked_for(build, request))
        return self.in_order(c for c in asked if c.fits and c.build.existence != "doubtful")

    def in_order(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The most preferred first."""
        return in_order(candidates)

    def answers(self, build: Build) -> BuildAnswers:
        """All answers about one build."""
        return BuildAnswers(
            fleet=self.fleet,
            drivers=tuple(dict.fromkeys(self._for_cuda(build.cuda).fits)),
            gpus=self.gpus(build),
            codes=tuple((device, self.code(build, device)) for device in self._devices),
            cudnn=self.cudnn(build),
        )

    def pick(
        self,
        ordered: Sequence[Candidate],
        request: Request,
        best_of: Callable[[Sequence[Candidate]], Candidate] | None = None,
    ) -> Candidate | None:
        """The best with `whole` of candidates in order, by `best_of`; None if none fits."""
        left = [*ordered]
        while left:
            best = (best_of or choose)(left)
            found = best if best.base else self.examine(best.build, request, whole=True)
            if found.fits:
                return found
            left.remove(best)
        return None

    def blockers(self, build: Build, request: Request) -> tuple[tuple[str, Blocker], ...]:
        """Everything that blocks a build, stage by stage, each with the place that it
        applies to.
        """
        cuda = self._for_cuda(build.cuda)
        found: dict[Blocker, list[Site]] = {}

        def add(site: Site, blocker: Blocker | None) -> None:
            if blocker is not None:
                found.setdefault(blocker, []).append(site)

        for site, device in self.fleet.gpus:
            add(site, self._undriven[site, device])
        to_be_replaced = {site for sites in found.values() for site in sites}
        for site, device in self.fleet.gpus:
            for blocker in self._against_gpu(build, device, site):
                add(site, blocker)
        for site, fit in zip(self.fleet.sites, cuda.fits, strict=True):
            if site not in to_be_replaced:
                add(site, driver_blocker(site, fit, self.catalog))
        if found:
            return tuple((place_of(sites), blocker) for blocker, sites in found.items())
        if unpaired := self.companion_blockers(build, request):
            return tuple(("", blocker) for blocker in unpaired)
        compat = cuda.worst.verdict == "forward"
        offered = self._offer(build, request, compat=compat)
        python, _ = self._python(build, request, offered)
        if offered.bases and python is None:
            return (("", python_blocker(build, request, offered, cuda.worst)),)
        if python is not None and choose_base(offered, python, build.glibc) is not None:
            return ()
        below = base_blocker(build, request, offered, python, compat=compat)
        return (("", below),) if below is not None else ()

    def gpus(self, build: Build) -> tuple[GpuVerdict, ...]:
        """What each GPU runs of a build: one row per GPU for one host, one per kind for more."""
        rows = (self._gpu(build, site, device) for site, device in self.fleet.gpus)
        return tuple(rows if self.fleet.one_host else dict.fromkeys(rows))

    def _gpu(self, build: Build, site: Site, device: GpuKind) -> GpuVerdict:
        driven = self._undriven[site, device] is None
        return GpuVerdict(
            name=device.name,
            compute_capability=show_capability(device.capability) if device.capability else None,
            runs=self.code(build, device) if driven else "none",
            ok=device.capability is not None
            and bool(build.sm)
            and driven
            and not self._against_gpu(build, device, site),
        )

    def code(self, build: Build, device: GpuKind) -> str:
        """Which code of a build a kind of GPU runs; "unknown" if a fact is missing."""
        if device.capability is None:
            return "unknown"
        tegra = device.capability in self.catalog.tegra_capabilities
        return code_for(build, device.capability, tegra=tegra)

    def worst_driver(self, cuda: str) -> DriverFit:
        """How the site with the worst fit runs a CUDA version."""
        return self._for_cuda(cuda).worst

    def sites_against(self, build: Build) -> tuple[Site, ...]:
        """The sites whose driver or GPU blocks a build."""
        fits = zip(self.fleet.sites, self._for_cuda(build.cuda).fits, strict=True)
        return tuple(
            site
            for site, fit in fits
            if fit.verdict == "none"
            or any(
                self._undriven[site, device] is not None or self._against_gpu(build, device, site)
                for device in site.devices or ()
            )
        )

    def _runs(self, build: Build) -> bool:
        """Whether the drivers and the GPUs of all hosts run a build."""
        return self._of_build(build).fits

    def companion_blockers(self, build: Build, request: Request) -> tuple[Blocker, ...]:
        """Which companions do not go with a build."""
        if not request.companions:
            return ()
        blockers = companions_against(build, request, self.catalog)
        return (*blockers, *self.beside.blockers(build, request))

    def _against_gpu(
        self, build: Build, device: GpuKind, site: Site | None = None
    ) -> list[Blocker]:
        code = self.code(build, device)
        cuda = self._for_cuda(build.cuda)
        if site is not None:
            fit = cuda.fits[self._position[site]]
            minor, native = fit.verdict == "minor-version", fit.native_up_to
        else:
            native = cuda.by_minor.get(device.capability) if device.capability else None
            minor = native is not None
        found = (
            code_blocker(build, device, code),
            ptx_blocker(build, device, code, by_minor=minor),
            partly_ptx_blocker(build, device, native, by_minor=minor),
            cudnn_blocker(build, device, self.catalog),
        )
        return [blocker for blocker in found if blocker is not None]

    def _python(self, build: Build, request: Request, offered: Offer) -> tuple[str | None, str]:
        return choose_python(
            self.beside.for_both(build, request) if request.companions else build,
            request.python,
            allowed_pythons(offered.pythons, request),
            self.catalog.settled_pythons(build.published),
            doubted=offered.doubted,
            suite=request.bootstraps,
        )

    def cudnn(self, build: Build) -> str | None:
        """The cuDNN of a build; chosen if the wheel leaves a range open."""
        if build.cudnn is not None or build.cudnn_spec is None:
            return build.cudnn
        return choose_cudnn(build.cudnn_spec, build.cuda, self._devices, self.catalog)

    def _has_cudnn(self, build: Build) -> bool:
        lowest = lowest_of_cudnn(self.cudnn(build), build.cuda, self.catalog) if self._old else None
        return lowest is None or lowest <= min(self._old)

    def _verdict(self, build: Build, cuda: _Cuda) -> Verdict:
        """The worst host's; unverified when a needed fact is missing: a GPU, or whether the build
        exists at all.
        """
        missing = self._blind or (bool(self._devices) and not build.sm)
        if missing or build.existence == "doubtful":
            return max(cuda.worst.verdict, "unverified", key=RANK.__getitem__)
        return cuda.worst.verdict

    def _for_cuda(self, cuda: str) -> _Cuda:
        if cuda not in self._cuda:
            sites = self.fleet.sites
            fits = tuple(fit_driver(site, cuda, self.catalog) for site in sites)
            self._cuda[cuda] = _Cuda(
                fits,
                max(fits, key=lambda fit: RANK[fit.verdict]),
                sum(fit.verdict == "none" for fit in fits),
                by_minor_version(sites, fits),
            )
        return self._cuda[cuda]

    def _offer(self, build: Build, request: Request, *, compat: bool) -> Offer:
        named = build.python_tags if request.base not in {None, "bootstrap"} else ()
        asked = (request.base, request.flavour, request.apt, named)
        key = (build.cuda, build.libraries, compat, *asked)
        if key not in self._offers:
            self._offers[key] = offer(build, request, self.fleet.sites, self.catalog, compat=compat)
        return self._offers[key]


def preference(candidate: Candidate) -> tuple[object, ...]:
    """Verified before unverified; no extra package before cuda-compat; a cuDNN that supports the
    GPUs before one that has dropped one; the newest release; in it
    native before minor-version, known before only likely to exist. PyPI's build comes first if the
    driver is unknown, or runs it natively and the release is pinned: its author had that one. Last
    the CUDA nearest to the driver's: the highest that it supports natively, the lowest above.
    """
    build, driver = candidate.build, candidate.driver.verdict
    usual = driver == "unverified" or (driver == "direct" and candidate.pinned)
    major, minor = map(int, build.cuda.split("."))
    nearest = (-major, -minor) if driver in {"minor-version", "forward"} else (major, minor)
    return (
        build.existence != "doubtful",
        candidate.verdict != "unverified",
        driver != "forward",
        candidate.has_cudnn,
        version(build.version),
        -RANK[driver],
        usual and "pypi" in build.at,
        build.existence == "confirmed",
        nearest,
    )


def nearness(candidate: Candidate) -> tuple[object, ...]:
    """Among refused builds, the one that came furthest explains; then one that exists, and needs
    the least new driver.
    """
    sure = candidate.build.existence == "confirmed"
    need = version(candidate.driver.need) if candidate.driver.need else version("0")
    asks = candidate.driver.verdict == "none"
    least = (-need.major, -need.minor, -need.micro) if asks else (0, 0, 0)
    return candidate.stage, -candidate.against, sure, least, preference(candidate)


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The most preferred first."""
    return sorted(candidates, key=preference, reverse=True)


def choose(ordered: Sequence[Candidate]) -> Candidate:
    """The first build, of builds in order; but if it is only likely to exist, the first of those
    known to exist that fit the driver no worse, else of all those known. A build that is only
    likely to exist neither displaces one that exists, nor is it a reason for a worse fit.
    """
    best = ordered[0]
    if best.build.existence == "confirmed":
        return best
    seen = [
        c
        for c in ordered
        if c.build.existence == "confirmed"
        and RANK[c.verdict] <= max(RANK[best.verdict], RANK["minor-version"])
    ]
    as_good = [c for c in seen if RANK[c.driver.verdict] <= RANK[best.driver.verdict]]
    return next(iter(as_good or seen or [best]))
