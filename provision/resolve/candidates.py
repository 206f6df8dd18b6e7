"""One build held against every host: what it would be, what stands against it, how it ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from provision.catalog import Catalog
from provision.catalog.rows import TorchBuild
from provision.model import (
    Base,
    ComputeCapability,
    Gpu,
    GpuVerdict,
    HostFacts,
    Request,
    Verdict,
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
        if request.base == "bootstrap":
            message = f"NVIDIA's packages for CUDA {build.cuda} hold no nvcc, and Debian has none."
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


def _present(blockers: Iterable[Blocker | None]) -> tuple[Blocker, ...]:
    return tuple(dict.fromkeys(b for b in blockers if b is not None))
