"""Asks uv which releases of the requested packages go with a framework, for each Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

from images.inspect.texts import WheelMetadata
from provision.build.base import BuildSettings
from provision.build.package_cuda import FoundRelease, bounded
from provision.build.package_wheels import Resolved, TriedWheels, go_together, lines_beside
from provision.catalog.catalog import Catalog
from provision.lock import lead
from provision.lock.extras import (
    ExtraNeed,
    metadata_of,
    read_metadata,
    requirements_of,
    unmet,
)
from provision.lock.facts import WheelFacts
from provision.lock.lead import PackageRelease, PackageTry, addresses_in, is_newer, releases_in
from provision.lock.solve import NoSolutionError, ask_index, candidates_for, run_uv
from provision.lock.sources import SourceWheels
from provision.lock.uv import (
    Outcome,
    WheelTarget,
    has_only_sources,
    has_only_variants,
    target_of,
)
from provision.lock.uv_answers import Answer
from provision.model.environment import environment_of
from provision.model.plan import PACKAGES, Plan, Request
from provision.resolve import known_releases
from provision.resolve.packages import leading

ANY_GLIBC = 40
"""Newer than what wheels are built for."""
_MOST_PYTHONS = 3
_ROUNDS = 3  # of requests for extras: each may bring packages that have extras of their own
_THREADS = 4
_NOT_OURS = ("nvidia-", "cuda-")  # NVIDIA's wheels name no framework


class PackageSearch:
    """What uv finds. `leading` are the requirements of the requested packages, by name; `newest`
    the newest release of each for a Python, and `outcomes` how the questions for it ended.
    """

    def __init__(
        self, request: Request, catalog: Catalog, settings: BuildSettings, sources: SourceWheels
    ) -> None:
        self.sources = sources
        self._request = request
        self._catalog = catalog
        self._settings = settings
        self.leading = leading(request)
        self.package = PACKAGES[request.framework]
        self.spelling = self.package
        """The framework with the extra that brings its CUDA libraries: "jax[cuda13]"."""
        self.newest: dict[str, dict[str, PackageRelease | None]] = {}
        self.outcomes: dict[str, set[Outcome]] = {}
        self.only_variants: set[str] = set()
        self.arch = ""
        self._addresses: dict[str, dict[str, str]] = {}
        self.facts = WheelFacts(settings.state)

    def look_up(self, target: WheelTarget, pythons: Iterable[str]) -> None:
        """Look up the newest release of each requested package, for each Python."""
        self.arch = target.arch
        wanted = [target._replace(python=python) for python in pythons]
        with ThreadPoolExecutor(_THREADS) as threads:
            together = dict(zip(wanted, threads.map(self._newest_at_once, wanted), strict=True))
            pairs = [(n, there) for there in wanted for n in self.leading.keys() - together[there]]
            alone = dict(zip(pairs, threads.map(self._newest, pairs), strict=True))
        for name in self.leading:
            for there in wanted:
                outcome, release = alone.get((name, there)) or ("locked", together[there][name])
                self.newest.setdefault(name, {})[there.python] = release
                self.outcomes.setdefault(name, set()).add(outcome)

    def _newest_at_once(self, there: WheelTarget) -> dict[str, PackageRelease]:
        """The newest releases of the packages for a Python, if each has one; without those that
        have pre-releases only.
        """
        if len(self.leading) < 2:
            return {}
        outcome, _, text = self.run(list(self.leading.values()), there, alone=True)
        found = releases_in(text) if outcome == "locked" else {}
        self._keep_addresses(there, outcome, text)
        return {name: release for name, release in found.items() if not release.is_prerelease}

    def _keep_addresses(self, there: WheelTarget, outcome: Outcome, text: str) -> None:
        if outcome == "locked":
            self.facts.learn(text)
            self._addresses.setdefault(there.python, {}).update(addresses_in(text))

    def _newest(self, pair: tuple[str, WheelTarget]) -> tuple[Outcome, PackageRelease | None]:
        """The newest release of one package for a Python."""
        name, there = pair
        lines = [self.leading[name]]
        outcome, _, text = self.run(lines, there, alone=True)
        release = releases_in(text).get(name) if outcome == "locked" else None
        self._keep_addresses(there, outcome, text)
        if outcome == "unsolvable" and has_only_variants(text):
            self.only_variants.add(name)
        if release is not None and release.is_prerelease:
            # uv takes one if there is nothing else; a newer release may have sources only
            strict, _, said = self.run(lines, there, alone=True, releases_only=True)
            if strict == "unsolvable" and has_only_sources(said):
                return strict, None
        return outcome, release

    def accepted(self, python: str, fitting: Sequence[str]) -> list[str]:
        """Those of the framework's releases that the newest releases of the packages for a Python
        allow themselves, as far as it can be read.
        """
        if self._settings.offline:
            return list(fitting)
        known = self._addresses.get(python, {})
        addresses = {name: known[name] for name in self.leading if name in known}
        environment = environment_of(python, self.arch)
        limits = [
            asked.specifier
            for metadata in self._read(addresses).values()
            for asked in requirements_of(metadata.requires, self.package)
            if asked.marker is None or asked.marker.evaluate(dict(environment))
        ]
        return [
            release
            for release in fitting
            if all(limit.contains(release, prereleases=True) for limit in limits)
        ]

    def best(
        self,
        plan: Plan,
        pythons: Sequence[str],
        fitting: Mapping[str, Sequence[str]],
        preferred: Callable[[str], str | None],
    ) -> PackageTry:
        """The try with the newest packages. The plan's release of the framework goes first, with
        the plan's own lines and indexes, so that it is the lock if it is the best; another release,
        or another Python, must have newer packages. On another Python, too, the release that a plan
        takes there goes first, as one that the driver supports natively.
        """
        target = target_of(plan)
        best = self.of_plan(plan)
        newest = [
            found[1].version if found else None for found in map(self.newest_of, self.leading)
        ]
        tries = 0
        for python in pythons:
            if best.satisfies and not is_newer(newest, self.versions(best)):
                break
            possible = self._newest_for(python)
            if best.satisfies and not is_newer(possible, self.versions(best)):
                continue
            if (tries := tries + 1) > _MOST_PYTHONS:
                break
            own = preferred(python)
            for releases in (*([[own]] if own in fitting[python] else ()), fitting[python]):
                found = self.resolve(target._replace(python=python), releases)
                newer = is_newer(self.versions(found), self.versions(best))
                if best.outcome != "locked" or (found.satisfies and (newer or not best.satisfies)):
                    best = found
                if best.satisfies and not is_newer(possible, self.versions(best)):
                    break
        return best

    def of_plan(self, plan: Plan) -> PackageTry:
        """The packages with the release of a plan."""
        return self.resolve(target_of(plan), [str(plan.framework_version)], plan)

    def resolve(
        self, target: WheelTarget, fitting: Sequence[str], plan: Plan | None = None
    ) -> PackageTry:
        """Resolve the packages with every framework that fits, and with the extras that name it; as
        the lock of `plan` does, if one is given whose indexes answer.
        """
        framework = self.framework_line(fitting)
        extras: dict[str, ExtraNeed] = {}
        found: PackageTry | None = None
        beside = fitting[-1]
        for _ in range(_ROUNDS):
            more = [f"{need.package}[{need.extra}]" for need in extras.values()]
            answer = self._locked(plan, more) if plan is not None else None
            outcome, reason, text = answer or self.run(
                [*lines_beside(self.leading, self.package, beside), *more, framework], target
            )
            if outcome != "locked" and found is not None:  # no release meets them
                return replace(found, refused=tuple(extras.values()))
            releases = releases_in(text) if outcome == "locked" else {}
            theirs = releases.get(self.package)
            paired = go_together(self.leading, self.package, releases)
            if theirs and theirs.version != beside == fitting[-1] and not paired:
                beside = theirs.version  # which a package chose that was requested, too
                continue
            pinned = extras if plan is not None else {**self.leading, **extras}
            pins = tuple(f"{name}=={releases[name].version}" for name in pinned if name in releases)
            found = PackageTry(
                python=target.python, outcome=outcome, reason=reason, text=text, pins=pins
            )
            needs = {} if outcome != "locked" else self._unmet(text, target, releases)
            if not needs.keys() - extras.keys():
                break
            extras |= needs
        assert found is not None
        return found

    def _locked(self, plan: Plan, more: Sequence[str]) -> Answer | None:
        """What the indexes of a plan have for its lines and `more`; None: no index has them."""
        lines = dict.fromkeys((*plan.requirements, *self.leading.values(), *more))
        wanted = plan._replace(requirements=tuple(lines))
        offline, ca, refused = self._settings.offline, self._settings.ca, None
        for candidate in candidates_for(plan, self._request, ca_bundle=ca, offline=offline):
            found = ask_index(
                candidate,
                wanted,
                self._request,
                ca_bundle=ca,
                offline=offline,
                answers=self._settings.answers,
                sources=self.sources,
            )
            answer = found.outcome, found.reason, found.text
            if found.outcome in {"locked", "broken"}:
                return answer
            refused = answer if found.outcome == "unsolvable" else refused
        return refused

    def _read(self, addresses: Mapping[str, str]) -> dict[str, WheelMetadata]:
        """The metadata of wheels, by package; each is read once."""

        def fetch(urls: list[str]) -> dict[str, dict[str, object]]:
            found = read_metadata({url: url for url in urls}, ca_bundle=self._settings.ca)
            return {url: asdict(metadata) for url, metadata in found.items()}

        known = self.facts.of("metadata", addresses.values(), fetch)
        return {n: metadata_of(known[url]) for n, url in addresses.items() if url in known}

    def _unmet(
        self, text: str, target: WheelTarget, releases: Mapping[str, PackageRelease]
    ) -> dict[str, ExtraNeed]:
        """The packages whose extras refuse the framework that was chosen beside them."""
        if self._settings.offline or self.package not in releases:
            return {}
        release = releases[self.package].version
        self.facts.learn(text)
        addresses = {
            name: address
            for name, address in addresses_in(text).items()
            if name != self.package and not name.startswith(_NOT_OURS)
        }
        environment = environment_of(target.python, target.arch)
        needs = {
            name: unmet(metadata, self.package, release, environment)
            for name, metadata in self._read(addresses).items()
        }
        return {name: need for name, need in needs.items() if need is not None}

    def framework_line(self, fitting: Sequence[str]) -> str:
        """The requirement that allows, of the known releases of the framework, only these."""
        known = known_releases(self._request, self._catalog)
        return lead.framework_line(self.spelling, fitting, known)

    def run(
        self,
        lines: Sequence[str],
        target: WheelTarget,
        *,
        alone: bool = False,
        releases_only: bool = False,
        wheels: bool = False,
    ) -> tuple[Outcome, str, str]:
        """Resolve these requirements: how it ended, the reason if it failed, and uv's output.
        `wheels`: only what the index has a wheel of counts.
        """
        return run_uv(
            lines,
            target,
            index=self._request.index_url,
            ca_bundle=self._settings.ca,
            offline=self._settings.offline,
            alone=alone,
            releases_only=releases_only,
            constraints=self._request.constraints,
            addresses=self._request.addresses,
            declared=self._request.indexes,
            answers=self._settings.answers,
            sources=None if wheels else self.sources,
        )

    def versions(self, found: PackageTry) -> tuple[str | None, ...]:
        """The version that was found of each requested package, in order; None if none was."""
        releases = releases_in(found.text) if found.outcome == "locked" else {}
        return tuple(releases[n].version if n in releases else None for n in self.leading)

    def _newest_for(self, python: str) -> tuple[str | None, ...]:
        found = (self.newest[name][python] for name in self.leading)
        return tuple(release.version if release else None for release in found)

    def newest_of(self, name: str) -> tuple[str, PackageRelease] | None:
        """The newest release of a package, and the first Python that has it."""
        return lead.newest_of(self.newest.get(name, {}))

    def found_all(self) -> bool:
        """Whether each requested package has a release for some Python."""
        return all(any(self.newest[name].values()) for name in self.leading)

    def bound(self, name: str, bound: str) -> None:
        """Let a package have only releases within a bound ("<0.12")."""
        self.leading[name] = bounded(self.leading[name], bound) or self.leading[name]

    def newest_below(
        self,
        name: str,
        there: Resolved | TriedWheels,
        tell: Callable[[str], None],
        *,
        beside: Sequence[str] = (),
    ) -> Callable[[str], FoundRelease | None]:
        """How to ask for the newest release of a package within a bound, for a Python and machine:
        of the releases that were requested, or of all that go with the requirements `beside` it.
        `tell` gets each release that was found.
        """
        required = name if beside else self.leading[name]
        target = WheelTarget(there.python, there.arch, ANY_GLIBC)

        def ask(bound: str) -> FoundRelease | None:
            line = bounded(required, bound)
            if line is None:
                return None
            outcome, _, text = self.run([line, *beside], target, alone=not beside)
            addresses = addresses_in(text) if outcome == "locked" else {}
            if name not in addresses:
                return None
            release = releases_in(text)[name]
            tell(f"{name} {release.version}: for which CUDA")
            return FoundRelease(release, addresses[name])

        return ask

    def other_lines(self, name: str, fitting: Sequence[str]) -> list[str]:
        """What is requested beside a package: the releases of the framework that fit, and the other
        packages; not NVIDIA's, since a build of the framework brings its own.
        """
        others = leading(self._request._replace(settled=False))
        return [
            self.framework_line(fitting),
            *(o for n, o in others.items() if n != name and not n.startswith(_NOT_OURS)),
        ]

    def pins(self, request: Request, target: WheelTarget) -> Resolved | None:
        """What a project that pins every version requires beside the framework; None: that is
        nothing, not every version is pinned, or no index answers.
        """
        lines = list(leading(request._replace(settled=False)).values())
        if not request.settled or not lines or self._settings.offline:
            return None
        outcome, _, text = self.run(lines, target, alone=True)
        return Resolved(text, target.python, target.arch) if outcome == "locked" else None

    def has_wheel(self, name: str, plan: Plan) -> bool:
        """Whether an index has a wheel of a requested package for a plan's Python and machine; so
        it may be, if no index answers.
        """
        lines = [self.leading[name]]
        return self.run(lines, target_of(plan), alone=True, wheels=True)[0] != "unsolvable"

    def without_wheels(self) -> NoSolutionError | None:
        """The error if an index has only the source of a requested package, or does not have it."""
        names = [name for name in self.leading if self.outcomes.get(name) == {"unsolvable"}]
        if not names:
            return None
        shown = " and ".join(names)
        if self.only_variants.issuperset(names):
            return NoSolutionError(
                f"{shown}: the index has only wheel variants (PEP 817, a draft), which cannot be "
                "locked yet.",
                fix="Name an index that has plain wheels of it with --index, or request an older "
                "release that has them.",
            )
        pythons = sorted(self.newest[names[0]], key=lambda text: int(text.partition(".")[2]))
        elsewhere = f"--with '{names[0]} @ https://HOST/NAME.whl'"
        fix = (
            "If its project publishes wheels elsewhere, give the address of one: "
            f"{elsewhere}. Else build one for this framework, and name an index that has it with "
            "--index; or remove it from --with."
        )
        return NoSolutionError(
            f"{shown}: the index has no wheel for Python {', '.join(pythons)} on {self.arch} "
            "Linux, and images are built from wheels.",
            fix=fix,
        )
