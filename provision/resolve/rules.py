"""The rules, one a function: its docstring is the sentence that it enforces.

All are pure. Versions and names come from the catalog's rows, never from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from packaging.version import Version

from provision.catalog import Catalog
from provision.catalog.rows import TorchBuild
from provision.model import ComputeCapability, Gpu, HostFacts, Verdict


@cache
def version(text: str) -> Version:
    """Versions are compared as versions; parsing the same few strings again is waste."""
    return Version(text)


def show_capability(capability: ComputeCapability) -> str:
    """(8, 6) -> "8.6"."""
    return f"{capability[0]}.{capability[1]}"


def show_sm(capability: ComputeCapability) -> str:
    """(8, 6) -> "sm_86"."""
    return f"sm_{capability[0]}{capability[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Why one build does not serve one host: stable code, sentence, what would help."""

    code: str
    message: str
    fix: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFit:
    """How a driver runs a CUDA version: natively, by minor-version or forward compatibility."""

    verdict: Verdict
    have: str | None
    need: str | None
    native_up_to: str | None
    message: str
    source: str


def code_for(build: TorchBuild, capability: ComputeCapability, *, tegra: bool) -> str:
    """Binary code runs on its own major and an equal or higher minor; else PTX is compiled by
    the driver for its own capability and any later one; Tegra takes its exact binary only. Where
    nobody has read what a build was compiled for, it is unknown.
    """
    if not build.sm:
        return "unknown"
    if capability in build.sm:
        return show_sm(capability)
    if not tegra:
        major, minor = capability
        older = [sm for sm in build.sm if sm[0] == major and sm[1] < minor]
        if older:
            return f"{show_sm(max(older))} binary"
    if build.ptx is not None and build.ptx <= capability:
        return "PTX"
    return "none"


def native_cuda(facts: HostFacts, catalog: Catalog) -> tuple[str | None, str]:
    """The highest CUDA a driver supports natively is its branch's; the driver's own word counts
    where the branch is not in the table. Gives it with its source.
    """
    if facts.driver is not None:
        branch = catalog.branch_of(facts.driver)
        if branch is not None and (catalog.is_known_branch(facts.driver) or not facts.driver_cuda):
            return branch.max_cuda, branch.source
    if facts.driver_cuda is not None:
        return facts.driver_cuda, "the driver's own answer"
    return None, ""


def driver_floor(cuda: str, catalog: Catalog) -> tuple[str | None, str]:
    """Within a CUDA major with minor-version compatibility the family's floor is enough; before
    that the toolkit's own driver is needed. Gives it with its source.
    """
    toolkit = catalog.toolkit(cuda)
    family = catalog.family(cuda)
    if family is not None and (toolkit is None or toolkit.minor_version_compatibility):
        return family.min_driver, family.source
    return (toolkit.driver, toolkit.source) if toolkit else (None, "")


def runs_natively(facts: HostFacts, cuda: str, catalog: Catalog) -> bool:
    """A driver natively supports the CUDA of its branch and all before, from the version on that
    the toolkit of that branch shipped with.
    """
    highest, _ = native_cuda(facts, catalog)
    if highest is None or version(highest) < version(cuda):
        return False
    toolkit = catalog.toolkit(cuda)
    if facts.driver is None or toolkit is None or toolkit.driver is None:
        return True
    return version(facts.driver) >= version(toolkit.driver)


def runs_by_minor_version(facts: HostFacts, cuda: str, catalog: Catalog) -> bool:
    """From CUDA 11 on, a driver of the same CUDA major runs a newer minor if it is at or above
    the family's floor.
    """
    highest, _ = native_cuda(facts, catalog)
    toolkit = catalog.toolkit(cuda)
    if highest is None or toolkit is None or not toolkit.minor_version_compatibility:
        return False
    if version(highest).major != version(cuda).major:
        return False
    floor, _ = driver_floor(cuda, catalog)
    return floor is not None and (facts.driver is None or version(facts.driver) >= version(floor))


def runs_forward(facts: HostFacts, cuda: str, catalog: Catalog) -> bool:
    """The cuda-compat package carries a newer user-mode driver onto an older kernel driver, on
    data-centre GPUs and on the driver branches that NVIDIA lists for it, and nowhere else.
    Branches past their end of life are no longer on NVIDIA's page, but its images accept them.
    """
    row = catalog.forward_compat(cuda)
    if row is None or facts.driver is None or not facts.gpus:
        return False
    branch = catalog.branch_of(facts.driver)
    listed = {*(row.official_base_branches or ()), *row.accepted_base_branches}
    if branch is None or branch.branch not in listed:
        return False
    return all(_forward_eligible(gpu, catalog) for gpu in facts.gpus)


def _forward_eligible(gpu: Gpu, catalog: Catalog) -> bool:
    match = catalog.find_gpu(gpu.name) if gpu.name else None
    return bool(
        match and match.status == "one" and all(r.forward_compat_eligible for r in match.rows)
    )


def fit_driver(facts: HostFacts, cuda: str, catalog: Catalog) -> DriverFit:
    """Direct before minor-version before forward; without a driver in sight, unverified."""
    need, floor_source = driver_floor(cuda, catalog)
    highest, native_source = native_cuda(facts, catalog)

    def fit(verdict: Verdict, message: str, source: str) -> DriverFit:
        return DriverFit(
            verdict=verdict,
            have=facts.driver,
            need=need,
            native_up_to=highest,
            message=message,
            source=source,
        )

    have = facts.driver or f"a driver for CUDA {facts.driver_cuda}"
    if highest is None and facts.driver is None:
        return fit("unverified", "No NVIDIA driver was seen; it was not checked.", floor_source)
    if runs_natively(facts, cuda, catalog):
        message = f"Driver {have} natively supports CUDA up to {highest}, so CUDA {cuda} too."
        return fit("direct", message, native_source)
    if runs_by_minor_version(facts, cuda, catalog):
        message = (
            f"Driver {have} natively supports CUDA {highest}; CUDA {cuda} runs on it by "
            f"minor-version compatibility (floor {need})."
        )
        return fit("minor-version", message, floor_source)
    if runs_forward(facts, cuda, catalog):
        row = catalog.forward_compat(cuda)
        assert row is not None
        message = (
            f"Driver {have} natively supports CUDA {highest}; CUDA {cuda} needs the package "
            f"{row.package}, which these data-centre GPUs accept."
        )
        return fit("forward", message, row.source)
    return fit("none", f"CUDA {cuda} needs driver {need} or newer; found {have}.", floor_source)


def driver_blocker(facts: HostFacts, fit: DriverFit) -> Blocker | None:
    """A driver below the floor, on a GPU that cuda-compat does not serve, runs nothing."""
    if fit.verdict != "none":
        return None
    usable = f" or take CUDA {fit.native_up_to} or older" if fit.native_up_to else ""
    return Blocker(
        code="driver-too-old",
        message=f"{_on(facts)}{fit.message}",
        fix=f"Upgrade the NVIDIA driver to {fit.need} or newer{usable}.",
        source=fit.source,
    )


def driven_blocker(
    facts: HostFacts, name: str, capability: ComputeCapability, catalog: Catalog
) -> Blocker | None:
    """A driver branch drives no GPU older than the generations it still supports."""
    branch = catalog.branch_of(facts.driver) if facts.driver else None
    if branch is None or capability >= branch.dropped_below:
        return None
    return Blocker(
        code="gpu-not-driven",
        message=f"{_on(facts)}driver {facts.driver} no longer drives {name} "
        f"(compute capability {show_capability(capability)}).",
        fix=f"Install driver branch {last_branch_for(capability, catalog)}, the last that does.",
        source=branch.source,
    )


def last_branch_for(capability: ComputeCapability, catalog: Catalog) -> int | None:
    """The newest branch that still drives this compute capability."""
    driving = (row.branch for row in catalog.branches if row.dropped_below <= capability)
    return max(driving, default=None)


def code_blocker(
    facts: HostFacts, build: TorchBuild, name: str, capability: ComputeCapability, code: str
) -> Blocker | None:
    """A build without binary code or PTX for a GPU dies at its first kernel there."""
    if code != "none":
        return None
    newest = max(build.sm, default=None)
    span = f"stops at {show_sm(newest)}" if newest and newest < capability else "lacks it"
    ptx = "holds no PTX" if build.ptx is None else f"holds PTX only for {show_sm(build.ptx)}"
    return Blocker(
        code="no-gpu-code",
        message=f"{_on(facts)}{name} (compute capability {show_capability(capability)}) finds no "
        f"code in PyTorch {build.version}+{build.tag}: its compiled code {span}, and it {ptx}.",
        fix="Take a build with code for this GPU (see the alternatives).",
        source=build.sm_source or build.source,
    )


def ptx_blocker(
    facts: HostFacts, build: TorchBuild, name: str, code: str, verdict: Verdict
) -> Blocker | None:
    """Minor-version compatibility leaves out PTX: the older driver cannot compile the newer
    toolkit's.
    """
    if code != "PTX" or verdict != "minor-version":
        return None
    return Blocker(
        code="ptx-needs-newer-driver",
        message=f"{_on(facts)}{name} could run PyTorch {build.version}+{build.tag} by PTX only, "
        f"and a driver older than CUDA {build.cuda} cannot compile that PTX.",
        fix=f"Upgrade the driver to one that natively supports CUDA {build.cuda}, or take a build "
        "with binary code for this GPU.",
        source="https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
    )


def python_tags_of(build: TorchBuild) -> tuple[str, ...]:
    """The Pythons that have a wheel, oldest first ("3.8"); free-threaded ABIs are left out."""
    found = set[tuple[int, int]]()
    for tag in build.python_tags:
        interpreter, _, abi = tag.partition("-")
        if abi in {interpreter, f"{interpreter}m"} and interpreter.startswith("cp3"):
            found.add((3, int(interpreter[3:])))
    return tuple(f"{major}.{minor}" for major, minor in sorted(found))


def choose_python(
    build: TorchBuild, asked: str | None, hosts: Iterable[HostFacts], offered: Iterable[str]
) -> tuple[str | None, str]:
    """The Python asked for; else the host's own, so that the user's code carries over; else the
    newest that the build has a wheel for and a base image offers. Gives it and why.
    """
    wheels = python_tags_of(build)
    usable = [python for python in wheels if python in set(offered)]
    if asked is not None:
        return (asked if asked in usable else None), "asked for"
    own = {facts.python for facts in hosts}
    if len(own) == 1 and (mine := own.pop()) in usable:
        return mine, "the host's own, so that your code carries over"
    newest = usable[-1] if usable else None
    return newest, "the newest that both the wheel and a base image have"


def _on(facts: HostFacts) -> str:
    return "" if facts.label == "this host" else f"{facts.label}: "
