"""The packages of --with choose the release of the framework, and the Python.

`vllm` works with few releases of PyTorch. If PyTorch were chosen first, an installer would go back
to the last `vllm` without such limits, years old. So the newest release of what was requested comes
first, within the releases that run on the hosts; then the plan is made for that release. A release
that is far behind the newest is reported with what would allow the newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NoReturn

from images.text.printable import printable
from provision.build import package_refusals as refusals
from provision.build.base import PlanInputs, require_plan
from provision.build.package_code import WheelLook
from provision.build.package_cuda import (
    OtherCuda,
    WheelRuntimes,
    newest_for_cuda,
    no_release,
    other_build,
    plans_for,
)
from provision.build.package_search import ANY_GLIBC, PackageSearch
from provision.build.package_wheels import Resolved, TriedWheels, needs_beside, newest_that_fits
from provision.build.source.refusal import no_compiler, plans_with, source_only
from provision.build.source.source_wheels import source_wheels
from provision.build.source.substitute import request_with_kept
from provision.catalog.needs import RunTimeNeed
from provision.lock.extras import unmet_warning
from provision.lock.lead import PackageRelease, PackageTry, lag, releases_in
from provision.lock.lockfile import clip
from provision.lock.places import server_answers
from provision.lock.solve import NoSolutionError, Solution, uv_broken
from provision.lock.sources import NotBuilt
from provision.lock.uv import WheelTarget, target_of
from provision.model.plan import TITLES, Plan, Request
from provision.resolve import fitting_releases, known_releases, preferred_release, resolve
from provision.resolve.cures import spell_but_the_release
from provision.resolve.fleet import read_fleet
from provision.resolve.packages import frameworks_in, in_few, name_of


class PackageChoice:
    """Chooses the release of the framework that the requested packages work with."""

    def __init__(self, inputs: PlanInputs) -> None:
        self.inputs = inputs
        self.sources = source_wheels(inputs)
        hosts, request, catalog, settings, console = inputs
        self._hosts = hosts
        self._request = request
        self._catalog = catalog
        self._settings = settings
        self._console = console
        self._search = PackageSearch(request, catalog, settings, self.sources)
        self._runtimes = WheelRuntimes(self._search.facts, settings.ca, offline=settings.offline)
        self._tried: PackageTry | None = None
        self._wheels: TriedWheels | None = None
        self._held_back: dict[str, OtherCuda] = {}

    def choose(self, plan: Plan) -> Plan:
        """The plan for the release that the packages need; the same plan if nothing is requested,
        or if no index answers.

        NoSolutionError: no release of the packages works with a framework that runs on the hosts.
        """
        if not self.leads(plan):
            return self._of_pins(plan, self._request)
        with self._console.step("packages", f"choosing the releases of {self._names()}"):
            return self._with_kept(plan, self._request)

    def run_time_needs(self) -> tuple[RunTimeNeed, ...]:
        """What the chosen packages need when they run."""
        return needs_beside(self._request, self._search.leading, self._wheels)

    def choose_on_bootstrap(self, plan: Plan) -> Plan:
        """The same for a base that is built from Debian packages, whatever base was requested."""
        request = self._request._replace(base="bootstrap")
        if not self._search.leading:
            return self._of_pins(plan, request)
        chosen = self._with_kept(plan, request)
        for warning in chosen.warnings:
            self._console.warn(warning.message, warning.fix)
        return chosen

    def _with_kept(self, plan: Plan, request: Request) -> Plan:
        """The plan for the packages, with the wheels built here of those that have none."""
        found = request_with_kept(request, self._settings.wheels, self._search, self._plan_for)
        if found is None:
            return self._for_its_cuda(plan, request)
        search = PackageSearch(found, self._catalog, self._settings, self.sources)
        self._request, self._search = found, search
        led = require_plan(resolve(self._hosts, found, self._catalog))
        self.leads(led)
        return self._for_its_cuda(led, found)

    def _plan_for(self, request: Request) -> Plan:
        """The plan for other packages on the same hosts."""
        inputs = self.inputs._replace(request=request)
        start, other = inputs.plan(), PackageChoice(inputs)
        chooses = start.error is None and other.leads(start)
        return other._for_its_cuda(start, request) if chooses else start

    def leads(self, plan: Plan) -> bool:
        """Whether packages decide; the plan's other frameworks are among them."""
        self._search.leading |= frameworks_in(plan)
        self._search.spelling = plan.indexes[0].requirement.partition("==")[0]
        return bool(self._search.leading)

    def _of_pins(self, plan: Plan, request: Request) -> Plan:
        """The plan of a project that pins every version, for a CUDA that its packages are for.

        NoSolutionError: one of them is for another CUDA, and no build of the framework is.
        """
        pins = self._search.pins(request, target_of(plan))
        if pins is None:
            return plan
        self._wheels = wheels = TriedWheels(pins, self._runtimes)
        other = wheels.other_than(plan.cuda)
        if other is None:
            return plan
        return self._built_for(plan, other, request, wheels.all_fit) or self._refuse(other, plan)

    def _for_its_cuda(self, plan: Plan, request: Request) -> Plan:
        """The plan for the packages, whose wheels are compiled for its CUDA: for another CUDA of
        the same release of the framework, or with an older release of the package, if need be.
        """
        chosen = self._chosen(plan, request)
        for _ in self._search.leading if self._wheels else ():
            assert self._wheels is not None
            other = self._wheels.other_than(chosen.cuda, self._search.leading)
            if other is None:
                return self._for_what_they_need(chosen, request)
            for fits in (self._wheels.all_fit, other.needed.fits):
                if build := self._built_for(chosen, other, request, fits):
                    return self._completed(build)
            if (found := self._with_its_cuda(chosen, other, request)) is not None:
                return found
            ask = self._search.newest_below(other.package, self._wheels, self._console.progress)
            bound = newest_for_cuda(other, ask, self._runtimes)
            if bound is None:
                self._refuse(other, chosen)
            self._search.bound(other.package, bound)
            self._held_back.setdefault(other.package, other)
            chosen = self._chosen(plan, request)
        return chosen

    def _for_what_they_need(self, plan: Plan, request: Request) -> Plan:
        """The plan for a CUDA of the packages that the requested ones need, too. If there is none
        for all, the plan stays, and `judge` warns.
        """
        wheels = self._wheels
        other = wheels.other_than(plan.cuda) if wheels else None
        if wheels is None or other is None or not wheels.cudas(plan, self._catalog):
            return plan
        if build := self._built_for(plan, other, request, wheels.all_fit):
            return self._completed(build)
        return self._with_its_cuda(plan, other, request) or plan

    def _built_for(
        self, plan: Plan, other: OtherCuda, request: Request, fits: Callable[[str], bool]
    ) -> Plan | None:
        """The plan for the same release of the framework, for a CUDA that fits; None: there is
        none.
        """
        by = f"{other.package} {other.release.version}"
        build = other_build(plan, by, fits, self._hosts, request, self._catalog)
        if build is None:
            return None
        self._console.result(f"{other.words(by, other.cuda)} It takes CUDA {build.cuda} instead.")
        return require_plan(build)

    def _with_its_cuda(self, plan: Plan, other: OtherCuda, request: Request) -> Plan | None:
        """The plan for another release of the framework, built for the CUDA of the same releases
        of the packages.
        """
        tried, wheels = self._tried, self._wheels
        assert wheels is not None
        same = {name: wheels.releases.get(name) for name in (*self._search.leading, other.package)}
        cudas = self.same_cuda(plan) if request.cuda is None else ()
        for exact, start in plans_for(cudas, self._hosts, request, self._catalog):
            try:
                found = self._chosen(start, exact)
            except NoSolutionError:
                continue
            now = self._wheels
            mine = {name: now.releases.get(name) for name in same} if now else {}
            cuda = exact.cuda
            if now and found.cuda == cuda and mine == same and not now.other_than(cuda, same):
                by = f"{other.package} {other.release.version}"
                self._console.result(other.words(by, other.cuda))
                return found
        self._tried, self._wheels = tried, wheels
        return None

    def _refuse(self, other: OtherCuda, plan: Plan) -> NoReturn:
        """Raise the error for a package that is for another CUDA."""
        wheels, tell = self._wheels, self._console.progress
        assert wheels is not None
        fitting = fitting_releases(self._hosts, self._request, self._catalog).get(wheels.python)
        beside = self._search.other_lines(other.package, fitting or [str(plan.framework_version)])
        ask = self._search.newest_below(other.package, wheels, tell, beside=beside)
        instead = newest_that_fits(other, ask, self._runtimes)
        raise no_release(other, plan, self._hosts, self._request, self._catalog, instead)

    def _chosen(self, plan: Plan, request: Request) -> Plan:
        fitting = fitting_releases(self._hosts, request, self._catalog)
        if not fitting:
            return plan
        preferred = list(fitting).index(plan.python) if plan.python in fitting else len(fitting)
        older, newer = list(fitting)[: preferred + 1], list(fitting)[preferred + 1 :]
        pythons = [*reversed(older), *newer]  # wheels are more often for the Pythons before
        target = target_of(plan)
        others = fitting
        if request.python is not None:  # what another Python would have is reported
            others = fitting_releases(self._hosts, request._replace(python=None), self._catalog)
        self.sources.for_plan(plan)
        every = dict.fromkeys((*pythons, *reversed(others)))
        with ThreadPoolExecutor(1) as thread:  # of the others only the versions count
            self._search.look_up(target, pythons[:1])
            rest = thread.submit(self._search.look_up, target, [*every][1:])
            start = self._start(plan, request, fitting)
            self._search.of_plan(start)
            rest.result()
        refusals.refuse_old_wheels(self._search, lambda found: self.source_only(found, plan))
        preferred_for = partial(preferred_release, self._hosts, request, self._catalog)
        best = self._search.best(start, pythons, fitting, preferred_for)
        if best.outcome == "broken":
            raise uv_broken(best.reason, best.text)
        if best.outcome != "locked":
            if best.outcome == "unsolvable" and self.sources.blocked:
                raise self.source_only(self.sources.blocked, plan)
            if best.outcome == "unsolvable" and self._search.found_all():
                raise self._none_fits(best, fitting[best.python])
            self._console.progress(f"{self._names()}: {best.reason}")
            return plan
        chosen = releases_in(best.text)
        if (missing := self._search.without_wheels()) is not None:  # but for a pre-release
            raise missing
        own = refusals.refusing(best.refused, self._search.leading, self._request)
        if own:
            there, fits = target._replace(python=best.python), fitting[best.python]
            last = chosen[self._search.package].version
            raise refusals.extra_refused(own[0], self._request, self._search, there, fits, last)
        by = in_few([f"{name} {chosen[name].version}" for name in self._search.leading])
        release = chosen[self._search.package].version
        self._console.result(f"{by} with {TITLES[plan.framework]} {release}, Python {best.python}")
        self._tried = best
        self._wheels = TriedWheels(Resolved(best.text, best.python, target.arch), self._runtimes)
        return self._completed(self._planned_for(plan, request, by, release, best.python))

    def _start(self, plan: Plan, request: Request, fitting: Mapping[str, Sequence[str]]) -> Plan:
        """The plan, or that for the framework's newest release that the newest packages allow."""
        python = str(plan.python)
        accepted = self._search.accepted(python, fitting.get(python, ()))
        if not accepted or plan.framework_version in accepted:
            return plan
        led = self._led(request, self._names(), accepted[-1], python)
        return plan if led.error is not None else led

    def _completed(self, plan: Plan) -> Plan:
        """The plan with what the packages that were tried need beside it."""
        assert self._tried is not None
        warnings = tuple(unmet_warning(need, plan) for need in self._tried.refused)
        found = releases_in(self._tried.text)  # uv may go further back if it only has the limit
        held = (f"{name}=={found[name].version}" for name in self._held_back if name in found)
        more = (*self._tried.pins, *held)
        lines = tuple(line for line in more if line not in plan.requirements)
        return plan._replace(
            requirements=(*plan.requirements, *lines),
            warnings=(*plan.warnings, *warnings),
        )

    def same_cuda(self, plan: Plan) -> tuple[str, ...]:
        """The CUDAs that the packages' wheels are for, the newest first; () if they need none."""
        if self._wheels is None:
            return ()
        of_all = self._wheels.cudas(plan, self._catalog)
        return of_all or self._wheels.cudas(plan, self._catalog, self._search.leading)

    def without_wheels(self) -> NoSolutionError | None:
        """As `PackageSearch.without_wheels`, for what was looked up by `choose`."""
        return self._search.without_wheels()

    def source_only(self, blocked: Sequence[NotBuilt], plan: Plan) -> NoSolutionError:
        """The error for releases that have no wheel and cannot be built while locking."""
        asked, typed = (self._hosts, self._request, self._catalog), self._settings.typed
        named = [*(one.url for one in self._request.indexes), self._request.index_url or ""]
        plans, lacks = plans_with(*asked), no_compiler(plan, *asked)
        others = self._search.leading.values()
        answers = partial(server_answers, ca_bundle=self._settings.ca)
        return source_only(blocked, plan, typed, others, plans, named, lacks, answers)

    def judge(self, found: Solution) -> Solution:
        """Add a warning for each requested package whose release is far behind the newest."""
        if not self._search.leading and not self._request.settled:
            return found
        self._search.facts.learn(found.text)
        releases = releases_in(found.text)
        old = []
        for name in self._search.leading:
            mine, newest = releases.get(name), self._search.newest_of(name)
            held = self._held_back.get(name)
            if mine is None or newest is None:
                continue
            last = held.release if held else newest[1]
            words = lag(mine, last)
            if words is None:
                continue
            if held:
                why, fix = held.obstacle(found.plan, self._hosts, self._request, self._catalog)
            else:
                why, fix = self._obstacle(name, *newest)
            old.append(refusals.OldRelease(name, mine.version, words, last.version, why, fix))
        target = WheelTarget(str(found.plan.python), self._search.arch, ANY_GLIBC)
        warnings = refusals.old_warnings(self._search, old, target)
        fleet = read_fleet(self._hosts, self._catalog)
        look = WheelLook(self._runtimes, fleet, self._settings, self._console.progress)
        asked = self._search.leading or {name_of(one): one for one in self._request.companions}
        warnings += look.warnings(found, releases, self._search.package, asked)
        plan = found.plan._replace(warnings=(*found.plan.warnings, *warnings))
        return replace(found, plan=plan)

    def _planned_for(
        self, plan: Plan, request: Request, by: str, release: str, python: str
    ) -> Plan:
        """The plan for the release of the framework and the Python that go with the packages."""
        if (release, python) == (plan.framework_version, plan.python):
            decided = tuple(note for note in plan.notes if note.code != "packages-decide")
            return plan._replace(notes=decided)
        return require_plan(self._led(request, by, release, python))

    def _led(self, request: Request, by: str, release: str, python: str) -> Plan:
        exact = request._replace(framework_version=f"=={release}", led_by=by)
        led = resolve(self._hosts, exact, self._catalog)
        if led.python != python:
            led = resolve(self._hosts, exact._replace(python=python), self._catalog)
        return led

    def _none_fits(self, found: PackageTry, fitting: Sequence[str]) -> NoSolutionError:
        title = TITLES[self._request.framework]
        span = fitting[0] if len(fitting) == 1 else f"{fitting[0]} to {fitting[-1]}"
        newest = self._search.newest_of(name := next(iter(self._search.leading)))
        why, fix = self._obstacle(name, *newest) if newest else ("", "")
        return NoSolutionError(
            f"No release of {self._names()} works with {title} {span}, which the hosts can run"
            f"{f': {why}' if why else '.'}",
            fix=refusals.other_release(self._search, found.python, fitting, self._request)
            or fix
            or refusals.NO_OTHER,
            detail=clip(found.reason, 2000),
        )

    def _obstacle(self, name: str, python: str, newest: PackageRelease) -> tuple[str, str]:
        """Why the newest release of a package was not chosen, and what would allow it: the same
        hosts without the limits of the request, or other hosts.
        """
        title = TITLES[self._request.framework]
        target = WheelTarget(python, self._search.arch, ANY_GLIBC)
        free = self._request._replace(cuda=None, framework_version=None, python=python)
        here = fitting_releases(self._hosts, free, self._catalog).get(python)
        limits = refusals.limits_of(self._request)
        drop = [f"remove {limits}"] if limits else []
        drop += [f"use --python {python}"] if self._request.python not in {None, python} else []
        found = here and drop and refusals.newest_with(self._search, name, newest, here, target)
        if found:
            fix = f"{drop[0][:1].upper()}{' and '.join(drop)[1:]}."
            return f"it works with {title} {found} on these hosts.", fix
        release = refusals.newest_with(self._search, name, newest, None, target)
        if release is None:
            if len(self._search.leading) > 1:
                return refusals.BY_OTHERS, ""
            why = self._search.run([f"{name}=={newest.version}", self._search.package], target)[1]
            return f"no {title} that it works with was found ({clip(why, 200)}).", ""
        needs = f"it works with {title} {release}"
        if release not in known_releases(self._request, self._catalog):
            return f"{needs}, which the catalog does not have.", "Run: provision catalog refresh"
        wanted = free._replace(framework_version=f"=={release}")
        plan = resolve(self._hosts, wanted, self._catalog, spell=spell_but_the_release)
        if plan.error is not None:
            return f"{needs}. {plan.error.message}", plan.error.fix
        return f"{needs}.", f"Request it: --with {name}=={newest.version}"

    def _names(self) -> str:
        lines = self._search.leading.items()  # what a marker says was decided: it is not shown
        return printable(in_few([n if "@" in one else one.partition(";")[0] for n, one in lines]))
