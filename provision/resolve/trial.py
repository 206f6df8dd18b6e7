"""Plan a changed request, or changed hosts: whether what a refusal is about to advise works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from provision.model.frozen import replace
from provision.model.plan import PlanError, Request
from provision.resolve.builds import Build
from provision.resolve.candidates import Candidate, Examiner, choose, in_order
from provision.resolve.cures import NO_CURE, Spell, cures, fix_of
from provision.resolve.fleet import Site
from provision.resolve.rules.driven_gpus import last_driver, needed_driver
from provision.resolve.specifiers import version


def is_asked_for(build: Build, request: Request) -> bool:
    """Whether a build is within what the user named; yanked releases and pre-releases must be named
    to be chosen, and builds that are unlikely to exist are chosen only by their CUDA.
    """
    if request.cuda is not None and build.cuda != request.cuda:
        return False
    if build.existence == "doubtful" and request.cuda is None:
        return False
    if request.framework_version is None:
        return not build.yanked and not build.prerelease
    from packaging.specifiers import SpecifierSet

    wanted = SpecifierSet(request.framework_version)
    if build.yanked and str(wanted) != f"=={build.version}":
        return False
    return wanted.contains(build.version, prereleases=bool(wanted.prereleases))


class Driven(NamedTuple):
    """The hosts with another driver; `need`: the oldest that they need, None: an older one."""

    driver: str
    need: str | None
    trial: Trial


class Trial:
    """Plans other requests for the same hosts, from the same builds."""

    def __init__(self, examiner: Examiner, builds: Sequence[Build]) -> None:
        self.catalog = examiner.catalog
        self._examiner, self._builds = examiner, builds
        self._known: dict[Request, Sequence[Candidate]] = {}
        self._driven: dict[tuple[str, tuple[Site, ...]], Trial] = {}

    def candidates(self, request: Request) -> Sequence[Candidate]:
        """What a request could get, the best first; () if it does not plan."""
        if request not in self._known:
            self._known[request] = self._candidates(request)
        return self._known[request]

    def _candidates(self, request: Request) -> Sequence[Candidate]:
        found = [
            c if c.base else self._examiner.examine(c.build, request, whole=True)
            for c in self._examiner.fitting(self._builds, request, is_asked_for)
        ]
        rest = in_order(c for c in found if c.fits)
        best = choose(rest) if rest else None
        return sorted(rest, key=lambda one: one is not best)

    def refuses(self, build: Build, request: Request) -> bool:
        """Whether the companions of a request do not match a build."""
        return bool(self._examiner.companion_blockers(build, request))

    def driven_for(self, nearest: Candidate, code: str, request: Request) -> Driven | None:
        """The driver that the hosts need where theirs is in the way, and these hosts with it: the
        oldest that the request plans with, if one does. None: no driver is in the way.
        """
        fleet, catalog = self._examiner.fleet, self.catalog
        toolkit = catalog.toolkit(nearest.build.cuda)
        needed, last = needed_driver(fleet.gpus, catalog), last_driver(fleet.gpus, catalog)
        if needed and last and version(needed).major > version(last).major:
            return None  # no branch drives them all
        first = {
            "driver-too-old": nearest.driver.need,
            "ptx-needs-newer-driver": toolkit.driver if toolkit else None,
            "gpu-not-driven": needed or last,
        }.get(code)
        if first is None:
            return None
        needs = {self._examiner.worst_driver(one.cuda).need for one in self._builds
                 if is_asked_for(one, request)}  # fmt: skip
        later = sorted((n for n in needs if n and version(n) > version(first)), key=version)
        sites = self._examiner.sites_against(nearest.build)
        older = code == "gpu-not-driven" and needed is None
        tries = [
            Driven(driver, None if older else driver, self._driven_by(driver, sites))
            for driver in (first, *(() if older else later))
        ]
        return next((one for one in tries if one.trial.candidates(request)), tries[0])

    def _driven_by(self, driver: str, sites: tuple[Site, ...]) -> Trial:
        if (driver, sites) not in self._driven:
            full = driver if "." in driver else f"{driver}.999"  # any of that branch
            fleet = self._examiner.fleet.driven_by(full, sites, self.catalog)
            examiner = type(self._examiner)(fleet, self.catalog)
            self._driven[driver, sites] = Trial(examiner, self._builds)
        return self._driven[driver, sites]


def cured(
    error: PlanError,
    request: Request,
    trial: Trial,
    spell: Spell,
    driven: Driven | None = None,
) -> PlanError:
    """An error whose fix names the changes of the request that plan. `driven`: the driver that the
    hosts need, and the hosts with it; it is only named if the request, or a change of it, plans
    there.
    """
    fix, found = error.fix, fix_of(cures(request, trial, trial.catalog), spell)
    if fix and driven is not None:
        if f" {driven.driver}" not in fix:
            fix = f"Upgrade the NVIDIA driver to {driven.driver} or newer."
        if not driven.trial.candidates(request):
            more = fix_of(cures(request, driven.trial, trial.catalog), spell, most=1)
            fix = f"{fix.rstrip('.')}, and {more[:1].lower()}{more[1:]}" if more else ""
    both = f"{found} Else: {fix}" if found and fix else found or fix
    return replace(error, fix=both or NO_CURE)
