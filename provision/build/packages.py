"""The packages of --with choose the release of the framework, and the Python.

`vllm` works with few releases of PyTorch. If PyTorch were chosen first, an installer would go back
to the last `vllm` without such limits, years old. So the newest release of what was requested comes
first, within the releases that run on the hosts; then the plan is made for that release. A release
that is far behind the newest is reported with what would allow the newer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from images.text.printable import printable
from provision.build.base import BuildSettings, require_plan
from provision.catalog.catalog import Catalog
from provision.lock.extras import ExtraNeed, read_metadata, unmet, unmet_warning
from provision.lock.lead import (
    PackageRelease,
    PackageTry,
    addresses_in,
    framework_line,
    is_newer,
    lag,
    newest_of,
    releases_in,
)
from provision.lock.lockfile import clip
from provision.lock.solve import NoSolutionError, Solution, run_uv, uv_broken
from provision.lock.uv import Outcome, WheelTarget, has_only_sources, target_of
from provision.lock.wheels import environment_of
from provision.model.plan import PACKAGES, TITLES, HostFacts, Plan, Request, Warned
from provision.output.console import Console
from provision.resolve import fitting_releases, known_releases, resolve
from provision.resolve.packages import leading

_MOST_PYTHONS = 3
_ROUNDS = 3  # of requests for extras: each may bring packages that have extras of their own
_THREADS = 4
_ANY_GLIBC = 40  # newer than what wheels are built for
_NOT_OURS = ("nvidia-", "cuda-")  # NVIDIA's wheels name no framework


class PackageChoice:
    """Chooses the release of the framework that the requested packages work with."""

    def __init__(
        self,
        hosts: Sequence[HostFacts],
        request: Request,
        catalog: Catalog,
        settings: BuildSettings,
        console: Console,
    ) -> None:
        self._hosts = hosts
        self._request = request
        self._catalog = catalog
        self._settings = settings
        self._console = console
        self._leading = leading(request)
        self._package = PACKAGES[request.framework]
        self._newest: dict[str, dict[str, PackageRelease | None]] = {}
        self._outcomes: dict[str, set[Outcome]] = {}
        self._arch = ""

    def choose(self, plan: Plan) -> Plan:
        """The plan for the release that the packages need; the same plan if nothing is requested,
        or if no index answers.

        NoSolutionError: no release of the packages works with a framework that runs on the hosts.
        """
        if not self._leading:
            return plan
        with self._console.step("packages", f"choosing the releases of {self._names()}"):
            return self._chosen(plan, self._request)

    def choose_on_bootstrap(self, plan: Plan) -> Plan:
        """The same for a base that is built from Debian packages, whatever base was requested."""
        if not self._leading:
            return plan
        chosen = self._chosen(plan, replace(self._request, base="bootstrap"))
        for warning in chosen.warnings:
            self._console.warn(warning.message, warning.fix)
        return chosen

    def _chosen(self, plan: Plan, request: Request) -> Plan:
        fitting = fitting_releases(self._hosts, request, self._catalog)
        if not fitting:
            return plan
        wanted = dict.fromkeys((str(plan.python), *reversed(fitting)))
        pythons = [python for python in wanted if python in fitting]
        target = target_of(plan)
        others = fitting
        if request.python is not None:  # what another Python would have is reported
            free = replace(request, python=None)
            others = fitting_releases(self._hosts, free, self._catalog)
        self._look_up(target, dict.fromkeys((*pythons, *reversed(others))))
        best = self._best(target, str(plan.framework_version), pythons, fitting)
        if best.outcome == "broken":
            raise uv_broken(best.reason, best.text)
        if best.outcome != "locked":
            if best.outcome == "unsolvable" and all(self._found_anywhere(n) for n in self._leading):
                raise self._none_fits(best, fitting[best.python])
            self._console.progress(f"{self._names()}: {best.reason}")
            return plan
        chosen = releases_in(best.text)
        if (missing := self.without_wheels()) is not None:  # but for a pre-release
            raise missing
        own = [need for need in best.refused if need.package in self._leading]
        if own:
            raise self._extra_refused(own[0], chosen, target._replace(python=best.python), fitting)
        by = " and ".join(f"{name} {chosen[name].version}" for name in self._leading)
        release = chosen[self._package].version
        self._console.result(f"{by} with {TITLES[plan.framework]} {release}, Python {best.python}")
        plan = self._planned_for(plan, request, by, release, best.python)
        warnings = tuple(unmet_warning(need, plan) for need in best.refused)
        lines = tuple(line for line in best.pins if line not in plan.requirements)
        return replace(
            plan,
            requirements=(*plan.requirements, *lines),
            warnings=(*plan.warnings, *warnings),
        )

    def without_wheels(self) -> NoSolutionError | None:
        """The error if an index has only the source of a requested package, or does not have it.

        Only what was looked up by `choose` is known, in the default index and that of --index.
        """
        names = [name for name in self._leading if self._outcomes.get(name) == {"unsolvable"}]
        if not names:
            return None
        pythons = sorted(self._newest[names[0]], key=lambda text: int(text.partition(".")[2]))
        return NoSolutionError(
            f"{' and '.join(names)}: the index has no wheel for Python "
            f"{', '.join(pythons)} on {self._arch} Linux, and images are built from wheels.",
            fix="Build a wheel of it for this framework, and name an index that has it with "
            "--index; or remove it from --with.",
        )

    def judge(self, found: Solution) -> Solution:
        """Add a warning for each requested package whose release is far behind the newest."""
        if not self._leading:
            return found
        releases = releases_in(found.text)
        warnings = []
        for name in self._leading:
            mine, newest = releases.get(name), self._newest_of(name)
            words = lag(mine, newest[1]) if mine and newest else None
            if mine is None or newest is None or words is None:
                continue
            why, fix = self._obstacle(name, *newest)
            warnings.append(
                Warned(
                    code="old-release",
                    message=f"{name} {mine.version} is {words} the newest, {newest[1].version}: "
                    f"{why}",
                    fix=fix,
                )
            )
        plan = replace(found.plan, warnings=(*found.plan.warnings, *warnings))
        return replace(found, plan=plan)

    def _look_up(self, target: WheelTarget, pythons: Iterable[str]) -> None:
        """Look up the newest release of each requested package, for each Python."""
        self._arch = target.arch
        pairs = [(name, python) for name in self._leading for python in pythons]

        def ask(pair: tuple[str, str]) -> tuple[Outcome, PackageRelease | None]:
            name, python = pair
            lines, there = [self._leading[name]], target._replace(python=python)
            outcome, _, text = self._uv(lines, there, alone=True)
            release = releases_in(text).get(name) if outcome == "locked" else None
            if release is not None and release.is_prerelease:
                # uv takes one if there is nothing else; a newer release may have sources only
                strict, _, said = self._uv(lines, there, alone=True, releases_only=True)
                if strict == "unsolvable" and has_only_sources(said):
                    return strict, None
            return outcome, release

        with ThreadPoolExecutor(_THREADS) as threads:
            answers = zip(pairs, threads.map(ask, pairs), strict=True)
            for (name, python), (outcome, release) in answers:
                self._newest.setdefault(name, {})[python] = release
                self._outcomes.setdefault(name, set()).add(outcome)

    def _best(
        self,
        target: WheelTarget,
        preferred: str,
        pythons: Sequence[str],
        fitting: Mapping[str, Sequence[str]],
    ) -> PackageTry:
        """The try with the newest packages. The preferred release of the framework goes first;
        another one, or another Python, must have newer packages.
        """
        best = self._resolve(target, [preferred])
        newest = [
            found[1].version if found else None for found in map(self._newest_of, self._leading)
        ]
        tries = 0
        for python in pythons:
            if best.satisfies and not is_newer(newest, self._versions(best)):
                break
            possible = self._newest_for(python)
            if best.satisfies and not is_newer(possible, self._versions(best)):
                continue
            if (tries := tries + 1) > _MOST_PYTHONS:
                break
            found = self._resolve(target._replace(python=python), fitting[python])
            newer = is_newer(self._versions(found), self._versions(best))
            if best.outcome != "locked" or (found.satisfies and (newer or not best.satisfies)):
                best = found
        return best

    def _resolve(self, target: WheelTarget, fitting: Sequence[str]) -> PackageTry:
        """Resolve the packages with every framework that fits, and with the extras that name it."""
        framework = self._framework_line(fitting)
        extras: dict[str, ExtraNeed] = {}
        found: PackageTry | None = None
        for _ in range(_ROUNDS):
            lines = [*self._leading.values(), *(f"{n.package}[{n.extra}]" for n in extras.values())]
            outcome, reason, text = self._uv([*lines, framework], target)
            if outcome != "locked" and found is not None:  # no release meets them
                return replace(found, refused=tuple(extras.values()))
            releases = releases_in(text) if outcome == "locked" else {}
            pins = tuple(f"{name}=={releases[name].version}" for name in extras if name in releases)
            found = PackageTry(
                python=target.python, outcome=outcome, reason=reason, text=text, pins=pins
            )
            needs = {} if outcome != "locked" else self._unmet(text, target, releases)
            if not needs.keys() - extras.keys():
                break
            extras |= needs
        assert found is not None
        return found

    def _unmet(
        self, text: str, target: WheelTarget, releases: Mapping[str, PackageRelease]
    ) -> dict[str, ExtraNeed]:
        """The packages whose extras refuse the framework that was chosen beside them."""
        if self._settings.offline or self._package not in releases:
            return {}
        release = releases[self._package].version
        addresses = {
            name: address
            for name, address in addresses_in(text).items()
            if name != self._package and not name.startswith(_NOT_OURS)
        }
        environment = environment_of(target.python, target.arch)
        read = read_metadata(addresses, ca_bundle=self._settings.ca)
        needs = {
            name: unmet(metadata, self._package, release, environment)
            for name, metadata in read.items()
        }
        return {name: need for name, need in needs.items() if need is not None}

    def _planned_for(
        self, plan: Plan, request: Request, by: str, release: str, python: str
    ) -> Plan:
        """The plan for the release of the framework and the Python that go with the packages."""
        if (release, python) == (plan.framework_version, plan.python):
            decided = tuple(note for note in plan.notes if note.code != "packages-decide")
            return replace(plan, notes=decided)
        exact = replace(request, framework_version=f"=={release}", led_by=by)
        led = resolve(self._hosts, exact, self._catalog)
        if led.python != python:
            led = resolve(self._hosts, replace(exact, python=python), self._catalog)
        return require_plan(led)

    def _extra_refused(
        self,
        need: ExtraNeed,
        chosen: Mapping[str, PackageRelease],
        target: WheelTarget,
        fitting: Mapping[str, Sequence[str]],
    ) -> NoSolutionError:
        """The error for a requested release whose extra refuses every framework that fits."""
        title = TITLES[self._request.framework]
        line = self._framework_line(fitting[target.python])
        outcome, _, text = self._uv([f"{need.package}[{need.extra}]", line], target)
        other = releases_in(text).get(need.package) if outcome == "locked" else None
        ways = [f"use --with {need.package}=={other.version}"] if other else []
        ways += [f"remove {self._limits()}"] if self._limits() else []
        fix = ", or ".join(ways) or f"request another release of {need.package}"
        return NoSolutionError(
            f"{need.package} {need.version} needs {need.requirement} (its extra {need.extra!r}); "
            f"here it would get {title} {chosen[self._package].version}.",
            fix=f"{fix[:1].upper()}{fix[1:]}.",
        )

    def _limits(self) -> str:
        """The options of the request that limit the framework's release."""
        options = {
            f"--cuda {self._request.cuda}": self._request.cuda,
            f"--framework-version '{self._request.framework_version}'": (
                self._request.framework_version
            ),
        }
        return " and ".join(option for option, given in options.items() if given)

    def _framework_line(self, fitting: Sequence[str]) -> str:
        known = known_releases(self._request, self._catalog)
        return framework_line(self._package, fitting, known)

    def _none_fits(self, found: PackageTry, fitting: Sequence[str]) -> NoSolutionError:
        title = TITLES[self._request.framework]
        span = fitting[0] if len(fitting) == 1 else f"{fitting[0]} to {fitting[-1]}"
        name = next(iter(self._leading))
        newest = self._newest_of(name)
        why, fix = self._obstacle(name, *newest) if newest else ("", "")
        return NoSolutionError(
            f"No release of {self._names()} works with {title} {span}, which the hosts can run"
            f"{f': {why}' if why else '.'}",
            fix=fix or "Loosen or remove what --with requests.",
            detail=clip(found.reason, 2000),
        )

    def _obstacle(self, name: str, python: str, newest: PackageRelease) -> tuple[str, str]:
        """Why the newest release of a package was not chosen, and what would allow it: the same
        hosts without the limits of the request, or other hosts.
        """
        title = TITLES[self._request.framework]
        target = WheelTarget(python, self._arch, _ANY_GLIBC)
        free = replace(self._request, cuda=None, framework_version=None, python=python)
        here = fitting_releases(self._hosts, free, self._catalog).get(python)
        drop = [f"remove {self._limits()}"] if self._limits() else []
        drop += [f"use --python {python}"] if self._request.python not in {None, python} else []
        if here and drop and (found := self._newest_with(name, newest, here, target)):
            fix = " and ".join(drop)
            return f"it works with {title} {found} on these hosts.", f"{fix[:1].upper()}{fix[1:]}."
        release = self._newest_with(name, newest, None, target)
        if release is None:
            only = len(self._leading) == 1
            return (
                f"no {title} that it works with was found."
                if only
                else "the other requested packages do not work with it.",
                f"Request it to see why: --with {name}=={newest.version}",
            )
        needs = f"it works with {title} {release}"
        if release not in known_releases(self._request, self._catalog):
            return f"{needs}, which the catalog does not have.", "Run: provision catalog refresh"
        wanted = replace(free, framework_version=f"=={release}")
        plan = resolve(self._hosts, wanted, self._catalog)
        if plan.error is not None:
            return f"{needs}. {plan.error.message}", plan.error.fix
        return f"{needs}.", f"Request it: --with {name}=={newest.version}"

    def _newest_with(
        self, name: str, newest: PackageRelease, fitting: Sequence[str] | None, target: WheelTarget
    ) -> str | None:
        """The release of the framework beside the newest of a package; None: they do not go
        together. `fitting` None: any release.
        """
        if fitting is not None:
            found = self._resolve(target, fitting)
            outcome, text, refused = found.outcome, found.text, found.refused
        else:
            outcome, _, text = self._uv([*self._leading.values(), self._package], target)
            refused = ()
        releases = releases_in(text) if outcome == "locked" and not refused else {}
        if name not in releases or lag(releases[name], newest) is not None:
            return None
        return releases[self._package].version

    def _uv(
        self,
        lines: Sequence[str],
        target: WheelTarget,
        *,
        alone: bool = False,
        releases_only: bool = False,
    ) -> tuple[Outcome, str, str]:
        return run_uv(
            lines,
            target,
            index=self._request.index,
            ca_bundle=self._settings.ca,
            offline=self._settings.offline,
            alone=alone,
            releases_only=releases_only,
        )

    def _versions(self, found: PackageTry) -> tuple[str | None, ...]:
        releases = releases_in(found.text) if found.outcome == "locked" else {}
        return tuple(releases[n].version if n in releases else None for n in self._leading)

    def _newest_for(self, python: str) -> tuple[str | None, ...]:
        found = (self._newest[name][python] for name in self._leading)
        return tuple(release.version if release else None for release in found)

    def _newest_of(self, name: str) -> tuple[str, PackageRelease] | None:
        return newest_of(self._newest.get(name, {}))

    def _found_anywhere(self, name: str) -> bool:
        return any(release is not None for release in self._newest[name].values())

    def _names(self) -> str:
        return printable(" and ".join(self._leading.values()))
