"""Takes the wheels that were built here for packages that have none on the index."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from provision.build.source.kept import KeptWheels
from provision.lock.lead import addresses_in, releases_in
from provision.lock.solve import NoSolutionError, Solution
from provision.model.environment import requirement_of
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
    kept = KeptWheels(wheels) if wheels is not None else None
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
    return replace(
        request,
        companions=tuple(files.get(name_of(line), line) for line in request.companions),
        framework_version=f"=={plan.framework_version}",
        cuda=plan.cuda,
        python=plan.python,
        led_by=" and ".join(f"{name} {one.key.version}" for name, one in found.items()),
    )


def with_kept_pins(
    plan: Plan, request: Request, wheels: Path | None
) -> tuple[Plan, Request] | None:
    """A plan and the request of a project that pins every version, with the wheels that were built
    here of exactly these releases for this plan. `wheels`: where they are kept. None: none fits.
    """
    if wheels is None or not request.settled:
        return None
    kept = KeptWheels(wheels)

    def taken(line: str) -> str:
        read = requirement_of(line)
        pinned = any(one.operator == "==" for one in read.specifier)
        wheel = kept.fitting(line, plan) if pinned else None
        if wheel is None:
            return line
        extras = f"[{','.join(sorted(read.extras))}]" if read.extras else ""
        marker = f" ; {read.marker}" if read.marker else ""
        return f"{read.name}{extras} @ {Path(wheel.path).as_uri()}{marker}"

    lines = tuple(map(taken, plan.requirements))
    limits = tuple(map(taken, request.constraints))
    if (lines, limits) == (plan.requirements, request.constraints):
        return None
    return replace(plan, requirements=lines), replace(request, constraints=limits)


def build_pins_first(failure: NoSolutionError, plan: Plan, typed: str) -> None:
    """If an index has only the source of releases that a project pins, let the error name what
    builds their wheels. `typed` are the options of the plan, as the user typed them.
    """
    said = " ".join(failure.detail.split())
    pins = dict.fromkeys(re.findall(r"([\w.-]+==[\w.+!-]+) has no usable wheels", said))
    if not pins:
        return
    own = {
        "--framework": plan.framework,
        "--framework-version": plan.framework_version,
        "--cuda": plan.cuda,
        "--python": plan.python,
    }
    given = shlex.split(typed)
    words = [word for option, value in own.items() if option not in given and value
             for word in (option, value)]  # fmt: skip
    command = shlex.join(["provision", "wheel", *pins, *words])
    names = " and ".join(pins)
    failure.message += f" The index has only the source of {names}, and an image needs wheels."
    failure.fix = f"Build it once, then repeat this: {command} {typed}".rstrip()


def without(request: Request, names: Collection[str]) -> Request:
    """The request without some packages."""
    lines = tuple(line for line in request.companions if name_of(line) not in names)
    return replace(request, companions=lines)


def with_local_wheels(found: Solution) -> Solution:
    """What uv found; if wheels of this machine are among it, with a warning, and with versions
    instead of paths in the plan, which is a label of the image.
    """
    local = {name: url for name, url in addresses_in(found.text).items() if _is_local(url)}
    if not local:
        return found
    releases = releases_in(found.text)
    versions = {name: releases[name].version for name in local}
    lines = tuple(
        f"{name_of(line)}=={versions[name_of(line)]}" if name_of(line) in local else line
        for line in found.plan.requirements
    )
    warnings = (*found.plan.warnings, _local_wheel(local, versions))
    return replace(found, plan=replace(found.plan, requirements=lines, warnings=warnings))


def _is_local(url: str) -> bool:
    return url.startswith("file:")


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
