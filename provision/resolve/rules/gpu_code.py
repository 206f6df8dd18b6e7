"""Which code of a build a GPU runs, and which cuDNN supports it."""

from __future__ import annotations

from functools import lru_cache

from provision.catalog.catalog import Catalog
from provision.model.plan import ComputeCapability
from provision.resolve.blockers import Blocker
from provision.resolve.builds import Build
from provision.resolve.fleet import GpuKind, show_capability, show_sm, with_capability
from provision.resolve.specifiers import version, within

_MINOR_VERSION = (
    "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
)


def code_for(build: Build, capability: ComputeCapability, *, tegra: bool) -> str:
    """Binary code runs on its own major and an equal or higher minor; else PTX is compiled by the
    driver for its own capability and any later one; Tegra takes its exact binary only. If the
    targets of a build were not read, it is unknown.
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


def code_blocker(build: Build, device: GpuKind, code: str) -> Blocker | None:
    """A build without binary code or PTX for a GPU fails at its first kernel there."""
    if code != "none" or device.capability is None:
        return None
    newest = max(build.sm, default=None)
    span = f"stops at {show_sm(newest)}" if newest and newest < device.capability else "lacks it"
    if build.compiled_on_host:
        return Blocker(
            code="no-gpu-code",
            message=f"{build.name} compiles at run time, and CUDA {build.cuda} cannot compile "
            f"for {with_capability(device)}.",
            source=build.source,
        )
    ptx = "has no PTX" if build.ptx is None else f"has PTX only for {show_sm(build.ptx)}"
    return Blocker(
        code="no-gpu-code",
        message=f"{build.name} has no code for {with_capability(device)}: its compiled code "
        f"{span}, and it {ptx}.",
        source=build.sm_source or build.source,
    )


def ptx_blocker(build: Build, device: GpuKind, code: str, *, by_minor: bool) -> Blocker | None:
    """Minor-version compatibility leaves out PTX: the older driver cannot compile the newer
    toolkit's.
    """
    if code != "PTX" or not by_minor:
        return None
    return Blocker(
        code="ptx-needs-newer-driver",
        message=f"{with_capability(device)} could run {build.name} only from PTX, which a driver "
        f"older than CUDA {build.cuda} cannot compile.",
        source=_MINOR_VERSION,
    )


def partly_ptx_blocker(
    build: Build, device: GpuKind, native: str | None, *, by_minor: bool
) -> Blocker | None:
    """If some kernels exist as PTX only, that PTX must suit the GPU (that of an accelerated target
    suits no other) and the driver must be new enough to compile it.
    """
    if build.ptx_only is None or device.capability is None:
        return None
    target, no_other = build.ptx_only
    if device.capability < target:
        return None
    if no_other and device.capability != target:
        return Blocker(
            code="ptx-of-one-gpu",
            message=f"{build.name} has many kernels only as PTX for {show_sm(target)}a, which "
            f"{with_capability(device)} cannot use.",
            source=build.ptx_only_source or build.source,
        )
    too_old = native is None or version(native) < version(build.ptx_only_cuda or "0")
    if not by_minor or not too_old:
        return None
    return Blocker(
        code="ptx-needs-newer-driver",
        message=f"For {with_capability(device)}, {build.name} has many kernels only as PTX, which "
        f"a driver older than CUDA {build.ptx_only_cuda} cannot compile.",
        source=build.ptx_only_source or build.source,
    )


def cudnn_blocker(build: Build, device: GpuKind, catalog: Catalog) -> Blocker | None:
    """A cuDNN from before a GPU's generation has no kernels for it; cuDNN has no PTX to fall back
    on, unlike a framework's own code.
    """
    if device.capability is None or build.cudnn is None or build.framework == "pytorch":
        return None
    served = capabilities_of_cudnn(build.cudnn, build.cuda, catalog)
    if not served or device.capability[0] <= max(served)[0]:
        return None
    return Blocker(
        code="cudnn-lacks-gpu",
        message=f"{with_capability(device)} is newer than cuDNN {build.cudnn}, which {build.name} "
        f"loads: that supports up to compute capability {show_capability(max(served))}.",
        source=build.source,
    )


@lru_cache(maxsize=1024)
def capabilities_of_cudnn(cudnn: str, cuda: str, catalog: Catalog) -> tuple[ComputeCapability, ...]:
    """The capabilities that a cuDNN supports by its support matrix, found by its whole version or
    its first numbers; for one older than the table those of the next one, which supports no fewer.
    () if they were not read.
    """
    if not cudnn:
        return ()
    for row in catalog.cudnn:  # oldest first
        same = row.version.startswith(f"{cudnn}.") or version(row.version) >= version(cudnn)
        if same and str(row.cuda_major) == cuda.partition(".")[0]:
            return row.capabilities
    return ()


def lowest_of_cudnn(cudnn: str | None, cuda: str, catalog: Catalog) -> ComputeCapability | None:
    """The lowest compute capability that a cuDNN supports; None: that is not known."""
    return min(capabilities_of_cudnn(cudnn or "", cuda, catalog), default=None)


# A refusal plans up to hundreds of changed requests for the same hosts.
@lru_cache(maxsize=1024)
def choose_cudnn(
    spec: str, cuda: str, devices: tuple[GpuKind, ...], catalog: Catalog
) -> str | None:
    """In an open range, the newest cuDNN that still supports every GPU."""
    oldest = min((d.capability for d in devices if d.capability), default=None)
    major = int(cuda.partition(".")[0])
    rows = (row for row in catalog.cudnn if row.cuda_major == major and not row.yanked)
    for row in sorted(rows, key=lambda row: version(row.version), reverse=True):
        runs = oldest is None or not row.capabilities or min(row.capabilities) <= oldest
        if runs and row.sm_confidence != "assumed" and within(row.version, spec):
            return row.version
    return None


def is_proven(capability: ComputeCapability, catalog: Catalog) -> bool:
    """By the rule, binary code of a lower minor runs; on a new generation only reports prove it."""
    note = catalog.binary_note(show_capability(capability))
    return note.proven if note is not None else bool(catalog.gpus_of(capability))
