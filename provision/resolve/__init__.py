"""Facts + request + catalog -> Plan. Pure: no network, no clock, and no file but the catalog's.

How a plan is made: hosts become a `Fleet` (what differs among them), the framework's builds are
checked against it one by one (`Examiner`), and each rule in `rules` accepts a build or reports why
not. The best accepted build is chosen (`choose`); if there is none, the build that came closest
explains why, and the alternatives come from dropping one requirement at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provision.catalog.catalog import Catalog
from provision.catalog.rows.frameworks import JaxRelease, TensorflowRelease, TorchRelease
from provision.model.plan import Cell, Framework, HostFacts, Plan, PlanError, Request
from provision.resolve.builds import Build, builds_of
from provision.resolve.candidates import Candidate, Examiner
from provision.resolve.cures import Spell, spell_options
from provision.resolve.fleet import DEFAULT_ARCH, Fleet, read_fleet
from provision.resolve.least_driver import least_driver
from provision.resolve.limits import limited_by
from provision.resolve.other_frameworks import other_framework_notes
from provision.resolve.packages import companion_requirements, index_candidates
from provision.resolve.reasons import reasons
from provision.resolve.refusals import (
    no_build,
    no_common_build,
    not_nvidia,
    who_blocks_what,
)
from provision.resolve.rules.base import python_tags_of
from provision.resolve.specifiers import version
from provision.resolve.trial import Trial, cured, is_asked_for
from provision.resolve.warnings import notes, warnings

__all__ = [
    "describe",
    "fitting_builds",
    "fitting_releases",
    "known_releases",
    "matrix",
    "matrix_with",
    "nearest_at",
    "preferred_release",
    "resolve",
    "resolve_with",
]


def resolve(
    hosts: Sequence[HostFacts],
    request: Request,
    catalog: Catalog,
    *,
    at: str | None = None,
    spell: Spell = spell_options,
) -> Plan:
    """One plan that fits every host, or a plan with verdict "none" and the reason.

    `hosts` is never empty; an unknown machine is `HostFacts()`. `at`: only builds that this place
    has ("pypi"). `spell` words the changes of the request that a fix names.
    """
    examiner = Examiner(read_fleet(hosts, catalog), catalog)
    plan = resolve_with(examiner, request, at=at, spell=spell)
    if plan.error is not None and plan.error.code == "mixed-cpu-architectures":
        return plan._replace(error=_for_each_arch(plan.error, hosts, request, catalog))
    return plan


def _for_each_arch(
    error: PlanError, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> PlanError:
    """The error for hosts of several CPU architectures, with why one of them has no plan."""
    by_arch: dict[str, list[HostFacts]] = {}
    for host in hosts:
        (arch,) = read_fleet([host], catalog).archs or (DEFAULT_ARCH,)
        by_arch.setdefault(arch, []).append(host)
    for arch, some in sorted(by_arch.items()):
        if (refused := resolve(some, request, catalog).error) is not None:
            error = error._replace(
                message=f"{error.message} {arch}: {refused.message}",
                fix=f"{error.fix} For {arch}: {refused.fix}",
            )
    return error


def resolve_with(
    examiner: Examiner,
    request: Request,
    *,
    at: str | None = None,
    spell: Spell = spell_options,
    trial: Trial | None = None,
) -> Plan:
    """`resolve` for the hosts of an examiner, which several requests may share, and their trial."""
    fleet, catalog = examiner.fleet, examiner.catalog
    if (foreign_error := not_nvidia(fleet)) is not None:
        return _refuse(request, fleet, foreign_error)
    arch, arch_error = common_arch(fleet)
    if arch_error is not None:
        return _refuse(request, fleet, arch_error)
    builds = [b for b in builds_of(request.framework, arch, catalog) if at is None or at in b.at]
    trial = trial or Trial(examiner, builds)
    asked, best_build, nearest_build, others = trial.choice(request)
    if best_build is not None:
        best = examiner.examine(best_build, request, whole=True)
        return describe(best, examiner, request)._replace(
            alternatives=others,
            limited_by=limited_by(asked, request, examiner, catalog, best),
        )
    if nearest_build is None:
        error, _ = cured(no_build(request, arch, builds), request, trial, asked, spell)
        return _refuse(request, fleet, error)._replace(alternatives=others)
    nearest = examiner.examine(nearest_build, request, whole=True)
    table = who_blocks_what(asked, request, fleet, catalog, nearest)
    error = no_common_build(table, request, fleet) or trial.why_blocked(nearest, request)
    error, need = cured(error, request, trial, asked, spell)
    refusal = _refuse(request, fleet, error)
    return refusal._replace(
        driver_need=need or nearest.driver.need,
        gpus=examiner.gpus(nearest.build),
        blocked=table,
        limited_by=limited_by(asked, request, examiner, catalog, None),
        alternatives=others,
    )


def nearest_at(
    place: str, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> Plan | None:
    """The plan for what one place has that comes closest to a request: with the requested CUDA and
    release, then with one of the two, then the newest that runs. None: nothing.
    """
    free = request._replace(cuda=None)
    for asked in (
        request,
        request._replace(framework_version=None),
        free,
        free._replace(framework_version=None),
    ):
        plan = resolve(hosts, asked, catalog, at=place)
        if plan.error is None:
            return plan
    return None


def fitting_builds(
    hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> frozenset[Build]:
    """The builds that a plan for all these hosts could have; empty where `resolve` has no plan."""
    fleet = read_fleet(hosts, catalog)
    arch, arch_error = common_arch(fleet)
    if arch_error is not None or not_nvidia(fleet) is not None:
        return frozenset()
    examiner = Examiner(fleet, catalog)
    return frozenset(
        build
        for build in builds_of(request.framework, arch, catalog)
        if is_asked_for(build, request)
        and examiner.examine(build, request).fits
        and examiner.examine(build, request, whole=True).fits
    )


def fitting_releases(
    hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> dict[str, tuple[str, ...]]:
    """The releases that a plan for this request could have, for each Python, both oldest first.
    Releases that are unlikely to exist are left out.
    """
    fleet = read_fleet(hosts, catalog)
    arch, _ = common_arch(fleet)
    examiner = Examiner(fleet, catalog)
    found: dict[str, dict[str, None]] = {}
    for build in builds_of(request.framework, arch, catalog):
        if build.existence == "doubtful" or not is_asked_for(build, request):
            continue
        if not examiner.examine(build, request).fits:
            continue
        for python in python_tags_of(build):
            if request.python not in {None, python} or python not in (request.pythons or [python]):
                continue
            if examiner.examine(build, request._replace(python=python), whole=True).fits:
                found.setdefault(python, {})[build.version] = None
    return {
        python: tuple(sorted(found[python], key=version)) for python in sorted(found, key=version)
    }


def preferred_release(
    hosts: Sequence[HostFacts], request: Request, catalog: Catalog, python: str
) -> str | None:
    """The release that a plan for this Python has; None: there is no plan."""
    return resolve(hosts, request._replace(python=python), catalog).framework_version


def known_releases(request: Request, catalog: Catalog) -> frozenset[str]:
    """Every release of the framework that the catalog has, on any architecture."""
    rows: dict[Framework, Iterable[TorchRelease | TensorflowRelease | JaxRelease]] = {
        "pytorch": catalog.torch_releases,
        "tensorflow": catalog.tensorflow_releases,
        "jax": catalog.jax_releases,
    }
    return frozenset(row.version for row in rows[request.framework])


def common_arch(fleet: Fleet) -> tuple[str, PlanError | None]:
    """One image has one CPU architecture; hosts of several cannot share a plan."""
    if len(fleet.archs) > 1:
        return fleet.archs[0], PlanError(
            code="mixed-cpu-architectures",
            message=f"The hosts have different CPU architectures: {', '.join(fleet.archs)}.",
            fix="Make one plan for each architecture.",
        )
    return (fleet.archs[0] if fleet.archs else DEFAULT_ARCH), None


def matrix(hosts: Sequence[HostFacts], request: Request, catalog: Catalog) -> tuple[Cell, ...]:
    """Every build of the framework and whether it fits these hosts, newest release first."""
    return matrix_with(Examiner(read_fleet(hosts, catalog), catalog), request)


def matrix_with(examiner: Examiner, request: Request) -> tuple[Cell, ...]:
    """`matrix` for the hosts of an examiner, which several requests may share."""
    arch, _ = common_arch(examiner.fleet)
    cells = []
    for build in builds_of(request.framework, arch, examiner.catalog):
        if build.prerelease or not is_asked_for(build, request._replace(cuda=build.cuda)):
            continue
        if request.cuda is not None and build.cuda != request.cuda:
            continue
        candidate = examiner.examine(build, request, whole=True)
        blockers = () if candidate.fits else examiner.blockers(build, request)
        cells.append(
            Cell(
                framework_version=build.version,
                cuda=build.cuda,
                wheel_tag=build.tag,
                verdict=candidate.verdict if candidate.fits else "none",
                code=blockers[0][1].code if blockers else None,
                message=blockers[0][1].message if blockers else None,
                existence=build.existence,
            )
        )
    return tuple(sorted(cells, key=lambda c: (version(c.framework_version), version(c.cuda))))[::-1]


def _refuse(request: Request, fleet: Fleet, error: PlanError) -> Plan:
    return Plan(
        verdict="none",
        framework=request.framework,
        cuda=request.cuda,
        flavour=request.flavour or "runtime",
        driver_have=_oldest_driver(fleet),
        error=error,
    )


def _oldest_driver(fleet: Fleet) -> str | None:
    """The oldest driver of the hosts, which limits the plan."""
    return min((site.driver for site in fleet.sites if site.driver), key=version, default=None)


def describe(best: Candidate, examiner: Examiner, request: Request) -> Plan:
    """The plan for a build that was chosen, without what else there is. `best`: examined whole."""
    build, answers, catalog = best.build, examiner.answers(best.build), examiner.catalog
    beside = examiner.beside.requirements(build, request, best.python)
    indexes = index_candidates(build, request, catalog)
    compat = catalog.forward_compat(build.cuda) if best.driver.verdict == "forward" else None
    return Plan(
        verdict=best.verdict,
        framework=request.framework,
        framework_version=build.version,
        cuda=build.cuda,
        wheel_tag=build.tag,
        index_url=indexes[0].address,
        python=best.python,
        cudnn=build.cudnn if beside else answers.cudnn,
        nccl=build.nccl,
        arch=build.arch,
        flavour=request.flavour or "runtime",
        driver_have=_oldest_driver(answers.fleet),
        driver_need=least_driver(best, answers, examiner, request),
        gpus=answers.gpus,
        base=best.base,
        compat_package=compat.package if compat else None,
        requirements=companion_requirements(build, answers.cudnn, request, catalog, beside),
        indexes=indexes,
        reasons=reasons(best, answers, indexes, request, examiner),
        warnings=warnings(best, answers, request, examiner),
        notes=(*notes(answers, request, catalog), *other_framework_notes(build, beside)),
    )
