"""What a log says of its machine and does not go together, by the resolver's data. Pure.

A GPU of which a build of PyTorch has no code, a driver that is too old for its CUDA, a compiler
that a library refuses: each is two lines of the log that nobody compares. A fact that a log states
with several values is of several machines, and says nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from provision.catalog.needs import together
from provision.doctor.conditions import in_words
from provision.doctor.log_facts import ReportedFacts
from provision.doctor.model import Contradiction, Evidence, Fact, Facts

if TYPE_CHECKING:
    from provision.catalog.catalog import Catalog
    from provision.resolve.builds import Build
    from provision.resolve.fleet import GpuKind

Rule: TypeAlias = Callable[[Facts], Iterator[Contradiction]]

_WORDS = {
    "containerd.version": "containerd",
    "driver.version": "driver",
    "flashinfer.compiled": "FlashInfer compiles kernels",
    "gpu.capability": "compute capability",
    "gpu.names": "GPU",
    "operator.version": "GPU Operator",
    "toolkits.headers": "CUDA headers",
    "toolkits.nvcc": "nvcc",
    "torch.cuda": "torch for CUDA",
    "torch.version": "torch",
    "wheels.headers": "nvidia-cuda-runtime",
    "wheels.nvcc": "nvidia-cuda-nvcc",
}
_SAME = "same "  # as another fact: "same major toolkits.nvcc"


def contradictions(reported: ReportedFacts) -> tuple[Contradiction, ...]:
    """All of them, in the order of the rules."""
    facts = {
        name: values[0]
        for name, values in reported.items()
        if len({value.value for value in values}) == 1
    }
    return tuple(found for rule in RULES for found in rule(facts))


def needed_together(facts: Facts) -> Iterator[Contradiction]:
    """The rows of the catalog: what a machine with some parts needs of others."""
    facts = {**_derived(facts), **facts}
    for row in together():
        if all(_is_in(facts.get(name), wanted, facts) for name, wanted in row.has.items()):
            (part,) = [name for name, versions in row.has.items() if versions]
            for name, wanted in row.needs.items():
                if name in facts and not _is_in(facts[name], wanted, facts):
                    yield _conflict(row.because, facts, part, name, row.source)


def driver_and_torch(facts: Facts) -> Iterator[Contradiction]:
    """A driver below the oldest for the CUDA of the build, where cuda-compat cannot help."""
    build, driver = _torch(facts), facts.get("driver.version")
    if build is None or driver is None or "wsl" in facts:
        return
    from provision.resolve.fleet import Site
    from provision.resolve.rules.driver import driver_blocker, fit_driver

    catalog, gpu = _catalog(), _gpu(facts)
    branch = catalog.branch_of(str(driver.value))
    compat = catalog.forward_compat(build.cuda)
    carried = branch and compat and branch.branch in compat.accepted_base_branches
    if gpu is None and carried:
        return  # a container may bring cuda-compat, which works on some GPUs
    site = Site(
        labels=("the log",),
        driver=str(driver.value),
        driver_cuda=None,
        devices=None if gpu is None else (gpu,),
        branch=branch,
        branch_known=catalog.is_known_branch(str(driver.value)),
    )
    blocker = driver_blocker(site, fit_driver(site, build.cuda, catalog), catalog)
    if blocker is not None:
        says = f"{blocker.message.rstrip('.')}; PyTorch was built for it"
        yield _conflict(says, facts, "driver.version", "torch.version", blocker.source)


def gpu_and_torch(facts: Facts) -> Iterator[Contradiction]:
    """A GPU for which the build has no code."""
    build, gpu = _torch(facts), _gpu(facts)
    if build is None or gpu is None or gpu.capability is None:
        return
    from provision.resolve.rules.gpu_code import code_blocker, code_for

    tegra = gpu.capability in _catalog().tegra_capabilities
    blocker = code_blocker(build, gpu, code_for(build, gpu.capability, tegra=tegra))
    if blocker is not None:
        says = blocker.message.rstrip(".")
        yield _conflict(says, facts, "gpu.names", "torch.version", blocker.source)


RULES: tuple[Rule, ...] = (
    needed_together,
    driver_and_torch,
    gpu_and_torch,
)


def _conflict(says: str, facts: Facts, one: str, other: str, source: str) -> Contradiction:
    first, second = (
        Evidence(says=f"{_WORDS[name]} {in_words(facts[name])}", where=facts[name].where)
        for name in (one, other)
    )
    return Contradiction(says=says, evidence=(first, second), source=source)


def _torch(facts: Facts) -> Build | None:
    """The build of PyTorch that a version with its CUDA names: 2.5.1+cu121."""
    if "torch.version" not in facts:
        return None
    from provision.resolve.builds import builds_of

    release, _, tag = str(facts["torch.version"].value).partition("+")
    cuda = facts["torch.cuda"].value if "torch.cuda" in facts else None
    arch = str(facts["kernel.arch"].value) if "kernel.arch" in facts else "x86_64"
    found = [
        build
        for build in builds_of("pytorch", arch, _catalog())
        if build.version == release and (build.tag == tag if tag else build.cuda == cuda)
    ]
    return found[0] if found and found[0].cuda else None


def _gpu(facts: Facts) -> GpuKind | None:
    """The one kind of GPU that a log names, where the catalog knows it."""
    if "gpu.names" not in facts:
        return None
    from provision.resolve.fleet import GpuKind

    name = in_words(facts["gpu.names"])
    match = _catalog().find_gpu(name)
    return GpuKind(name, match.compute_capability, match.rows) if match.status == "one" else None


def _derived(facts: Facts) -> Facts:
    """What follows from a name or a version, where the log does not say it."""
    gpu, build = _gpu(facts), _torch(facts)
    found: dict[str, Fact] = {}
    if gpu is not None and gpu.capability is not None:
        words = ".".join(map(str, gpu.capability))
        found["gpu.capability"] = replace(facts["gpu.names"], value=words)
    if build is not None:
        found["torch.cuda"] = replace(facts["torch.version"], value=build.cuda)
    return found


def _is_in(fact: Fact | None, versions: str, facts: Facts) -> bool:
    """Whether a fact's version is in a range, or the same as another's; "": whether it is so."""
    if fact is None or not versions:
        return fact is not None and fact.value is True
    try:
        if versions.startswith(_SAME):
            *major, other = versions.removeprefix(_SAME).split()
            pair = [Version(in_words(one)).release for one in (fact, facts[other])]
            figures = 1 if major else 2
            return pair[0][:figures] == pair[1][:figures]
        return SpecifierSet(versions).contains(in_words(fact), prereleases=True)
    except InvalidVersion:
        return True  # nothing is known to be wrong


@cache
def _catalog() -> Catalog:
    from provision.catalog.loading import load

    return load()
