"""Facts + request + catalog -> Plan. Pure: no file, no network, no clock.

The way of a decision: every build of the catalog is held against every host (`examine`), each rule
in `rules` either lets it pass or names a blocker; among the builds without a blocker the best is
chosen (`preference`); with none, the build that came furthest explains why, and the builds that
fit without the user's constraints are the alternatives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from provision.catalog import Catalog
from provision.catalog.rows import TorchBuild
from provision.model import Alternative, HostFacts, Plan, PlanError, Request
from provision.resolve.candidates import Candidate, examine, preference
from provision.resolve.packages import companion_requirements, index_candidates
from provision.resolve.rules import version
from provision.resolve.words import DEFAULT_ARCH, reasons, warnings


def resolve(hosts: Sequence[HostFacts], request: Request, catalog: Catalog) -> Plan:
    """One plan that fits every host, or a plan with verdict "none" and the reason.

    `hosts` is never empty; a machine of which nothing is known is `HostFacts()`.
    """
    if request.framework != "pytorch":
        return _refuse(request, hosts, _framework_error(request), ())
    arch, arch_error = common_arch(hosts)
    if arch_error is not None:
        return _refuse(request, hosts, arch_error, ())
    builds = [b for b in catalog.torch_builds(arch=arch) if b.cuda is not None]
    candidates = [examine(build, hosts, request, catalog) for build in builds]
    asked = [c for c in candidates if _is_asked_for(c.build, request, catalog)]
    fitting = [c for c in asked if not c.blockers]
    if not fitting:
        alternatives = _alternatives(candidates, request, catalog)
        if not asked:
            return _refuse(request, hosts, _no_build_error(request, arch, catalog), alternatives)
        nearest = max(asked, key=lambda c: (c.stage, -len(c.blockers), preference(c)))
        return _refuse(request, hosts, _why_blocked(nearest), alternatives, nearest)
    best = max(fitting, key=preference)
    plan = _plan(best, hosts, request, arch, catalog)
    others = _alternatives([c for c in candidates if c is not best], request, catalog, best)
    return replace(plan, alternatives=others)


def common_arch(hosts: Sequence[HostFacts]) -> tuple[str, PlanError | None]:
    """One image has one CPU architecture; hosts of several cannot share a plan."""
    known = sorted({facts.arch for facts in hosts if facts.arch})
    if len(known) > 1:
        return known[0], PlanError(
            code="mixed-cpu-architectures",
            message=f"The hosts have different CPU architectures: {', '.join(known)}.",
            fix="Make one plan for each architecture.",
        )
    return (known[0] if known else DEFAULT_ARCH), None


def _is_asked_for(build: TorchBuild, request: Request, catalog: Catalog) -> bool:
    if request.cuda is not None and build.cuda != request.cuda:
        return False
    release = catalog.torch_release(build.version)
    if release is not None and release.yanked:
        return False
    if request.framework_version is None:
        return True
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(request.framework_version).contains(build.version, prereleases=True)


def _why_blocked(nearest: Candidate) -> PlanError:
    sentences = dict.fromkeys(blocker.message for blocker in nearest.blockers)
    fixes = dict.fromkeys(blocker.fix for blocker in nearest.blockers)
    code = nearest.blockers[0].code
    return PlanError(code=code, message=" ".join(sentences), fix=" ".join(fixes))


def _no_build_error(request: Request, arch: str, catalog: Catalog) -> PlanError:
    what = "PyTorch" + (f" {request.framework_version}" if request.framework_version else "")
    on_cuda = f" for CUDA {request.cuda}" if request.cuda else ""
    having = sorted(
        {b.cuda for b in catalog.torch_builds(arch=arch) if b.cuda is not None}, key=version
    )
    return PlanError(
        code="no-such-build",
        message=f"There is no build of {what}{on_cuda} for {arch} Linux.",
        fix=f"PyTorch was built for CUDA {', '.join(having)}; see the alternatives.",
    )


def _framework_error(request: Request) -> PlanError:
    return PlanError(
        code="framework-not-covered",
        message=f"The catalog does not cover {request.framework} yet.",
        fix="Use --framework pytorch.",
    )


def _alternatives(
    candidates: Iterable[Candidate],
    request: Request,
    catalog: Catalog,
    chosen: Candidate | None = None,
) -> tuple[Alternative, ...]:
    """What fits without the request's --cuda and --framework-version: the nearest CUDA below and
    above, and the best of all. Each was examined like the plan itself.
    """
    fitting = [
        c
        for c in candidates
        if not c.blockers
        and _is_asked_for(c.build, replace(request, cuda=None, framework_version=None), catalog)
    ]
    picks: dict[str, Candidate] = {}
    if fitting and chosen is None and request.cuda is not None:
        want = version(request.cuda)
        below = [c for c in fitting if version(c.build.cuda or "0") <= want]
        above = [c for c in fitting if version(c.build.cuda or "0") > want]
        if above:
            nearest = min(version(c.build.cuda or "0") for c in above)
            near = [c for c in above if version(c.build.cuda or "0") == nearest]
            picks["the nearest newer CUDA that works here"] = max(near, key=preference)
        if below:
            nearest = max(version(c.build.cuda or "0") for c in below)
            near = [c for c in below if version(c.build.cuda or "0") == nearest]
            picks["the nearest CUDA not newer that works here"] = max(near, key=preference)
    if fitting:
        best = max(fitting, key=preference)
        if chosen is None or preference(best) > preference(chosen):
            picks["the newest PyTorch that runs here"] = best
    rows: dict[str, Alternative] = {}
    for why, candidate in picks.items():
        build = candidate.build
        rows.setdefault(
            f"{build.version}+{build.tag}",
            Alternative(
                cuda=build.cuda or "",
                wheel_tag=build.tag,
                framework_version=build.version,
                why=f"{why} ({candidate.verdict})",
            ),
        )
    return tuple(rows.values())


def _refuse(
    request: Request,
    hosts: Sequence[HostFacts],
    error: PlanError,
    alternatives: tuple[Alternative, ...],
    nearest: Candidate | None = None,
) -> Plan:
    return Plan(
        verdict="none",
        framework=request.framework,
        cuda=request.cuda,
        flavour=request.flavour,
        driver_have=_drivers(hosts),
        driver_need=nearest.drivers[0].need if nearest else None,
        gpus=nearest.gpus if nearest else (),
        error=error,
        alternatives=alternatives,
    )


def _drivers(hosts: Sequence[HostFacts]) -> str | None:
    """The oldest driver of the hosts: the one that has to carry the plan."""
    return min((facts.driver for facts in hosts if facts.driver), key=version, default=None)


def _plan(
    best: Candidate, hosts: Sequence[HostFacts], request: Request, arch: str, catalog: Catalog
) -> Plan:
    build = best.build
    indexes = index_candidates(build, request, catalog)
    return Plan(
        verdict=best.verdict,
        framework=request.framework,
        framework_version=build.version,
        cuda=build.cuda,
        wheel_tag=build.tag,
        index=indexes[0].address,
        python=best.python,
        cudnn=build.cudnn,
        nccl=build.nccl,
        arch=arch,
        flavour=request.flavour,
        driver_have=_drivers(hosts),
        driver_need=best.drivers[0].need,
        gpus=best.gpus,
        base=best.base,
        requirements=companion_requirements(build, request, catalog),
        indexes=indexes,
        reasons=reasons(best, indexes, arch, catalog),
        warnings=warnings(best, hosts, request, catalog),
    )
