"""The rules, one a function: its docstring is the sentence that it enforces.

All are pure. Versions and names come from the catalog's rows, never from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from provision.catalog import Catalog
from provision.catalog.rows import CudaToolkit, DriverBranch
from provision.model.plan import TITLES, ComputeCapability, Verdict
from provision.resolve.builds import Build
from provision.resolve.fleet import Device, Site, show_capability, show_sm
from provision.resolve.specifiers import within

if TYPE_CHECKING:
    from provision.catalog.later_rows import StartRule

_MINOR_VERSION = (
    "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
)
SEE_ALTERNATIVES = " (see the alternatives)"
"""Where a fix points to them; taken out where there are none."""
_FORWARD = "https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html"


@cache
def version(text: str) -> Version:
    """Versions are compared as versions; parsing the same few strings again is waste."""
    return Version(text)


class Blocker(NamedTuple):
    """Why one build does not serve: stable code, sentence, what would help."""

    code: str
    message: str
    fix: str
    source: str = ""


class DriverFit(NamedTuple):
    """How a driver runs a CUDA version: natively, by minor-version or forward compatibility.

    `have` is the driver, or what is known of it; `need` the oldest that would do.
    """

    verdict: Verdict
    cuda: str
    have: str | None
    need: str | None
    native_up_to: str | None
    source: str


# ---- the GPU's code ----


def code_for(build: Build, capability: ComputeCapability, *, tegra: bool) -> str:
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


def code_blocker(build: Build, device: Device, code: str) -> Blocker | None:
    """A build without binary code or PTX for a GPU dies at its first kernel there."""
    if code != "none" or device.capability is None:
        return None
    newest = max(build.sm, default=None)
    span = f"stops at {show_sm(newest)}" if newest and newest < device.capability else "lacks it"
    if build.compiled_on_host:
        return Blocker(
            code="no-gpu-code",
            message=f"{build.name} compiles when it runs, and CUDA {build.cuda} cannot compile "
            f"for {_with_capability(device)}.",
            fix=f"Take a CUDA that can{SEE_ALTERNATIVES}.",
            source=build.source,
        )
    ptx = "holds no PTX" if build.ptx is None else f"holds PTX only for {show_sm(build.ptx)}"
    return Blocker(
        code="no-gpu-code",
        message=f"{_with_capability(device)} finds no code in {build.name}: its compiled code "
        f"{span}, and it {ptx}.",
        fix=f"Take a build with code for this GPU{SEE_ALTERNATIVES}.",
        source=build.sm_source or build.source,
    )


def ptx_blocker(build: Build, device: Device, code: str, *, by_minor: bool) -> Blocker | None:
    """Minor-version compatibility leaves out PTX: the older driver cannot compile the newer
    toolkit's.
    """
    if code != "PTX" or not by_minor:
        return None
    return Blocker(
        code="ptx-needs-newer-driver",
        message=f"{_with_capability(device)} could run {build.name} by PTX only, and a driver "
        f"older than CUDA {build.cuda} cannot compile that PTX.",
        fix=f"Upgrade the driver to one that natively supports CUDA {build.cuda}, or take a build "
        "with binary code for this GPU.",
        source=_MINOR_VERSION,
    )


def partly_ptx_blocker(
    build: Build, device: Device, native: str | None, *, by_minor: bool
) -> Blocker | None:
    """Where some kernels are there as PTX only, that PTX has to suit the GPU (that of an
    accelerated target suits no other) and the driver has to be new enough to compile it.
    """
    if build.ptx_only is None or device.capability is None:
        return None
    target, no_other = build.ptx_only
    if device.capability < target:
        return None
    if no_other and device.capability != target:
        return Blocker(
            code="ptx-of-one-gpu",
            message=f"{_with_capability(device)} finds no code for many kernels of {build.name}: "
            f"they are there as PTX for {show_sm(target)}a, which no other GPU compiles.",
            fix="Take a release or a framework with code for this GPU, or NVIDIA's own container.",
            source=build.ptx_only_source or build.source,
        )
    too_old = native is None or version(native) < version(build.ptx_only_cuda or "0")
    if not by_minor or not too_old:
        return None
    return Blocker(
        code="ptx-needs-newer-driver",
        message=f"{_with_capability(device)} finds many kernels of {build.name} as PTX only, and "
        f"a driver older than CUDA {build.ptx_only_cuda} cannot compile that PTX.",
        fix=f"Upgrade the driver to one that natively supports CUDA {build.ptx_only_cuda}, or take "
        f"an older release{SEE_ALTERNATIVES}.",
        source=build.ptx_only_source or build.source,
    )


def cudnn_blocker(build: Build, device: Device, catalog: Catalog) -> Blocker | None:
    """A cuDNN from before a GPU's generation has no kernels for it; what a framework's own code
    could do by PTX, cuDNN does not.
    """
    if device.capability is None or build.cudnn is None or build.framework == "pytorch":
        return None
    served = capabilities_of_cudnn(build.cudnn, build.cuda, catalog)
    if not served or device.capability[0] <= max(served)[0]:
        return None
    return Blocker(
        code="cudnn-lacks-gpu",
        message=f"{_with_capability(device)} is newer than cuDNN {build.cudnn}, which {build.name} "
        f"loads: it ends at compute capability {show_capability(max(served))}.",
        fix=f"Take a release with a newer cuDNN{SEE_ALTERNATIVES}.",
        source=build.source,
    )


def capabilities_of_cudnn(cudnn: str, cuda: str, catalog: Catalog) -> tuple[ComputeCapability, ...]:
    """What a cuDNN serves by its support matrix, found by its whole version or its first figures;
    of one older than the table what the next one serves, which is no less. () where that was not
    read.
    """
    if not cudnn:
        return ()
    for row in catalog.cudnn:  # oldest first
        same = row.version.startswith(f"{cudnn}.") or version(row.version) >= version(cudnn)
        if same and str(row.cuda_major) == cuda.partition(".")[0]:
            return row.capabilities
    return ()


def choose_cudnn(spec: str, cuda: str, devices: Iterable[Device], catalog: Catalog) -> str | None:
    """Of an open range the newest cuDNN that still serves every GPU."""
    oldest = min((d.capability for d in devices if d.capability), default=None)
    fitting = [
        row.version
        for row in catalog.cudnn
        if str(row.cuda_major) == cuda.partition(".")[0]
        and not row.yanked
        and row.sm_confidence != "assumed"
        and within(row.version, spec)
        and (oldest is None or not row.capabilities or min(row.capabilities) <= oldest)
    ]
    return max(fitting, key=version, default=None)


# ---- the driver ----


def native_cuda(site: Site) -> tuple[str | None, str]:
    """The highest CUDA a driver supports natively is its branch's; the driver's own word counts
    where the branch is not in the table. Gives it with its source.
    """
    if site.branch is not None and (site.branch_known or not site.driver_cuda):
        return site.branch.max_cuda, site.branch.source
    if site.driver_cuda is not None:
        return site.driver_cuda, "the driver's own answer"
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


def runs_natively(site: Site, cuda: str, toolkit: CudaToolkit | None) -> bool:
    """A driver natively supports the CUDA of its branch and all before, from the version on that
    the toolkit of that branch shipped with.
    """
    highest, _ = native_cuda(site)
    if highest is None or version(highest) < version(cuda):
        return False
    if site.driver is None or toolkit is None or toolkit.driver is None:
        return True
    return driver_is_at_least(site.driver, toolkit.driver)


def runs_by_minor_version(
    site: Site, cuda: str, toolkit: CudaToolkit | None, floor: str | None
) -> bool:
    """From CUDA 11 on, a driver of the same CUDA major runs a newer minor if it is at or above
    the family's floor.
    """
    highest, _ = native_cuda(site)
    if highest is None or toolkit is None or not toolkit.minor_version_compatibility:
        return False
    if version(highest).major != version(cuda).major:
        return False
    return floor is not None and (site.driver is None or driver_is_at_least(site.driver, floor))


def driver_is_at_least(driver: str, floor: str) -> bool:
    """A driver named by its branch alone ("535") is taken as the newest of that branch."""
    if "." not in driver:
        return version(driver) >= version(floor.partition(".")[0])
    return version(driver) >= version(floor)


def runs_forward(site: Site, cuda: str, catalog: Catalog) -> bool:
    """The cuda-compat package carries a newer user-mode driver onto an older kernel driver, on
    data-centre GPUs and on the driver branches that NVIDIA lists for it, and nowhere else.
    Branches past their end of life are no longer on NVIDIA's page, but its images accept them.
    """
    row = catalog.forward_compat(cuda)
    if row is None or site.driver is None or site.branch is None or not site.takes_compat:
        return False
    return site.branch.branch in {*(row.official_base_branches or ()), *row.accepted_base_branches}


def fit_driver(site: Site, cuda: str, catalog: Catalog) -> DriverFit:
    """Direct before minor-version before forward; without a driver in sight, unverified."""
    toolkit = catalog.toolkit(cuda)
    floor, floor_source = driver_floor(cuda, catalog)
    highest, native_source = native_cuda(site)
    verdict: Verdict = "none"
    source = floor_source
    if highest is None and site.driver is None:
        verdict = "unverified"
    elif runs_natively(site, cuda, toolkit):
        verdict, source = "direct", native_source
    elif runs_by_minor_version(site, cuda, toolkit, floor):
        verdict = "minor-version"
    elif runs_forward(site, cuda, catalog):
        row = catalog.forward_compat(cuda)
        verdict, source = "forward", row.source if row else _FORWARD
    have = site.driver or (f"one for CUDA {site.driver_cuda}" if site.driver_cuda else None)
    return DriverFit(
        verdict=verdict, cuda=cuda, have=have, need=floor, native_up_to=highest, source=source
    )


def driver_blocker(site: Site, fit: DriverFit, catalog: Catalog) -> Blocker | None:
    """A driver below the floor, on a GPU that cuda-compat does not serve, runs nothing."""
    if fit.verdict != "none":
        return None
    row = catalog.forward_compat(fit.cuda)
    why = ""
    if row is not None and site.devices and not site.takes_compat:
        why = (
            f" {row.package} would carry it on data-centre GPUs only; elsewhere it ends in "
            "error 804."
        )
    upgrade = f"upgrade the NVIDIA driver to {fit.need} or newer"
    held = next((d for d in site.devices or () if _is_dropped_by(fit.need, d, catalog)), None)
    fix = upgrade
    if fit.native_up_to:
        fix = f"take CUDA {_highest(site, fit.native_up_to, catalog)} or older"
        fix += "" if held else f", or {upgrade}"
    if held is not None:
        fix += f" (driver {fit.need} no longer drives {held.words})"
    return Blocker(
        code="driver-too-old",
        message=f"CUDA {fit.cuda} needs driver {fit.need} or newer; found {fit.have}.{why}",
        fix=f"{fix[0].upper()}{fix[1:]}.",
        source=fit.source,
    )


def _highest(site: Site, native: str, catalog: Catalog) -> str:
    """The highest CUDA that a driver runs, in words: minor-version compatibility carries it on to
    the end of its major.
    """
    floor, _ = driver_floor(native, catalog)
    if catalog.family(native) and floor and site.driver and driver_is_at_least(site.driver, floor):
        return f"{version(native).major}.x"
    return native


def _is_dropped_by(driver: str | None, device: Device, catalog: Catalog) -> bool:
    """Whether a driver no longer drives a kind of GPU."""
    branch = catalog.branch_of(driver) if driver else None
    return bool(branch and device.capability and device.capability < branch.dropped_below)


def driven_blocker(site: Site, device: Device, catalog: Catalog) -> Blocker | None:
    """A driver drives no GPU whose chip came with a later branch, and none of a generation that
    its branch has dropped; but a GPU that the running driver itself lists, it drives.
    """
    return None if site.seen else documented_blocker(site, device, catalog)


def documented_blocker(site: Site, device: Device, catalog: Catalog) -> Blocker | None:
    """The same by NVIDIA's documents alone. Where they name no first branch, nothing is refused."""
    branch, capability = site.branch, device.capability
    first = first_branch_for(device, catalog)
    if first is not None and first.adds_confidence == "confirmed" and is_older(site, first):
        return Blocker(
            code="gpu-not-driven",
            message=f"Driver {site.driver} does not drive {_with_capability(device)}, which needs "
            f"driver branch {first.branch} or newer.",
            fix=_driver_fix(site, catalog)
            or f"Install NVIDIA driver {driver_for(device, first)} or newer.",
            source=first.adds_source or first.source,
        )
    if branch is None or capability is None or capability >= branch.dropped_below:
        return None
    return Blocker(
        code="gpu-not-driven",
        message=f"Driver {site.driver} no longer drives {_with_capability(device)}.",
        fix=_driver_fix(site, catalog)
        or f"Install driver branch {last_branch_for(capability, catalog)}, the last that does.",
        source=branch.dropped_source,
    )


def _driver_fix(site: Site, catalog: Catalog) -> str | None:
    """What to do with a host whose GPUs no one driver branch drives together."""
    devices = [device for device in site.devices or () if device.capability is not None]
    firsts = [(row.branch, d) for d in devices if (row := first_branch_for(d, catalog))]
    lasts = [
        (last, d)
        for d in devices
        if d.capability and (last := last_branch_for(d.capability, catalog))
    ]
    if not firsts or not lasts:
        return None
    (low, newer), (high, older) = max(firsts, key=_number), min(lasts, key=_number)
    if low <= high:
        return None
    return (
        f"No driver branch drives both: {newer.words} needs {low} or newer, {older.words} {high} "
        "or older. Put them into different machines."
    )


def _number(pair: tuple[int, Device]) -> int:
    return pair[0]


def last_branch_for(capability: ComputeCapability, catalog: Catalog) -> int | None:
    """The newest branch that still drives this compute capability."""
    driving = (row.branch for row in catalog.branches if row.dropped_below <= capability)
    return max(driving, default=None)


def first_branch_for(device: Device, catalog: Catalog) -> DriverBranch | None:
    """The branch that was the first to drive a kind of GPU; of several that it may be, the oldest.
    None where that is not known of one of them.
    """
    found = [catalog.first_branch(row.chip) if row.chip else None for row in device.rows]
    known = [row for row in found if row is not None]
    return min(known, key=lambda row: row.branch) if known and len(known) == len(found) else None


def is_older(site: Site, branch: DriverBranch) -> bool:
    """Whether a site's driver is of an older branch."""
    return site.driver is not None and version(site.driver).major < branch.branch


def driver_for(device: Device, first: DriverBranch) -> str:
    """The driver to install for a GPU: the oldest whose documents list it, else the branch."""
    listed = {row.driver_from for row in device.rows}
    return (listed.pop() if len(listed) == 1 else None) or str(first.branch)


def needed_driver(gpus: Iterable[tuple[Site, Device]], catalog: Catalog) -> str | None:
    """The oldest driver that drives every GPU whose own driver is too old for it; None: all are
    driven, or what is not was dropped.
    """
    needs = [
        driver_for(device, first)
        for site, device in gpus
        if driven_blocker(site, device, catalog) is not None
        and (first := first_branch_for(device, catalog)) is not None
        and is_older(site, first)
    ]
    return max(needs, key=version, default=None)


def is_old(capability: ComputeCapability, catalog: Catalog) -> bool:
    """Whether the newest drivers no longer drive it: then it pays to ask who else dropped it."""
    return capability < catalog.branches[-1].dropped_below


def is_proven(capability: ComputeCapability, catalog: Catalog) -> bool:
    """Binary code of a lower minor runs by the rule; on a new generation only reports prove it."""
    note = catalog.binary_note(show_capability(capability))
    return note.proven if note is not None else bool(catalog.gpus_of(capability))


# ---- the wheel and the image below it ----


def python_tags_of(build: Build) -> tuple[str, ...]:
    """The Pythons that have a wheel, oldest first ("3.8"); free-threaded ABIs are left out."""
    return _pythons(build.python_tags)


@cache
def _pythons(tags: tuple[str, ...]) -> tuple[str, ...]:
    found = set[tuple[int, int]]()
    for tag in tags:
        interpreter, _, abi = tag.partition("-")
        if abi in {interpreter, f"{interpreter}m"} and interpreter.startswith("cp3"):
            found.add((3, int(interpreter[3:])))
    return tuple(f"{major}.{minor}" for major, minor in sorted(found))


def choose_python(
    build: Build,
    asked: str | None,
    offered: Sequence[str],
    settled: Collection[str],
    *,
    doubted: Collection[str] = (),
    suite: bool = False,
) -> tuple[str | None, str]:
    """The Python asked for; else, of those that the build has a wheel for and a base offers, the
    newest that was `settled` (had a successor) when the release was published; else the oldest.
    Which machine asks makes no difference. Gives it and why.

    `doubted` are those of images that are only likely to exist. `suite`: each base is a Debian
    suite with its own Python, the one to prefer first.
    """
    usable = [python for python in python_tags_of(build) if python in offered]
    if asked is not None:
        return (asked if asked in usable else None), "asked for"
    if suite:
        own = next((python for python in offered if python in usable), None)
        return own, "that of the first Debian suite that the wheels support"
    sure = [python for python in usable if python not in doubted] or usable
    tried = [python for python in sure if python in settled] or sure[:1]
    chosen = tried[-1] if tried else None
    newer = usable[usable.index(chosen) + 1 :] if chosen else []
    young = next((python for python in newer if python not in settled), None)
    if young is None:
        return chosen, "the newest that the wheels and a base image have"
    when = f"when {TITLES[build.framework]} {build.version} was published"
    return chosen, f"{young} was still the newest of all {when}, and not yet widely supported"


def image_starts(cuda: str, rule: StartRule | None, site: Site) -> bool | None:
    """An nvidia/cuda image starts where the driver reports at least its CUDA, or where its list
    names the driver's branch together with the brand of the GPU; for every GPU. None: the list,
    or the brand of a GPU, is not known, and it decides.
    """
    highest, _ = native_cuda(site)
    if highest is None or version(highest) >= version(rule.min_cuda if rule else cuda):
        return True
    if rule is None:
        return None
    listed = frozenset(rule.brands.get(site.branch.branch, ())) if site.branch else frozenset()
    answers = [
        bool(listed & brands) if (brands := brands_of(device)) else None
        for device in site.devices or ()
    ]
    if not listed or False in answers:
        return False
    return None if None in answers or not answers else True


def brands_of(device: Device) -> frozenset[str]:
    """The words by which an image's start rule may mean a GPU; empty where its kind is unknown."""
    kinds = {row.kind for row in device.rows}
    words: set[str] = set()
    for kind in kinds:
        words |= _BRANDS.get(kind, set())
    # A capability that several kinds share does not tell the brand.
    return frozenset(words) if len(kinds) == 1 else frozenset()


_BRANDS: dict[str, set[str]] = {
    "data-centre": {"tesla", "nvidia"},
    "workstation": {"quadro", "quadrortx", "nvidiartx"},
    "geforce": {"geforce", "geforcertx"},
    "titan": {"titan", "titanrtx"},
}


def _with_capability(device: Device) -> str:
    if device.name is None:
        return device.words
    return f"{device.name} (compute capability {show_capability(device.capability)})"
