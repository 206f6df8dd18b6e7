"""Refusals that a project's pins cause name the line of the pin, and what to write there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from packaging.version import Version

from images.errors import Failure
from images.text.printable import printable
from provision.build.project.request import FrameworkPin, framework_pin, is_of_the_build
from provision.catalog.catalog import Catalog
from provision.errors import Exit, IndexUnreachableError, NothingCompatibleError
from provision.lock.lockfile import Lock
from provision.lock.solve import NoSolutionError
from provision.model.frozen import replace
from provision.model.plan import PACKAGES, HostFacts, Plan, Request
from provision.resolve import fitting_releases, resolve
from provision.sources.declaration import Declaration, Declared, pin_of, pythons_of
from provision.sources.find import Project

_MOST_NAMED = 4


class ProjectHashError(Failure):
    """An index has another file for a version than the one whose hash the project declares."""

    code = "project-hash-mismatch"
    exit_code = Exit.NOTHING_COMPATIBLE


@contextmanager
def naming_pins(
    project: Project | None, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> Iterator[None]:
    """Add to a refusal which lines of the project it comes from, and the release to pin instead."""
    try:
        yield
    except (NothingCompatibleError, NoSolutionError, IndexUnreachableError) as failure:
        if project is not None:
            arch = next((host.arch for host in hosts if host.arch), "x86_64")
            allowed = [request.python] if request.python else request.pythons or pythons_of(catalog)
            pin = framework_pin(project.declared, request.framework, arch, allowed)
            lines = [one for one in pin.declared if one.requirement.specifier]
            said = f"{failure.message} {failure.detail}"
            lines = list(
                {one.where: one for one in (*lines, *_mentioned(project.declared, said))}.values()
            )
            if failure.code == "no-wheel-for-python":
                if project.python is not None and project.python.text == request.python:
                    failure.fix = failure.fix.replace("--python.", f"{project.python.file}.")
                limits = (project.python if request.python else None, project.declared.python)
                lines += [one for one in limits if one is not None]
            if isinstance(failure, IndexUnreachableError) and pin.cuda is not None:
                lines += [pin.cuda] if pin.cuda.where not in {one.where for one in lines} else []
            if lines:
                shown = [f"{one.where}: {_short(one, pin.cuda)}" for one in lines]
                few = "; ".join(dict.fromkeys(shown[:_MOST_NAMED]))
                more = len(lines) - _MOST_NAMED
                failure.message += f" The project requires: {few}"
                failure.message += f"; and {more} more." if more > 0 else "."
            if isinstance(failure, NothingCompatibleError) and (
                instead := _instead(pin, hosts, request, catalog)
            ):
                failure.fix = f"{instead} Else: {failure.fix}"
        raise


def with_lines(
    plan: Plan, project: Project, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> Plan:
    """A plan whose refusal names the project's lines, too."""
    if plan.error is None:
        return plan
    failure = NothingCompatibleError(plan.error.message, fix=plan.error.fix)
    failure.code = plan.error.code
    with suppress(NothingCompatibleError), naming_pins(project, hosts, request, catalog):
        raise failure
    return replace(plan, error=replace(plan.error, message=failure.message, fix=failure.fix))


def _short(one: Declared, cuda: Declared | None) -> str:
    what = "CUDA " if one is cuda else "" if one.text[:1].isalpha() else "Python "
    return printable(f"{what}{one.text}", limit=80)


def _mentioned(declared: Declaration, said: str) -> Iterator[Declared]:
    """The requirements whose package a message names."""
    words = set(re.findall(r"[a-z0-9]+(?:[-_.][a-z0-9]+)*", said.lower().replace("_", "-")))
    for one in (*declared.packages, *declared.constraints):
        if one.name in words and one.requirement.specifier:
            yield one


def _instead(
    pin: FrameworkPin, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> str:
    """The releases to pin instead: the next one that runs on the hosts, and the newest; or that
    another CUDA runs the release that is pinned.
    """
    if not pin.declared:
        return ""
    free = replace(request, framework_version=None, cuda=None, companions=(), constraints=())
    fitting = fitting_releases(hosts, free, catalog)
    releases = sorted({Version(one) for found in fitting.values() for one in found})
    if not releases:
        return ""
    line = pin.declared[0]
    version = pin_of(line.requirement)
    package = PACKAGES[request.framework]
    if version is not None and pin.cuda is not None and Version(version.public) in releases:
        return (
            f"These hosts can run {package}=={version.public} for another CUDA than "
            f"{pin.cuda.text}, which {pin.cuda.where} names."
        )
    later = [one for one in releases if version is not None and one > version]
    newest = resolve(hosts, free, catalog).framework_version or releases[-1]
    names = dict.fromkeys(f"{package}=={one}" for one in (*later[:1], newest))
    return f"In {line.file}, pin {' or '.join(names)}, which these hosts can run."


def check_hashes(project: Project | None, lock: Lock) -> None:
    """Compare the wheels of a lock with the hashes that the project declares. The framework's build
    is the plan's choice. ProjectHashError: a wheel is another one.
    """
    if project is None:
        return
    for wheel in lock.wheels:
        known = project.declared.hashes.get(wheel.name)
        free = is_of_the_build(wheel.name, lock.plan.framework)
        if known and not free and wheel.sha256 not in known:
            if wheel.url.startswith("file:"):
                raise ProjectHashError(
                    f"{wheel.name} {wheel.version} was built on this machine, and "
                    f"{project.declared.source} has hashes of other files for it.",
                    fix=f"Add its hash there: sha256:{wheel.sha256}",
                )
            raise ProjectHashError(
                f"The index has another file for {wheel.name} {wheel.version} than "
                f"{project.declared.source} declares: sha256:{wheel.sha256} is not among its "
                f"{len(known)} hashes.",
                fix="Name the index that the project was locked from with --index, or lock the "
                "project again.",
            )
