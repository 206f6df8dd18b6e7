"""Warnings about hosts, their GPUs and their drivers."""

from __future__ import annotations

from collections.abc import Iterable

from provision.catalog.catalog import Catalog
from provision.model.plan import Warned
from provision.resolve.builds import Build
from provision.resolve.candidates import BuildAnswers, Candidate
from provision.resolve.fleet import DEFAULT_ARCH, Fleet, GpuKind, Site, show_capability
from provision.resolve.rules.driven_gpus import (
    documented_blocker,
    first_branch_for,
    is_older,
    last_driver,
)
from provision.resolve.specifiers import version


def fleet_warnings(fleet: Fleet, catalog: Catalog) -> Iterable[Warned]:
    """What is unknown about the hosts and their GPUs, or contradictory."""
    for site in fleet.sites:
        where = f" on {site.where}" if site.where else ""
        if site.driver is None and site.driver_cuda is None:
            yield Warned(
                code="driver-not-seen",
                message=f"No NVIDIA driver was found{where}, so driver compatibility was not "
                "checked.",
                fix="Install the driver, or specify it: --driver VERSION",
            )
        elif site.driver is not None and not site.branch_known:
            yield Warned(
                code="driver-branch-unknown",
                message=f"Driver branch {site.driver.split('.')[0]}{where} is not in the catalog; "
                "it is assumed to be backward compatible with the nearest older one.",
                fix="Update the catalog: provision catalog refresh",
            )
        if site.driver is not None and "." not in site.driver:
            yield Warned(
                code="driver-branch-only",
                message=f"Only the branch {site.driver} of the driver{where} is known; its newest "
                "release is assumed.",
                fix=f"Specify the full version, as nvidia-smi prints it{_example_of(site)}: "
                "--driver VERSION",
            )
        if not site.devices:
            seen = "is known" if site.devices is None else "was found"
            yield Warned(
                code="gpu-not-seen",
                message=f"No GPU {seen}{where}, so GPU support of the wheel was not checked.",
                fix="Specify it, or its compute capability: --gpu NAME",
            )
        for device in site.devices or ():
            yield from _device_warnings(site, device, where, catalog)
            if device.host_arch and fleet.archs and device.host_arch not in fleet.archs:
                yield Warned(
                    code="gpu-other-arch",
                    message=f"{device.words}{where} exists only in {device.host_arch} machines, "
                    f"but the plan is for {fleet.archs[0]}.",
                    fix='Correct "arch" in the host facts file (uname -m prints it).',
                )
    for label in fleet.arch_missing[:1]:
        where = f" on {label}" if not fleet.one_host else ""
        yield Warned(
            code="arch-not-known",
            message=f"The CPU architecture{where} is not known; {DEFAULT_ARCH} is assumed.",
            fix="Run provision detect --json on that machine, and name its output with --host.",
        )


def _example_of(site: Site) -> str:
    """A driver of a host's branch, in parentheses."""
    row = site.branch if site.branch_known else None
    example = row and (row.latest_seen or row.first_version)
    return f" (such as {example})" if example else ""


def _device_warnings(site: Site, device: GpuKind, where: str, catalog: Catalog) -> Iterable[Warned]:
    if device.capability is None:
        match = catalog.find_gpu(device.name) if device.name else None
        near = match.suggestions if match else ()
        maybe = f" Is it one of {', '.join(near)}?" if near else ""
        yield Warned(
            code="gpu-unknown",
            message=f"The compute capability of {device.name or 'a GPU'}{where} is unknown, so "
            f"it was not checked.{maybe}",
            fix="Read it with nvidia-smi --query-gpu=compute_cap --format=csv "
            "and specify it: --gpu MAJOR.MINOR",
        )
        return
    listed = {row.compute_capability for row in device.rows}
    if device.name and listed and device.capability not in listed:
        yield Warned(
            code="gpu-capability-differs",
            message=f"The host reports compute capability {show_capability(device.capability)} for "
            f"{device.name}{where}, the catalog {show_capability(min(listed))}; the "
            "host's value is used.",
            fix="Check it: nvidia-smi --query-gpu=name,compute_cap --format=csv",
        )
    first = first_branch_for(device, catalog)
    if site.seen and documented_blocker(site, device, catalog) is not None:
        yield Warned(
            code="gpu-driver-differs",
            message=f"NVIDIA's documents say that driver {site.driver} does not support "
            f"{device.words}, but the driver{where} lists it; the driver's list is used.",
            fix="If the host file was edited by hand, specify the driver: --driver VERSION",
        )
    elif first is not None and first.adds_confidence != "confirmed" and is_older(site, first):
        yield Warned(
            code="driver-older-than-gpu",
            message=f"Driver branch {first.branch} is documented as the first that supports "
            f"{device.words}; {site.driver}{where} is older and may not detect it.",
            fix=f"Upgrade the driver to branch {first.branch} or newer; nvidia-smi shows whether "
            "it detects the GPU.",
        )


def partly_ptx(build: Build, answers: BuildAnswers) -> list[GpuKind]:
    """The GPUs with binary code of a build, for which it has many kernels only as PTX."""
    if build.ptx_only is None:
        return []
    target, _ = build.ptx_only
    return [
        device
        for device, code in answers.codes
        if code != "PTX" and device.capability and device.capability >= target
    ]


def driver_warnings(best: Candidate, answers: BuildAnswers, catalog: Catalog) -> Iterable[Warned]:
    """What does not work because a driver does not run the build's CUDA natively."""
    build = best.build
    fits = answers.drivers
    upgrade = _may_be_upgraded(answers.fleet, build.cuda, catalog)
    if any(fit.verdict == "minor-version" for fit in fits):
        older = "".join(
            f" The wheel's own PTX, all that many kernels have for {device.words}, is older: the "
            "driver compiles it at its first use."
            for device in partly_ptx(build, answers)[:1]
        )
        yield Warned(
            code="minor-version-limits",
            message=f"Minor-version compatibility does not cover PTX of CUDA {build.cuda}: kernels "
            "that its nvrtc or nvcc compiles to PTX at run time do not work, nor do features that "
            f"need the newer driver.{older}",
            fix=f"Upgrade the driver to one that natively supports CUDA {build.cuda} if you "
            "compile kernels yourself."
            if upgrade
            else "Compile your own kernels for the GPU itself, not to PTX: no driver that natively "
            f"supports CUDA {build.cuda} supports all GPUs of this plan.",
        )
    row = catalog.forward_compat(build.cuda)
    for fit in fits:
        if fit.verdict != "forward" or row is None or fit.have is None:
            continue
        yield Warned(
            code="needs-cuda-compat",
            message=f"The image needs {row.package}, which works on data-centre GPUs only.",
            fix=f"{'Upgrade the driver, or keep' if upgrade else 'Keep'} the nvidia/cuda base of "
            "this plan, which contains it.",
        )
        branch = catalog.branch_of(fit.have)
        if branch and branch.branch not in (row.official_base_branches or ()):
            yield Warned(
                code="compat-branch-not-listed",
                message=f"NVIDIA's current page no longer lists driver branch {branch.branch} "
                f"for {row.package}; its images still accept it.",
                fix="Upgrade the driver to a branch that is still supported."
                if upgrade
                else "Test it: provision verify IMAGE",
            )


def _may_be_upgraded(fleet: Fleet, cuda: str, catalog: Catalog) -> bool:
    """Whether a driver that supports a CUDA natively supports every GPU."""
    toolkit, last = catalog.toolkit(cuda), last_driver(fleet.gpus, catalog)
    if toolkit is None or toolkit.driver is None:
        return False
    return last is None or version(toolkit.driver).major <= int(last)
