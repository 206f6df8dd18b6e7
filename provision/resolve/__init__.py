"""Facts + request + catalog -> Plan. Pure: no file, no network, no clock.

The way of a decision: every build of the catalog is held against every host (`examine`), each rule
in `rules` either lets it pass or names a blocker; among the builds without a blocker the best is
chosen (`preference`); with none, the build that came furthest explains why, and the builds that
fit without the user's constraints are the alternatives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from provision.catalog import Catalog
from provision.catalog.rows import TorchBuild
from provision.model import (
    Alternative,
    Base,
    ComputeCapability,
    Gpu,
    GpuVerdict,
    HostFacts,
    IndexCandidate,
    Plan,
    PlanError,
    Reason,
    Request,
    Verdict,
    Warned,
)
from provision.resolve import rules
from provision.resolve.bases import choose_base, offered_pythons
from provision.resolve.rules import Blocker, DriverFit, version

# From the best to the worst; what is true of the worst host is true of the plan.
_RANK: dict[Verdict, int] = {
    "direct": 0,
    "minor-version": 1,
    "forward": 2,
    "unverified": 3,
    "none": 4,
}
_DEFAULT_ARCH = "x86_64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One build held against all hosts: what it would be, and what stands against it.

    `stage` counts how far it came, so that of many refused builds the nearest miss explains.
    """

    build: TorchBuild
    verdict: Verdict
    drivers: tuple[DriverFit, ...]
    gpus: tuple[GpuVerdict, ...]
    python: str | None
    python_why: str
    base: Base | None
    blockers: tuple[Blocker, ...]
    stage: int


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
    return (known[0] if known else _DEFAULT_ARCH), None


def examine(
    build: TorchBuild, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> Candidate:
    """Hold one build against every host and collect everything that stands against it."""
    assert build.cuda is not None
    drivers = tuple(rules.fit_driver(facts, build.cuda, catalog) for facts in hosts)
    gpus: list[GpuVerdict] = []
    code: list[Blocker | None] = []
    driver: list[Blocker | None] = []
    for facts, fit in zip(hosts, drivers, strict=True):
        driver.append(rules.driver_blocker(facts, fit))
        for gpu in facts.gpus or ():
            verdict, *blockers = _examine_gpu(gpu, facts, build, fit, catalog)
            gpus.append(verdict)
            code.extend(blockers)
    python, why = rules.choose_python(
        build, request.python, hosts, offered_pythons(request, build.cuda, catalog)
    )
    base = choose_base(request, build.cuda, python, build.glibc, catalog) if python else None
    stages = (
        _present(code),
        _present(driver),
        _present([_python_blocker(build, request, python)]),
        _present([_base_blocker(build, request, python, base)]),
    )
    blocked = [i for i, stage in enumerate(stages) if stage]
    return Candidate(
        build=build,
        verdict=_worst(drivers, hosts, gpus),
        drivers=drivers,
        gpus=tuple(gpus),
        python=python,
        python_why=why,
        base=base,
        blockers=tuple(blocker for stage in stages for blocker in stage),
        stage=blocked[0] if blocked else len(stages),
    )


def preference(candidate: Candidate) -> tuple[object, ...]:
    """What we know exists before what we only heard of; no extra package before cuda-compat; the
    newest release; in it direct before minor-version; then the highest CUDA, except that with no
    driver to go by the build that most people run (PyPI's) comes first.
    """
    build = candidate.build
    assert build.cuda is not None
    blind = candidate.verdict == "unverified"
    return (
        build.existence == "confirmed",
        build.existence == "likely",
        candidate.verdict != "forward",
        version(build.version),
        -_RANK[candidate.verdict],
        blind and "pypi" in build.at,
        version(build.cuda),
    )


def capability_of(gpu: Gpu, catalog: Catalog) -> ComputeCapability | None:
    """The capability that was read; else the catalog's for exactly this name; never a guess."""
    if gpu.compute_capability is not None or gpu.name is None:
        return gpu.compute_capability
    return catalog.find_gpu(gpu.name).compute_capability


def _examine_gpu(
    gpu: Gpu, facts: HostFacts, build: TorchBuild, fit: DriverFit, catalog: Catalog
) -> tuple[GpuVerdict, Blocker | None, Blocker | None, Blocker | None]:
    capability = capability_of(gpu, catalog)
    if capability is None:
        unknown = GpuVerdict(name=gpu.name, compute_capability=None, runs="unknown", ok=False)
        return unknown, None, None, None
    name = gpu.name or f"a GPU of compute capability {rules.show_capability(capability)}"
    code = rules.code_for(build, capability, tegra=capability in catalog.tegra_capabilities)
    blockers = (
        rules.driven_blocker(facts, name, capability, catalog),
        rules.code_blocker(facts, build, name, capability, code),
        rules.ptx_blocker(facts, build, name, code, fit.verdict),
    )
    verdict = GpuVerdict(
        name=gpu.name,
        compute_capability=rules.show_capability(capability),
        runs=code,
        ok=not any(blockers),
    )
    return verdict, *blockers


def _worst(
    drivers: Sequence[DriverFit], hosts: Sequence[HostFacts], gpus: Sequence[GpuVerdict]
) -> Verdict:
    """The worst host's verdict; unverified when a GPU that should run it is not known."""
    blind = any(not facts.gpus for facts in hosts) or any(g.runs == "unknown" for g in gpus)
    verdicts: list[Verdict] = [fit.verdict for fit in drivers]
    if blind:
        verdicts.append("unverified")
    return max(verdicts, key=_RANK.__getitem__)


def _python_blocker(build: TorchBuild, request: Request, python: str | None) -> Blocker | None:
    if python is not None:
        return None
    have = rules.python_tags_of(build)
    asked = f"Python {request.python}" if request.python else "any Python that a base image has"
    return Blocker(
        code="no-wheel-for-python",
        message=f"PyTorch {build.version}+{build.tag} has no wheel for {asked}; "
        f"it has Python {have[0]} to {have[-1]}.",
        fix=f"Use --python {have[-1]}, or leave --python away.",
        source=build.source,
    )


def _base_blocker(
    build: TorchBuild, request: Request, python: str | None, base: Base | None
) -> Blocker | None:
    if python is None or base is not None:
        return None
    if request.flavour == "devel":
        message = f"No nvidia/cuda devel image for CUDA {build.cuda} with Python {python} is known."
        return Blocker(
            code="no-devel-base",
            message=message,
            fix="Use --flavour runtime, or name a base image with --base.",
        )
    return Blocker(
        code="glibc-too-old",
        message=f"PyTorch {build.version}+{build.tag} needs glibc {build.glibc} in the image; no "
        f"base image with Python {python} has it.",
        fix="Choose another --python, or name a newer base image with --base.",
        source=build.source,
    )


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
        reasons=_reasons(best, indexes, arch, catalog),
        warnings=_warnings(best, hosts, request, catalog),
    )


def index_candidates(
    build: TorchBuild, request: Request, catalog: Catalog
) -> tuple[IndexCandidate, ...]:
    """The index that was named, then the PyTorch index, then PyPI where its default build is this
    one. The first that answers and has it serves, which the lock finds out.
    """
    exact = f"torch=={build.version}+{build.tag}"
    plain = f"torch=={build.version}"
    found: list[IndexCandidate] = []
    if request.index is not None:
        spellings = [exact, plain] if "pypi" in build.at else [exact]
        found += [
            IndexCandidate(name="--index", url=request.index, requirement=line, why="named by you")
            for line in spellings
        ]
    if "pytorch" in build.at:
        found.append(
            IndexCandidate(
                name=f"PyTorch index ({build.tag})",
                url=catalog.pytorch_index(build.tag),
                requirement=exact,
                why="the project's own index, one folder a CUDA version",
            )
        )
    if "pypi" in build.at:
        found.append(
            IndexCandidate(
                name="PyPI",
                url=None,
                requirement=plain,
                why=f"its torch {build.version} is the {build.tag} build",
            )
        )
    return tuple(found)


def companion_requirements(
    build: TorchBuild, request: Request, catalog: Catalog
) -> tuple[str, ...]:
    """The packages beside the framework: torchvision and torchaudio at the release's own version,
    NumPy (which torch needs for half of its interface) with the ABI the wheel was compiled for.
    """
    release = catalog.torch_release(build.version)
    assert release is not None
    paired = {"torchvision": release.torchvision, "torchaudio": release.torchaudio}
    lines: dict[str, str] = {"numpy": f"numpy{release.numpy or ''}"}
    for text in request.companions:
        name = _name_of(text)
        pair = paired.get(name)
        lines[name] = f"{name}=={pair}" if pair and text == name else text
    return tuple(lines.values())


def _reasons(
    best: Candidate, indexes: Sequence[IndexCandidate], arch: str, catalog: Catalog
) -> tuple[Reason, ...]:
    build = best.build
    release = catalog.torch_release(build.version)
    assert release is not None
    reasons = [
        Reason(
            code="build-chosen",
            message=f"PyTorch {build.version} was built for CUDA {build.cuda} ({build.tag}, "
            f"{arch}); it is the newest release that fits everything asked.",
            source=build.source,
        )
    ]
    reasons += [
        Reason(code=f"driver-{fit.verdict}", message=fit.message, source=fit.source)
        for fit in dict.fromkeys(best.drivers)
    ]
    reasons += [
        Reason(
            code="gpu-code",
            message=f"{gpu.name or 'A GPU'} ({gpu.compute_capability}) runs {gpu.runs} of this "
            "build.",
            source=build.sm_source or build.source,
        )
        for gpu in dict.fromkeys(best.gpus)
        if gpu.ok
    ]
    reasons.append(
        Reason(
            code="python-chosen",
            message=f"Python {best.python}: {best.python_why}.",
            source=build.source,
        )
    )
    if release.numpy:
        reasons.append(
            Reason(
                code="numpy-abi",
                message=f"numpy{release.numpy}: this wheel was compiled for that NumPy ABI.",
                source=release.numpy_source or release.source,
            )
        )
    first = indexes[0]
    reasons.append(
        Reason(code="index-order", message=f"{first.name} is asked first: {first.why}.", source="")
    )
    return tuple(reasons)


def _warnings(
    best: Candidate, hosts: Sequence[HostFacts], request: Request, catalog: Catalog
) -> tuple[Warned, ...]:
    found = [*_host_warnings(hosts, catalog), *_build_warnings(best, request, catalog)]
    return tuple(dict.fromkeys(found))


def _host_warnings(hosts: Sequence[HostFacts], catalog: Catalog) -> Iterable[Warned]:
    for facts in hosts:
        where = f" on {facts.label}" if facts.label != "this host" else ""
        if facts.driver is None and facts.driver_cuda is None:
            yield Warned(
                code="driver-not-seen",
                message=f"No NVIDIA driver was seen{where}; whether it can run this was not "
                "checked.",
                fix="Install the driver, or name it: --driver 515.65.01",
            )
        elif facts.driver is not None and not catalog.is_known_branch(facts.driver):
            yield Warned(
                code="driver-branch-unknown",
                message=f"Driver branch {facts.driver.split('.')[0]}{where} is not in the catalog; "
                "it is taken as backward compatible with the nearest older one.",
                fix="Update gpu-provision, or check with: nvidia-smi",
            )
        if not facts.gpus:
            seen = "is known" if facts.gpus is None else "was seen"
            yield Warned(
                code="gpu-not-seen",
                message=f"No GPU {seen}{where}; whether the wheel has code for it was not checked.",
                fix="Name it: --gpu 'RTX 3090' or --gpu 8.6",
            )
        for gpu in facts.gpus or ():
            if capability_of(gpu, catalog) is None:
                yield Warned(
                    code="gpu-unknown",
                    message=f"The compute capability of {gpu.name or 'a GPU'}{where} is not known; "
                    "it was not checked.",
                    fix="Read it with: nvidia-smi --query-gpu=compute_cap --format=csv "
                    "and give it: --gpu 8.6",
                )
        if facts.arch is None:
            yield Warned(
                code="arch-not-known",
                message=f"The CPU architecture{where} is not known; {_DEFAULT_ARCH} is assumed.",
                fix='Add "arch" to the host facts file (uname -m prints it).',
            )


def _build_warnings(best: Candidate, request: Request, catalog: Catalog) -> Iterable[Warned]:
    build = best.build
    if best.verdict == "minor-version" or any(d.verdict == "minor-version" for d in best.drivers):
        yield Warned(
            code="minor-version-limits",
            message=f"Minor-version compatibility leaves out PTX of CUDA {build.cuda}: kernels "
            "compiled at run time by its nvrtc or nvcc to PTX, and features that need the newer "
            "driver, do not work.",
            fix=f"Upgrade the driver to one that natively supports CUDA {build.cuda} if you "
            "compile kernels yourself.",
        )
    if best.verdict == "forward":
        row = catalog.forward_compat(build.cuda or "")
        package = row.package if row else "cuda-compat"
        yield Warned(
            code="needs-cuda-compat",
            message=f"The image must bring {package}, and it works on data-centre GPUs only.",
            fix="Upgrade the driver, or use an nvidia/cuda base image, which brings it.",
        )
        for fit in best.drivers:
            branch = catalog.branch_of(fit.have) if fit.have else None
            if row and branch and branch.branch not in (row.official_base_branches or ()):
                yield Warned(
                    code="compat-branch-not-listed",
                    message=f"NVIDIA's current page no longer lists driver branch {branch.branch} "
                    f"for {package}; its images still accept it.",
                    fix="Upgrade the driver to a branch that is still supported.",
                )
    if build.existence != "confirmed":
        yield Warned(
            code=f"build-{build.existence}",
            message=f"That PyTorch {build.version}+{build.tag} was published is {build.existence}, "
            "not confirmed.",
            fix="The lock will tell; else take an alternative.",
        )
    for gpu in best.gpus:
        if gpu.ok and gpu.runs.endswith("binary"):
            yield Warned(
                code="older-binary-code",
                message=f"{gpu.name or 'A GPU'} ({gpu.compute_capability}) runs code compiled for "
                f"{gpu.runs.removesuffix(' binary')}: correct, not tuned for it.",
                fix="Nothing to do.",
            )
        if gpu.ok and gpu.runs == "PTX":
            yield Warned(
                code="ptx-jit",
                message=f"{gpu.name or 'A GPU'} ({gpu.compute_capability}) runs PTX, which the "
                "driver compiles at first use: the first start takes minutes.",
                fix="Keep CUDA_CACHE_PATH on a volume.",
            )
    release = catalog.torch_release(build.version)
    names = {_name_of(text) for text in request.companions}
    for name in ("torchvision", "torchaudio"):
        if release and name in names and getattr(release, name) is None:
            yield Warned(
                code="companion-unpaired",
                message=f"No {name} release is paired with PyTorch {build.version}; the installer "
                "chooses one by its metadata.",
                fix=f"Name the version that you have tested: --with '{name}==...'",
            )


def _name_of(requirement: str) -> str:
    from packaging.requirements import Requirement  # 17 ms that most plans do without
    from packaging.utils import canonicalize_name

    return canonicalize_name(Requirement(requirement).name)


def _present(blockers: Iterable[Blocker | None]) -> tuple[Blocker, ...]:
    return tuple(dict.fromkeys(b for b in blockers if b is not None))
