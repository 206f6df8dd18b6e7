"""Releases that an index has only the source of: built here while uv resolves, and so locked.

uv may choose such releases, as pip does, but runs no code of theirs: what it needs the metadata of,
and what it chose, is built in the sandbox by a `SourceMaker`, and uv is asked again with the
wheels. What cannot be built there leaves its place to an older release, which the answer states.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import unquote, urlsplit

import tomli_w
from packaging.markers import Marker
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from provision.lock.lockfile import lock_table, parse_lock
from provision.lock.source_builds import SourceBuild
from provision.lock.uv import Outcome, WheelTarget, git_not_built, not_built
from provision.lock.wheels import wheel_tags
from provision.model.environment import environment_of, is_met, with_addresses
from provision.model.plan import Plan
from provision.model.planfile import TOOL

_ROUNDS = 60  # a resolution meets one package after the other whose metadata it needs
Why = Literal["compiler", "elsewhere", "failed", "offline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceWheel:
    """A wheel that was built here, and what from; None: by a compiler, for one plan."""

    path: Path
    build: SourceBuild | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotBuilt:
    """A release that cannot be built in the sandbox, and why. `requires` is what its source says of
    its dependencies; `chain` is what requires it, in uv's words ("": the user does).
    """

    name: str
    version: str
    why: Why
    message: str
    requires: tuple[str, ...] = ()
    chain: str = ""


class SourceMaker(Protocol):
    """What builds wheels in the sandbox."""

    def make(
        self, name: str, version: str, target: WheelTarget, plan: Plan | None
    ) -> SourceWheel | NotBuilt:
        """The wheel of a release on the index, or why there is none; `plan` is what it is for, as
        far as that is known.
        """

    def from_git(self, line: str, target: WheelTarget) -> SourceWheel:
        """The wheel of a requirement `NAME @ git+URL@COMMIT`. Failure: it cannot be built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """What one run of uv gets: the wheels, releases without one whose metadata is known as far as
    their source says it, packages of which only releases with wheels count, and wheels in place of
    the repositories that packages require.
    """

    built: tuple[SourceWheel, ...] = ()
    stubs: tuple[NotBuilt, ...] = ()
    wheels_only: frozenset[str] = frozenset()
    overrides: tuple[str, ...] = ()

    def settings(self) -> str:
        """The text of uv.toml."""
        rows = [
            {"name": one.name, "version": one.version, "requires-dist": list(one.requires)}
            for one in self.stubs
            if one.name not in self.wheels_only
        ]
        return tomli_w.dumps({"dependency-metadata": rows}) if rows else ""


Run = Callable[[SourceView], tuple[Outcome, str, str]]


@dataclass(slots=True)
class SourceWheels:
    """The source releases of one command. `blocked`: why the last resolution that failed did."""

    maker: SourceMaker
    blocked: tuple[NotBuilt, ...] = ()
    _plan: Plan | None = None
    _known: dict[tuple[str, str], SourceWheel | NotBuilt] = field(default_factory=dict)
    _nested: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def for_plan(self, plan: Plan) -> None:
        """Forget what was not built: a compiled wheel of an earlier day may fit this plan."""
        with self._lock:
            self._plan = plan
            self.blocked = ()
            self._known = {
                key: one
                for key, one in self._known.items()
                if not (isinstance(one, NotBuilt) and one.why == "compiler")
            }

    def refused(self, names: Collection[str]) -> tuple[NotBuilt, ...]:
        """The releases of packages that were not built, the newest of each."""
        found: dict[str, NotBuilt] = {}
        for one in self._view(()).stubs:
            best = found.get(one.name)
            if one.name in names and (best is None or Version(one.version) > Version(best.version)):
                found[one.name] = one
        return tuple(found.values())

    def lines(
        self, lines: Iterable[str], addresses: Sequence[str], target: WheelTarget
    ) -> list[str]:
        """Requirement lines with a wheel built here in place of each commit of a repository.
        `addresses` are the whole ones of repositories that the lines name.
        """
        return [self._git_line(one, addresses, target) if is_git(one) else one for one in lines]

    def _git_line(self, line: str, addresses: Sequence[str], target: WheelTarget) -> str:
        bare, _, marker = line.partition(" ;")
        if marker and not is_met(Marker(marker), environment_of(target.python, target.arch)):
            return line  # uv leaves it out, too
        [whole] = with_addresses([bare], addresses)
        with self._lock:
            found = self._known.get((bare, ""))
            if found is None:
                found = self._known[bare, ""] = self.maker.from_git(whole, target)
        assert isinstance(found, SourceWheel)
        name = bare.partition("@")[0].strip()
        return f"{name} @ {found.path.as_uri()}" + (f" ; {marker.strip()}" if marker else "")

    def resolve(self, run: Run, target: WheelTarget) -> tuple[Outcome, str, str]:
        """Run uv until each release that it chose has a wheel, or is passed over for an older one:
        its outcome, the reason, and the lock (whose `passed-over` lists those) or its message.
        """
        wheels_only: dict[str, NotBuilt] = {}
        newest = text = ""
        for _ in range(_ROUNDS):
            outcome, reason, text = run(self._view(wheels_only))
            repositories = _repositories_in(text) if outcome == "locked" else git_not_built(text)
            if new := [line for line in repositories if line not in self._nested]:
                self._nested |= {line: self._git_line(line, (), target) for line in new}
                continue
            failed = not_built(text) if outcome != "locked" else None
            wanted = [failed] if failed else []
            if outcome == "locked":
                wanted = [(name, version, "") for name, version in without_wheel(text, target)]
            if not wanted:
                break
            before = len(self._known)
            found = [self._made(*one, target) for one in wanted]
            refused = [one for one in found if isinstance(one, NotBuilt)]
            if outcome == "locked" and refused and len(refused) == len(found):
                newest = newest or text
                wheels_only |= {one.name: one for one in refused}
            elif len(self._known) == before:  # uv asks again for what it has
                self.blocked = self.blocked or tuple(refused)
                return "unsolvable", f"has no wheel of {wanted[0][0]} {wanted[0][1]}", text
        else:
            return "unsolvable", "chose too many releases that have no wheel", text
        passed = tuple(wheels_only.values())
        if outcome != "locked":
            self.blocked = self.blocked or passed  # of the preferred Python, which is tried first
            return outcome, reason, text
        return outcome, reason, _completed(text, self._built(), passed, newest)

    def _view(self, wheels_only: Collection[str]) -> SourceView:
        with self._lock:
            known = tuple(self._known.values())
        return SourceView(
            built=tuple(one for one in known if isinstance(one, SourceWheel)),
            stubs=tuple(one for one in known if isinstance(one, NotBuilt)),
            wheels_only=frozenset(wheels_only),
            overrides=tuple(self._nested.values()),
        )

    def _built(self) -> tuple[SourceWheel, ...]:
        return self._view(()).built

    def _made(
        self, name: str, version: str, chain: str, target: WheelTarget
    ) -> SourceWheel | NotBuilt:
        with self._lock:  # one build at a time: each may use every core
            found = self._known.get((name, version))
            if found is None:
                found = self.maker.make(name, version, target, self._plan)
                if isinstance(found, NotBuilt):
                    found = replace(found, chain=chain)
                self._known[name, version] = found
        return found


def is_git(line: str) -> bool:
    """Whether a requirement line names a git repository."""
    return line.partition("@")[2].lstrip().startswith("git+")


def _repositories_in(text: str) -> list[str]:
    """The packages of a lock by uv that come from a repository, as requirements."""
    found = []
    for package in parse_lock(text).packages:
        if (vcs := package.vcs) is not None and vcs.url:
            directory = f"#subdirectory={vcs.subdirectory}" if vcs.subdirectory else ""
            found.append(f"{package.name} @ git+{vcs.url}@{vcs.commit_id}{directory}")
    return found


def without_wheel(text: str, target: WheelTarget) -> Iterator[tuple[str, str]]:
    """The packages of a lock by uv, (name, version), that have a source and no wheel that fits."""
    tags = frozenset(wheel_tags(target.python, target.arch, target.glibc))
    for package in parse_lock(text).packages:
        if package.sdist is None:
            continue
        for wheel in package.wheels or ():
            name = wheel.name or unquote(urlsplit(wheel.url or "").path).rpartition("/")[2]
            try:
                if not tags.isdisjoint(parse_wheel_filename(name)[3]):
                    break
            except InvalidWheelFilename:
                continue
        else:
            yield str(package.name), str(package.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedReleases:
    """A release that was not taken since it has no wheel and cannot be built in the sandbox;
    `releases` are those of the resolution with it, and `uploaded` their days (ISO), where known.
    """

    packages: tuple[NotBuilt, ...]
    releases: Mapping[str, str]
    uploaded: Mapping[str, str]


def passed_over(text: str) -> SkippedReleases | None:
    """What a lock by `SourceWheels.resolve` passed over; None: nothing."""
    ours = (parse_lock(text).tool or {}).get(TOOL)
    rows = ours.get("passed-over") if isinstance(ours, Mapping) else None
    if not isinstance(rows, Mapping):
        return None
    packages = tuple(
        NotBuilt(**{**row, "requires": tuple(row["requires"])}) for row in rows["packages"]
    )
    return SkippedReleases(packages=packages, releases=rows["releases"], uploaded=rows["uploaded"])


def _completed(
    text: str, built: Collection[SourceWheel], passed: Collection[NotBuilt], newest: str
) -> str:
    """The lock with the origin of each wheel that was built here, and with what was passed over."""
    if not built and not passed:
        return text
    data = lock_table(text)
    by_file = {one.path.as_uri(): one for one in built}
    for package in data.get("packages", ()):
        for wheel in package.get("wheels", ()):
            if (one := by_file.get(str(wheel.get("url", "")))) is not None:
                wheel["size"] = one.path.stat().st_size
                package.update(_entry(one.path, one.build) if one.build else {})
                break
    if passed:
        releases, uploaded = {}, {}
        for package in parse_lock(newest).packages:
            releases[str(package.name)] = str(package.version)
            days = [one.upload_time for one in package.wheels or () if one.upload_time]
            if package.sdist and package.sdist.upload_time:
                days.append(package.sdist.upload_time)
            if days:
                uploaded[str(package.name)] = min(days).date().isoformat()
        rows = {"packages": [asdict(one) for one in passed]}
        data["tool"] = {TOOL: {"passed-over": {**rows, "releases": releases, "uploaded": uploaded}}}
    return tomli_w.dumps(data)


def _entry(path: Path, build: SourceBuild) -> dict[str, Any]:
    """The keys of a package of a lock whose wheel was built here; `finished` removes the wheel."""
    wheel = {"url": path.as_uri(), "size": build.size, "hashes": {"sha256": build.sha256}}
    entry = {**build.to_entry(), "wheels": [wheel]}
    if (vcs := entry.pop("vcs", None)) is not None:  # which PEP 751 does not allow beside wheels
        entry["tool"][TOOL] = {"vcs": vcs, **entry["tool"][TOOL]}
    return entry
