"""Plan a changed request, or changed hosts: whether what a refusal is about to advise works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from provision.catalog.catalog import Catalog
from provision.model.plan import Alternative, PlanError, Request
from provision.resolve.alternatives import alternatives
from provision.resolve.builds import Build
from provision.resolve.candidates import (
    OF_A_REQUEST,
    Candidate,
    Examiner,
    choose,
    nearness,
)
from provision.resolve.cures import MOST, NO_CURE, Spell, cures, fix_of
from provision.resolve.fleet import Fleet, Site, place_of
from provision.resolve.refusals import why_blocked
from provision.resolve.rules.driven_gpus import driven_blocker, last_driver, right_driver
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
    """The hosts with other drivers: what to install on them; `need`: the newest driver of these,
    None: only older ones than the hosts have.
    """

    words: str
    need: str | None
    trial: Trial


class BestOf(NamedTuple):
    """Of the builds that a request allows the best that fits; without one, the one that came
    closest, unless there are none.
    """

    requested: Sequence[Build]
    best: Build | None
    nearest: Build | None
    alternatives: tuple[Alternative, ...]


class Outcomes(NamedTuple):
    """What was found out for each request; the same for hosts on which each build fares the same,
    but for the texts about the hosts in a candidate.
    """

    candidates: dict[Request, Sequence[Candidate]]
    choices: dict[Request, BestOf]
    fixes: dict[tuple[Request, Spell, int], str]


class Trial:
    """Plans other requests for the same hosts, from the same builds."""

    def __init__(
        self, examiner: Examiner, builds: Sequence[Build], outcomes: Outcomes | None = None
    ) -> None:
        self.catalog = examiner.catalog
        self._examiner, self.builds = examiner, builds
        self._outcomes = Outcomes({}, {}, {}) if outcomes is None else outcomes
        self._driven: dict[tuple[tuple[Site, str], ...], Driven] = {}
        self._why: dict[int, PlanError] = {}  # by the build, which is in `builds`
        self._known_changes: dict[tuple[str, ...], Sequence[Mapping[Site, str]]] = {}

    def choice(self, request: Request) -> BestOf:
        """Which build a request gets, and what else there is."""
        known = self._outcomes.choices
        if request not in known:
            known[request] = self._choice(request)
        return known[request]

    def _choice(self, request: Request) -> BestOf:
        examiner = self._examiner
        asked = [build for build in self.builds if is_asked_for(build, request)]
        candidates = [examiner.examine(build, request) for build in asked]
        fitting = examiner.in_order(c for c in candidates if c.fits)
        best, nearest = examiner.pick(fitting, request), None
        if best is None and candidates:
            whole = (
                examiner.examine(c.build, request, whole=True) if c.fits else c for c in candidates
            )
            nearest = max(whole, key=nearness).build
        others = alternatives(self.builds, request, examiner, is_asked_for, best)
        return BestOf(asked, best and best.build, nearest, others)

    def why_blocked(self, nearest: Candidate, request: Request) -> PlanError:
        """Why the build that came closest does not fit."""
        key = id(nearest.build)
        if nearest.stage >= OF_A_REQUEST:
            return why_blocked(nearest, request, self._examiner, self.builds)
        if key not in self._why:
            self._why[key] = why_blocked(nearest, request, self._examiner, self.builds)
        return self._why[key]

    def fix(self, request: Request, spell: Spell, most: int = MOST) -> str:
        """The smallest changes of a request that plan, in words; "" if there are none."""
        known, key = self._outcomes.fixes, (request, spell, most)
        if key not in known:
            known[key] = fix_of(cures(request, self, self.catalog), spell, most)
        return known[key]

    def candidates(self, request: Request) -> Sequence[Candidate]:
        """What a request could get, the best first; () if it does not plan."""
        known = self._outcomes.candidates
        if request not in known:
            known[request] = self._candidates(request)
        return known[request]

    def _candidates(self, request: Request) -> Sequence[Candidate]:
        found = [
            c if c.base else self._examiner.examine(c.build, request, whole=True)
            for c in self._examiner.fitting(self.builds, request, is_asked_for)
        ]
        rest = [c for c in found if c.fits]
        best = choose(rest) if rest else None
        return sorted(rest, key=lambda one: one is not best)

    def refuses(self, build: Build, request: Request) -> bool:
        """Whether the companions of a request do not match a build."""
        return bool(self._examiner.companion_blockers(build, request))

    def driven(self, request: Request, builds: Sequence[Build]) -> Iterator[Driven]:
        """The hosts with other drivers, the smallest change first: each GPU driven, then the
        drivers for the CUDA of these builds. Nothing if no driver is in the way.
        """
        for changes in self._changes(tuple(dict.fromkeys(build.cuda for build in builds))):
            yield self._least(self._driven_by(changes), changes, request)

    def _changes(self, cudas: tuple[str, ...]) -> Sequence[Mapping[Site, str]]:
        """The drivers to install for these CUDAs, each different set once."""
        if cudas not in self._known_changes:
            self._known_changes[cudas] = self._changes_for(cudas)
        return self._known_changes[cudas]

    def _changes_for(self, cudas: Sequence[str]) -> Sequence[Mapping[Site, str]]:
        sites = self._examiner.fleet.sites
        toolkits = [self.catalog.toolkit(cuda) for cuda in cudas]
        needs = {self._examiner.worst_driver(cuda).need for cuda in cudas}
        needs |= {toolkit.driver for toolkit in toolkits if toolkit}
        found: dict[tuple[tuple[Site, str], ...], Mapping[Site, str]] = {}
        for floor in (None, *sorted((need for need in needs if need), key=version)):
            raised = ((site, _raised(site, self._right[site], floor)) for site in sites)
            changes = {site: driver for site, driver in raised if driver}
            if changes:
                found.setdefault(tuple(changes.items()), changes)
        return [*found.values()]

    @cached_property
    def _right(self) -> Mapping[Site, str | None]:
        return {site: right_driver(site, self.catalog) for site in self._examiner.fleet.sites}

    def _least(self, found: Driven, changes: Mapping[Site, str], request: Request) -> Driven:
        """The same without the hosts that can keep their drivers for what a request gets."""
        for candidate in found.trial.candidates(request)[:1] if len(changes) > 1 else ():
            against = self._examiner.sites_against(candidate.build)
            fewer = {site: new for site, new in changes.items() if site in against}
            if fewer and fewer != changes:
                less = self._driven_by(fewer)
                return less if less.trial.candidates(request) else found
        return found

    def _driven_by(self, changes: Mapping[Site, str]) -> Driven:
        key = tuple(changes.items())
        if key not in self._driven:
            fleet, catalog = self._examiner.fleet, self.catalog
            for driver in dict.fromkeys(changes.values()):
                sites = [site for site, new in changes.items() if new == driver]
                fleet = fleet.driven_by(driver, sites, catalog)
            newer = [driver for site, driver in changes.items() if _is_newer(driver, site)]
            self._driven[key] = Driven(
                _words(changes, len(fleet.sites), catalog),
                max(newer, key=version, default=None),
                self._of(fleet),
            )
        return self._driven[key]

    def _of(self, fleet: Fleet) -> Trial:
        """The same for other hosts."""
        return Trial(Examiner(fleet, self.catalog), self.builds)


def _words(changes: Mapping[Site, str], hosts: int, catalog: Catalog) -> str:
    """What to install, on which of so many hosts."""
    groups: dict[tuple[str, str], list[Site]] = {}
    for site, driver in changes.items():
        groups.setdefault(_install(site, driver, catalog), []).append(site)
    text = ""
    for (before, after), sites in groups.items():
        where = f" on {place_of(sites)}" if len(groups) > 1 or len(sites) < hosts else ""
        text += f" and {before[:1].lower()}{before[1:]}" if text else before
        text += where + after
    return text


def _is_newer(driver: str, site: Site) -> bool:
    return site.driver is None or version(driver) > version(site.driver)


def _raised(site: Site, right: str | None, floor: str | None) -> str | None:
    """The driver to install on a host: the one that is right for its GPUs, or a newer one; None:
    it keeps its own. A host whose driver is not known keeps it.
    """
    have = right or site.driver
    if have is None:
        return floor if site.driver_cuda is not None else None
    return floor if floor is not None and version(floor) > version(have) else right


def _install(site: Site, driver: str, catalog: Catalog) -> tuple[str, str]:
    """What to do on a host to get a driver: the words before and after the host."""
    if not _is_newer(driver, site):
        return f"Install driver branch {driver}", ", the last that does"
    gpus = [(site, device) for device in site.devices or ()]
    undriven = any(driven_blocker(site, device, catalog) for _, device in gpus)
    last, most = last_driver(gpus, catalog), ""
    if last is not None and int(last) < catalog.branches[-1].branch:
        most = f" (branch {last} at most)"
    verb = "Install NVIDIA driver" if undriven else "Upgrade the NVIDIA driver to"
    return f"{verb} {driver} or newer{most}", ""


_OF_DRIVERS = ("driver-too-old", "gpu-not-driven", "no-compat-base", "ptx-needs-newer-driver")


def cured(
    error: PlanError, request: Request, trial: Trial, builds: Sequence[Build], spell: Spell
) -> tuple[PlanError, str | None]:
    """An error whose fix names the changes of the request that plan, or of the drivers of the
    hosts, and of both only if none of one does; the driver that the fix names. `builds`: what the
    request allows.
    """
    found = trial.fix(request, spell)
    driven, more = None, ""
    if error.code in _OF_DRIVERS:
        ways = trial.driven(request, builds)
        driven = next((one for one in ways if one.trial.candidates(request)), None)
    if driven is None and not found:
        driven, more = _with_driver(request, trial, builds, spell)
    ways_out = [found, f"{driven.words}{more}." if driven else "", error.fix]
    fix = " Else: ".join(way for way in ways_out if way)
    return error._replace(fix=fix or NO_CURE), driven.need if driven else None


def _with_driver(
    request: Request, trial: Trial, builds: Sequence[Build], spell: Spell
) -> tuple[Driven | None, str]:
    """Other drivers together with the smallest change of a request that plans with them."""
    for some in (builds, trial.builds):
        for driven in trial.driven(request, some):
            if driven.trial.candidates(request):
                return driven, ""
            more = driven.trial.fix(request, spell, most=1)
            if more:
                return driven, f", and {more[:1].lower()}{more[1:].rstrip('.')}"
    return None, ""
