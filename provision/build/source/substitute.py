"""Takes the wheels that were built here for packages that have none on the index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from provision.build.source.wheel_cache import WheelCache
from provision.lock.lead import addresses_in, releases_in
from provision.lock.lockfile import parse_lock
from provision.lock.solve import Solution
from provision.model.plan import Plan, Request, Warned
from provision.resolve.packages import name_of


class LeadingSearch(Protocol):
    """What is asked of an index: `leading` are the requested packages, by name."""

    leading: dict[str, str]

    def has_wheel(self, name: str, plan: Plan) -> bool:
        """Whether an index has a wheel of a requested package for a plan."""


def request_with_kept(
    request: Request,
    wheels: Path | None,
    search: LeadingSearch,
    plan_for: Callable[[Request], Plan],
) -> Request | None:
    """The request with the wheels that were built here of packages that have none on the index, and
    with the framework that they were built for: that of the plan without them. `wheels`: where they
    are kept. None: no wheel is needed, or none fits.
    """
    kept = WheelCache(wheels) if wheels is not None else None
    lines = {name: line for name, line in search.leading.items() if kept and name in kept.names()}
    if kept is None or not lines:
        return None
    plan = plan_for(without(request, lines))
    if plan.error is not None:
        return None
    found = {
        name: wheel
        for name, line in lines.items()
        if (wheel := kept.fitting(line, plan)) is not None and not search.has_wheel(name, plan)
    }
    if not found:
        return None
    files = {name: f"{name} @ {Path(wheel.path).as_uri()}" for name, wheel in found.items()}
    return request._replace(
        companions=tuple(files.get(name_of(line), line) for line in request.companions),
        framework_version=f"=={plan.framework_version}",
        cuda=plan.cuda,
        python=plan.python,
        led_by=" and ".join(f"{name} {one.key.version}" for name, one in found.items()),
    )


def without(request: Request, names: Collection[str]) -> Request:
    """The request without some packages."""
    lines = tuple(line for line in request.companions if name_of(line) not in names)
    return request._replace(companions=lines)


def with_local_wheels(found: Solution) -> Solution:
    """What uv found; if wheels of this machine are among it, with a warning, and with versions
    instead of paths in the plan, which is a label of the image.
    """
    addresses = addresses_in(found.text)
    rebuilt = {str(p.name) for p in parse_lock(found.text).packages if p.tool}
    local = {n: url for n, url in addresses.items() if url.startswith("file:") and n not in rebuilt}
    if not local:
        return found
    releases = releases_in(found.text)
    versions = {name: releases[name].version for name in local}
    lines = tuple(
        f"{name_of(line)}=={versions[name_of(line)]}" if name_of(line) in local else line
        for line in found.plan.requirements
    )
    warnings = (*found.plan.warnings, _local_wheel(local, versions))
    return replace(found, plan=found.plan._replace(requirements=lines, warnings=warnings))


def _local_wheel(local: Mapping[str, str], versions: Mapping[str, str]) -> Warned:
    names = " and ".join(f"{name} {versions[name]}" for name in local)
    are = "is a file" if len(local) == 1 else "are files"
    return Warned(
        code="local-wheel",
        message=f"{names} {are} of this machine ({', '.join(local.values())}), so this lock can be "
        "built only here.",
        fix="To build it elsewhere, put the wheel into an index, name that with --index, and lock "
        "again.",
    )
