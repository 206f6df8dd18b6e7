"""The packages of --with are for the plan's CUDA: else another build of the framework, or an older
release of the package.

A wheel of PyPI is compiled for one CUDA, and its newest release often for one that an older driver
cannot run. Installed beside the framework's build for another CUDA it does not load.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from images.errors import Failure
from provision.catalog.catalog import Catalog
from provision.catalog.pairs import cudas_beside
from provision.lock.cuda_sources import compiles_cuda
from provision.lock.facts import WheelFacts
from provision.lock.lead import PackageRelease
from provision.lock.runtimes import (
    FEW_LIBRARIES,
    MOST_LIBRARIES,
    NeededCuda,
    needed_cuda,
)
from provision.lock.solve import NoSolutionError
from provision.model.plan import TITLES, HostFacts, Plan, Request, Warned
from provision.resolve import resolve
from provision.resolve.builds import builds_of
from provision.resolve.candidates import RANK
from provision.resolve.cures import NO_CURE
from provision.resolve.specifiers import version

THREADS = 8
"""How many wheels are looked at at a time."""
MOST_ASKED = 12
"""How many releases of a package are looked at to find the newest for a CUDA."""


class FoundRelease(NamedTuple):
    """A release of a package, and the address of its wheel."""

    release: PackageRelease
    address: str


class OtherCuda(NamedTuple):
    """A package's release that is for another CUDA than the plan."""

    package: str
    release: PackageRelease
    needed: NeededCuda
    cuda: str

    def words(self, subject: str, cuda: str) -> str:
        """What is wrong, with the plan's CUDA."""
        return (
            f"{subject} is compiled for CUDA {cudas_beside(self.needed.cudas, cuda)} "
            f"({self.needed.shown_by}), and "
            f"this plan has CUDA {cuda}."
        )

    def obstacle(
        self, plan: Plan, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
    ) -> tuple[str, str]:
        """Why the release was not taken, and what would allow it: another --cuda or driver that was
        planned, or an index.
        """
        why = self.words(self.release.version, plan.cuda or self.cuda)
        for cuda in reversed(cudas_of(plan, self.needed.fits, catalog)):
            asked = request._replace(cuda=cuda)
            error = resolve(hosts, asked, catalog, spell=lambda *_: None).error
            if error is None and request.cuda is not None and not request.declared_in:
                return why, f"Use --cuda {cuda}."
            if error is not None and error.fix != NO_CURE:
                return why, error.fix
        cuda = plan.cuda or self.cuda
        return why, f"Name an index that has {self.package} for CUDA {cuda} with --index."


class WheelRuntimes:
    """The CUDA that wheels need; each wheel is looked at once."""

    def __init__(self, facts: WheelFacts, ca_bundle: Path | None, *, offline: bool) -> None:
        self._facts = facts
        self._ca = ca_bundle
        self._offline = offline
        self._known: dict[str, NeededCuda | None] = {}

    def of(self, address: str, most: int = MOST_LIBRARIES) -> NeededCuda | None:
        """What the wheel at this address needs; None if that is nothing, or not known. `most`: how
        many of its libraries are read, if it was not looked at before.
        """
        self._look([address], most)
        return self._known.get(address)

    def read(self, addresses: Iterable[str]) -> None:
        """Look at several wheels at a time, and only at a few libraries of each."""
        self._look(addresses, FEW_LIBRARIES)

    def compiling(self, addresses: Iterable[str]) -> frozenset[str]:
        """Those of the wheels at these addresses that compile CUDA code when they run."""

        def look(address: str) -> bool | None:
            try:
                return compiles_cuda(address, ca_bundle=self._ca)
            except Failure:
                return None

        def look_at_all(new: list[str]) -> dict[str, dict[str, Any]]:
            with ThreadPoolExecutor(THREADS) as threads:
                found = dict(zip(new, threads.map(look, new), strict=True))
            return {address: {"compiles": one} for address, one in found.items() if one is not None}

        asked = () if self._offline else addresses
        facts = self._facts.of("compiles CUDA code", asked, look_at_all)
        return frozenset(address for address, fact in facts.items() if fact["compiles"])

    def _look(self, addresses: Iterable[str], most: int) -> None:
        def look(address: str) -> dict[str, Any] | None:
            try:
                needed = needed_cuda(address, ca_bundle=self._ca, most=most)
            except Failure:  # it cannot be read in parts, or not now
                return None
            return {"needs": needed and [list(needed.cudas), needed.shown_by]}

        def look_at_all(new: list[str]) -> dict[str, dict[str, Any]]:
            with ThreadPoolExecutor(THREADS) as threads:
                found = dict(zip(new, threads.map(look, new), strict=True))
            return {address: fact for address, fact in found.items() if fact is not None}

        new = [] if self._offline else [one for one in addresses if one not in self._known]
        facts = self._facts.of(f"cuda of {most} libraries", new, look_at_all)
        for address in new:
            needs = facts.get(address, {}).get("needs")
            self._known[address] = NeededCuda(tuple(needs[0]), needs[1]) if needs else None

    def other(
        self,
        package: str,
        found: FoundRelease,
        cuda: str | None,
        brought: Collection[str] = (),
    ) -> OtherCuda | None:
        """The release, if it is for another CUDA than this, whose libraries are not `brought` by
        other packages (major versions).
        """
        needed = self.of(found.address) if cuda else None
        if needed is None or not cuda or needed.fits(cuda) or any(map(needed.fits, brought)):
            return None
        return OtherCuda(package, found.release, needed, cuda)

    def others(
        self,
        addresses: Mapping[str, str],
        releases: Mapping[str, PackageRelease],
        cuda: str | None,
        brought: Collection[str],
    ) -> dict[str, OtherCuda]:
        """Those of the packages at these addresses that are for another CUDA, by name."""
        self.read(addresses.values())
        found = {
            name: self.other(name, FoundRelease(releases[name], address), cuda, brought)
            for name, address in addresses.items()
        }
        return {name: other for name, other in found.items() if other is not None}


def other_build(
    plan: Plan,
    by: str,
    fits: Callable[[str], bool],
    hosts: Sequence[HostFacts],
    request: Request,
    catalog: Catalog,
) -> Plan | None:
    """The plan for the same release of the framework, for a CUDA that `fits` the packages; None if
    the request names the CUDA, or no such build runs on the hosts. `by`: what decides, in words.
    """
    if request.cuda is not None:
        return None
    exact = request._replace(framework_version=f"=={plan.framework_version}", python=plan.python)
    cudas = cudas_of(plan, fits, catalog, release=plan.framework_version)
    plans = plans_for(cudas, hosts, exact._replace(led_by=by), catalog)
    return next((other for _, other in plans), None)


def plans_for(
    cudas: Iterable[str], hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> list[tuple[Request, Plan]]:
    """The requests for each of these CUDAs that plan, with their plans: first what the drivers run
    natively.
    """
    asked = [request._replace(cuda=cuda) for cuda in cudas]
    plans = [(one, resolve(hosts, one, catalog)) for one in asked]
    return sorted(
        ((one, plan) for one, plan in plans if plan.error is None),
        key=lambda pair: RANK[pair[1].verdict],
    )


def cudas_of(
    plan: Plan, fits: Callable[[str], bool], catalog: Catalog, *, release: str | None = None
) -> tuple[str, ...]:
    """The CUDAs that fit and that the framework was built for, or this release of it; the newest
    first. Builds that are unlikely to exist are left out.
    """
    found = {
        build.cuda
        for build in builds_of(plan.framework, plan.arch or "", catalog)
        if build.existence != "doubtful" and release in {None, build.version} and fits(build.cuda)
    }
    return tuple(sorted(found, key=version, reverse=True))


def newest_for_cuda(
    found: OtherCuda,
    ask: Callable[[str], FoundRelease | None],
    runtimes: WheelRuntimes,
) -> str | None:
    """The bound ("<0.12") whose newest release is the package's newest for the plan's CUDA; None:
    there is none. `ask` gives the newest release within a bound.

    Later releases are for later CUDAs, so growing steps lead back to a minor version that fits, and
    halving the rest to the newest such.
    """

    def look(bound: tuple[int, int]) -> tuple[tuple[int, int], bool] | None:
        """The minor version of the newest release below the bound, and whether it fits."""
        there = ask(f"<{bound[0]}.{bound[1]}")
        if there is None:
            return None
        fits = runtimes.other(found.package, there, found.cuda) is None
        return _minor(there.release.version), fits

    other = bound = _minor(found.release.version)
    good: tuple[int, int] | None = None
    empty = -1  # of the minor versions of `other`, none up to here fits, but for `good`
    step = 1
    for _ in range(MOST_ASKED):
        seen = look(bound)
        if seen is None:
            empty = bound[1] - 1 if bound[0] == other[0] else -1
            break
        if seen[1]:
            good = seen[0]
            empty = good[1] if good[0] == other[0] else -1
            break
        other = seen[0]
        bound, step = (other[0], max(0, other[1] - step)), step * 2
    else:
        return None
    for _ in range(MOST_ASKED):
        if other[1] - empty <= 1:
            return f"<{other[0]}.{other[1]}" if good else None
        middle = empty + 1 + (other[1] - empty) // 2
        seen = look((other[0], middle))
        if seen is None or seen[0] <= (good or (other[0], empty)):
            empty = middle - 1
        elif seen[1]:
            good, empty = seen[0], seen[0][1]
        else:
            other = seen[0]
    return f"<{good[0]}.{good[1] + 1}" if good else None


def bounded(requirement: str, bound: str) -> str | None:
    """The requirement with one more bound: "vllm[flashinfer]>=0.9" and "<0.12"; None for the
    address of one wheel.
    """
    read = Requirement(requirement)
    if read.url:
        return None
    read.specifier &= SpecifierSet(bound)
    return str(read)


def _minor(version: str) -> tuple[int, int]:
    read = Version(version)
    return read.major, read.minor


def no_release(
    found: OtherCuda,
    plan: Plan,
    hosts: Sequence[HostFacts],
    request: Request,
    catalog: Catalog,
    instead: str | None,
) -> NoSolutionError:
    """The error that a package does not go with the plan's CUDA. `instead`: the version of its
    newest release that does.
    """
    title = TITLES[plan.framework]
    name = found.package
    mine = f"{name} {found.release.version} does not work with {title} {plan.framework_version}"
    message = f"{mine}: {found.words('it', found.cuda)}"
    if instead is None:
        return NoSolutionError(
            f"{message} No release was found that is compiled for CUDA {found.cuda}.",
            fix=found.obstacle(plan, hosts, request, catalog)[1],
        )
    pin = f"{name}=={instead}"
    file = request.declared_in
    fix = f"In {file}, pin {pin}." if file else f"Use --with {pin}."
    return NoSolutionError(message, fix=fix)


def other_cuda_warning(found: OtherCuda) -> Warned:
    """The warning that a package of the lock is for another CUDA: what needs it does not load."""
    named = f"{found.package} {found.release.version}"
    return Warned(
        code="other-cuda",
        message=f"{found.words(named, found.cuda)} Its libraries will not load.",
        fix="If you use them, request a release or an index that has them for this CUDA; "
        "provision inspect shows what does not load in the image.",
    )
