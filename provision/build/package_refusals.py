"""The errors for requested releases that the framework does not suit, or that have no wheel."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from provision.build.package_search import ANY_GLIBC, PackageSearch
from provision.lock.extras import ExtraNeed
from provision.lock.lead import PackageRelease, lag, releases_in
from provision.lock.solve import NoSolutionError
from provision.lock.sources import NotBuilt
from provision.lock.uv import WheelTarget
from provision.model.plan import TITLES, Request, Warned

BY_OTHERS = "the other requested packages do not work with it."
NO_OTHER = (
    "Remove one of the requested packages: no other release of one works with the others here."
)


def refusing(
    needs: Sequence[ExtraNeed], leading: Mapping[str, str], request: Request
) -> list[ExtraNeed]:
    """The extras that stop a build: of requested packages. Where a project pins both the package
    and the framework, its author runs them together, so that a warning is enough.
    """

    def is_exact(specifier: str) -> bool:
        return bool(re.fullmatch(r"===?\s*[^*,\s]+", specifier))

    kept = bool(request.declared_in) and is_exact(request.framework_version or "")
    own = [need for need in needs if need.package in leading]
    return [
        need
        for need in own
        if not (kept and is_exact(str(Requirement(leading[need.package]).specifier)))
    ]


def extra_refused(
    need: ExtraNeed,
    request: Request,
    search: PackageSearch,
    target: WheelTarget,
    fitting: Sequence[str],
    release: str,
) -> NoSolutionError:
    """The error for a requested release whose extra refuses every framework that fits:
    it would get `release`.
    """
    line = search.framework_line(fitting)
    outcome, _, text = search.run([f"{need.package}[{need.extra}]", line], target)
    other = releases_in(text).get(need.package) if outcome == "locked" else None
    ways = [f"use --with {need.package}=={other.version}"] if other else []
    ways += [f"remove {limits_of(request)}"] if limits_of(request) else []
    fix = ", or ".join(ways) or f"request another release of {need.package}"
    return NoSolutionError(
        f"{need.package} {need.version} needs {need.requirement} (its extra {need.extra!r}); "
        f"here it would get {TITLES[request.framework]} {release}.",
        fix=f"{fix[:1].upper()}{fix[1:]}.",
    )


def other_release(
    search: PackageSearch, python: str, fitting: Sequence[str], request: Request
) -> str | None:
    """The fix that names another release of one requested package, which goes with the others and
    with a framework that fits. None: no release of one does.
    """
    target = WheelTarget(python, search.arch, ANY_GLIBC)
    for name, line in search.leading.items():
        asked = Requirement(line)
        if asked.url is not None or not asked.specifier:
            continue
        asked.specifier = SpecifierSet()
        lines = [str(asked) if other == name else text for other, text in search.leading.items()]
        outcome, _, text = search.run([*lines, search.framework_line(fitting)], target)
        found = releases_in(text).get(name) if outcome == "locked" else None
        if found is not None:
            pin = (
                f"{asked}=={found.version}" if asked.marker is None else f"{name}=={found.version}"
            )
            where = request.declared_in
            return f"In {where}, pin {pin}." if where else f"Use --with {pin}."
    return None


def newest_with(
    search: PackageSearch,
    name: str,
    newest: PackageRelease,
    fitting: Sequence[str] | None,
    target: WheelTarget,
) -> str | None:
    """The release of the framework beside the newest of a package; None: they do not go
    together. `fitting` None: any release.
    """
    if fitting is not None:
        found = search.resolve(target, fitting)
        outcome, text, refused = found.outcome, found.text, found.refused
    else:
        outcome, _, text = search.run([*search.leading.values(), search.package], target)
        refused = ()
    releases = releases_in(text) if outcome == "locked" and not refused else {}
    if name not in releases or lag(releases[name], newest) is not None:
        return None
    return releases[search.package].version


class OldRelease(NamedTuple):
    """A package whose release is far behind the newest; `words` say how far."""

    name: str
    version: str
    words: str
    newest: str
    why: str
    fix: str


def old_warnings(
    search: PackageSearch, old: Sequence[OldRelease], target: WheelTarget
) -> list[Warned]:
    """A warning for each, but one for all that other requested packages hold back."""
    held = {one.name: _holder(search, one, target) for one in old if one.why == BY_OTHERS}
    alone = [one for one in old if one.name not in held or len(held) == 1]
    found = [
        Warned(
            code="old-release",
            message=f"{one.name} {one.version} is {one.words} the newest, {one.newest}: "
            + (f"{held[one.name]} holds it back." if held.get(one.name) else one.why),
            fix=one.fix,
        )
        for one in alone
    ]
    behind = [
        f"{one.name} {one.version} (newest: {one.newest}"
        + (f"; held by {held[one.name]})" if held[one.name] else ")")
        for one in old
        if one not in alone
    ]
    if behind:
        said = "packages are older than their newest because others hold them back"
        message = f"{len(behind)} {said}: {', '.join(behind)}."
        found.append(Warned(code="old-release", message=message, fix=""))
    return found


def _holder(search: PackageSearch, one: OldRelease, target: WheelTarget) -> str:
    """The package that does not allow the newest release of another, as far as the solver says."""
    others = [line for name, line in search.leading.items() if name != one.name]
    asked = [f"{one.name}=={one.newest}", *others, search.package]
    _, _, said = search.run(asked, target, wheels=True)
    held = re.escape(one.name)
    depends = rf"([a-z0-9][a-z0-9._-]*)\S* depends? on (?:one of: )?{held}[<>=!~]"
    found = re.search(depends, " ".join(said.split()))
    return found[1] if found else ""


def refuse_old_wheels(
    search: PackageSearch, error: Callable[[Sequence[NotBuilt]], NoSolutionError]
) -> None:
    """Raise the error for requested packages of which no release with a wheel is near the newest,
    whose source cannot be built here.
    """
    search.sources.blocked = ()
    behind = []
    for one in search.sources.refused(search.leading):
        newest = search.newest_of(one.name)
        if newest is None or lag(newest[1], PackageRelease(one.version)) is not None:
            behind.append(one)
    if behind:
        raise error(behind)


def limits_of(request: Request) -> str:
    """The options of the request that limit the framework's release, or a project that does."""
    if request.declared_in and (request.cuda or request.framework_version):
        title = TITLES[request.framework]
        return f"what {request.declared_in} or an option says about {title} and CUDA"
    options = {
        f"--cuda {request.cuda}": request.cuda,
        f"--framework-version '{request.framework_version}'": (request.framework_version),
    }
    return " and ".join(option for option, given in options.items() if given)
