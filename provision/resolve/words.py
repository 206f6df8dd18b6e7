"""A plan's reasons and warnings: each with its stable code (docs/codes.md) and its source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provision.catalog import Catalog
from provision.model.plan import TITLES, GpuVerdict, IndexCandidate, Note, Reason, Request, Warned
from provision.resolve.bases import starts_everywhere
from provision.resolve.builds import Build
from provision.resolve.candidates import Candidate, Examiner
from provision.resolve.fleet import Device, Fleet, Site, show_capability
from provision.resolve.packages import PAIRED, PYTORCH_INDEXES, name_of
from provision.resolve.rules import (
    DriverFit,
    capabilities_of_cudnn,
    documented_blocker,
    first_branch_for,
    is_old,
    is_older,
    is_proven,
    python_tags_of,
    version,
)

DEFAULT_ARCH = "x86_64"
_BINARY_RULE = (
    "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#binary-compatibility"
)


def driver_sentence(fit: DriverFit, catalog: Catalog) -> str:
    """How a driver runs a CUDA version, in one sentence."""
    have = f"Driver {fit.have}"
    if fit.verdict == "unverified":
        return "No NVIDIA driver was seen; it was not checked."
    if fit.verdict == "direct":
        return f"{have} natively supports CUDA up to {fit.native_up_to}, so CUDA {fit.cuda} too."
    native = f"{have} natively supports CUDA {fit.native_up_to}"
    if fit.verdict == "minor-version":
        return (
            f"{native}; CUDA {fit.cuda} runs on it by minor-version compatibility (floor "
            f"{fit.need})."
        )
    if fit.verdict == "forward":
        row = catalog.forward_compat(fit.cuda)
        package = row.package if row else "cuda-compat"
        return (
            f"{native}; CUDA {fit.cuda} needs the package {package}, which these data-centre GPUs "
            "accept."
        )
    return f"CUDA {fit.cuda} needs driver {fit.need} or newer; found {fit.have}."


def reasons(
    best: Candidate,
    examiner: Examiner,
    indexes: Sequence[IndexCandidate],
    request: Request,
    catalog: Catalog,
) -> tuple[Reason, ...]:
    """Why this build, this driver verdict, this code, this Python, this base, this index."""
    build = best.build
    exact = "asked for" if request.framework_version else "the newest that fits everything asked"
    found = [
        Reason(
            code="build-chosen",
            message=f"{build.name} for {build.arch} is {exact}; it was built for CUDA {build.cuda}."
            if not build.compiled_on_host
            else f"{build.name} for {build.arch} is {exact}; it loads whatever CUDA of this major "
            f"is beside it, and {build.cuda} was chosen.",
            source=build.source,
        )
    ]
    found += [
        Reason(
            code=f"driver-{fit.verdict}", message=driver_sentence(fit, catalog), source=fit.source
        )
        for fit in dict.fromkeys(examiner.drivers(build.cuda))
    ]
    found += [
        Reason(
            code="gpu-code",
            message=f"{gpu.name or 'A GPU'} ({gpu.compute_capability}) runs {gpu.runs} of this "
            "build" + (", compiled when it runs." if build.compiled_on_host else "."),
            source=build.sm_source or build.source,
        )
        for gpu in dict.fromkeys(examiner.gpus(build))
        if gpu.ok
    ]
    found.append(_python_reason(best, request, catalog))
    found += _base_reasons(best, request, catalog)
    release = catalog.torch_release(build.version) if build.framework == "pytorch" else None
    if release is not None and release.numpy:
        found.append(
            Reason(
                code="numpy-abi",
                message=f"numpy{release.numpy}: this wheel was compiled for that NumPy ABI.",
                source=release.numpy_source or release.source,
            )
        )
    cudnn = examiner.cudnn(build)
    if build.cudnn_spec and cudnn and build.cudnn is None:
        found.append(
            Reason(
                code="cudnn-chosen",
                message=f"cuDNN {cudnn}: the newest in the range that the wheel leaves open "
                f"({build.cudnn_spec}) that serves every GPU here.",
                source=build.source,
            )
        )
    if build.framework == "pytorch" and build.arch != DEFAULT_ARCH and "pypi" not in build.at:
        found.append(
            Reason(
                code="pypi-wheel-is-cpu",
                message=f"PyPI's torch {build.version} for {build.arch} is a CPU build, whatever "
                "its metadata lists; the CUDA build is on the PyTorch index only.",
                source=build.source,
            )
        )
    first = indexes[0]
    found.append(
        Reason(
            code="index-order",
            message=f"{first.name} is asked first: {first.why}.",
            source=PYTORCH_INDEXES if build.framework == "pytorch" else build.source,
        )
    )
    return tuple(found)


def _python_reason(best: Candidate, request: Request, catalog: Catalog) -> Reason:
    pythons = python_tags_of(best.build)
    choice, source = "", best.build.source
    if request.python is None and len(pythons) > 1:
        choice = f" The wheels are for {pythons[0]} to {pythons[-1]} (--python)."
        source = f"{source}; {catalog.pythons[0].source}"
    return Reason(
        code="python-chosen",
        message=f"Python {best.python}: {best.python_why}.{choice}",
        source=source,
    )


def _base_reasons(best: Candidate, request: Request, catalog: Catalog) -> Iterable[Reason]:
    base, build = best.base, best.build
    if base is None or request.base is not None:
        return
    if best.driver.verdict == "forward":
        row = catalog.forward_compat(build.cuda)
        yield Reason(
            code="base-chosen",
            message=f"{base.reference} brings {row.package if row else 'cuda-compat'}.",
            source=row.source if row else build.source,
        )
    elif build.libraries == "system":
        yield Reason(
            code="base-chosen",
            message=f"{build.name} expects CUDA and cuDNN of the system; {base.reference} brings "
            "them.",
            source=build.source,
        )
    elif request.flavour == "runtime":
        yield Reason(
            code="base-chosen",
            message="The wheels bring CUDA, so the base holds none: never two in one image.",
            source=build.source,
        )


def warnings(
    best: Candidate, examiner: Examiner, request: Request, catalog: Catalog
) -> tuple[Warned, ...]:
    """What is true and unwelcome of the hosts, of the build, of the base and of what was asked."""
    fleet, build = examiner.fleet, best.build
    found = [
        *_name_warnings(best, request, catalog),
        *_fleet_warnings(fleet, catalog),
        *_driver_warnings(best, examiner, catalog),
        *_code_warnings(build, examiner, catalog),
        *_build_warnings(build, examiner, request, catalog),
        *_base_warnings(best, request, fleet, catalog),
    ]
    return tuple(dict.fromkeys(found))


def _name_warnings(best: Candidate, request: Request, catalog: Catalog) -> Iterable[Warned]:
    if request.asked_as is None:
        return
    rows = catalog.tensorflow_gpu
    last = max((row.version for row in rows if row.content == "wheel"), key=version)
    stubs = ", ".join(row.version for row in rows if row.content == "stub")
    yield Warned(
        code="framework-renamed",
        message=f"{request.asked_as} is {TITLES[request.framework]}: up to "
        f"{last.rpartition('.')[0]} the package of that name holds the same files, {stubs} is an "
        "empty stub that fails to install, and nothing follows.",
        fix=f"Ask for --framework {request.framework}; this plan installs "
        f"{best.build.requirement}.",
    )


def _fleet_warnings(fleet: Fleet, catalog: Catalog) -> Iterable[Warned]:
    for site in fleet.sites:
        where = f" on {site.where}" if site.where else ""
        if site.driver is None and site.driver_cuda is None:
            yield Warned(
                code="driver-not-seen",
                message=f"No NVIDIA driver was seen{where}; whether it can run this was not "
                "checked.",
                fix="Install the driver, or name it: --driver 515.65.01",
            )
        elif site.driver is not None and not site.branch_known:
            yield Warned(
                code="driver-branch-unknown",
                message=f"Driver branch {site.driver.split('.')[0]}{where} is not in the catalog; "
                "it is taken as backward compatible with the nearest older one.",
                fix="Bring the catalog up to date: provision catalog refresh",
            )
        if site.driver is not None and "." not in site.driver:
            yield Warned(
                code="driver-branch-only",
                message=f"Of the driver{where} only the branch {site.driver} is known; its newest "
                "release is assumed.",
                fix="Give the whole version, as nvidia-smi prints it: --driver 535.104.05",
            )
        if not site.devices:
            seen = "is known" if site.devices is None else "was seen"
            yield Warned(
                code="gpu-not-seen",
                message=f"No GPU {seen}{where}; whether the wheel has code for it was not checked.",
                fix="Name it: --gpu 'RTX 3090' or --gpu 8.6",
            )
        for device in site.devices or ():
            yield from _device_warnings(site, device, where, catalog)
            if device.host_arch and fleet.archs and device.host_arch not in fleet.archs:
                yield Warned(
                    code="gpu-other-arch",
                    message=f"{device.words}{where} is found in {device.host_arch} machines only, "
                    f"and the plan is for {fleet.archs[0]}.",
                    fix='Correct "arch" in the host facts file (uname -m prints it).',
                )
    for label in fleet.arch_missing[:1]:
        where = f" on {label}" if not fleet.one_host else ""
        yield Warned(
            code="arch-not-known",
            message=f"The CPU architecture{where} is not known; {DEFAULT_ARCH} is assumed.",
            fix='Add "arch" to the host facts file (uname -m prints it).',
        )


def _device_warnings(site: Site, device: Device, where: str, catalog: Catalog) -> Iterable[Warned]:
    if device.capability is None:
        match = catalog.find_gpu(device.name) if device.name else None
        near = match.suggestions if match else ()
        maybe = f" Is it one of: {', '.join(near)}?" if near else ""
        yield Warned(
            code="gpu-unknown",
            message=f"The compute capability of {device.name or 'a GPU'}{where} is not known; "
            f"it was not checked.{maybe}",
            fix="Read it with: nvidia-smi --query-gpu=compute_cap --format=csv "
            "and give it: --gpu 8.6",
        )
        return
    listed = {row.compute_capability for row in device.rows}
    if device.name and listed and device.capability not in listed:
        yield Warned(
            code="gpu-capability-differs",
            message=f"The host says compute capability {show_capability(device.capability)} of "
            f"{device.name}{where}, the catalog {show_capability(min(listed))}; the host is "
            "believed.",
            fix="Check it: nvidia-smi --query-gpu=name,compute_cap --format=csv",
        )
    first = first_branch_for(device, catalog)
    if site.seen and documented_blocker(site, device, catalog) is not None:
        yield Warned(
            code="gpu-driver-differs",
            message=f"By NVIDIA's documents driver {site.driver} does not drive {device.words}; "
            f"the driver{where} lists it, and is believed.",
            fix="If the host file was edited by hand, give the driver in words: --driver VERSION",
        )
    elif first is not None and first.adds_confidence != "confirmed" and is_older(site, first):
        yield Warned(
            code="driver-older-than-gpu",
            message=f"Driver branch {first.branch} is said to be the first that drives "
            f"{device.words}; {site.driver}{where} is older and may not see it at all.",
            fix=f"Upgrade the driver to branch {first.branch} or newer; nvidia-smi shows whether "
            "it sees the GPU.",
        )


def _driver_warnings(best: Candidate, examiner: Examiner, catalog: Catalog) -> Iterable[Warned]:
    build = best.build
    fits = dict.fromkeys(examiner.drivers(build.cuda))
    if any(fit.verdict == "minor-version" for fit in fits):
        yield Warned(
            code="minor-version-limits",
            message=f"Minor-version compatibility leaves out PTX of CUDA {build.cuda}: kernels "
            "compiled at run time by its nvrtc or nvcc to PTX, and features that need the newer "
            "driver, do not work.",
            fix=f"Upgrade the driver to one that natively supports CUDA {build.cuda} if you "
            "compile kernels yourself.",
        )
    row = catalog.forward_compat(build.cuda)
    for fit in fits:
        if fit.verdict != "forward" or row is None or fit.have is None:
            continue
        yield Warned(
            code="needs-cuda-compat",
            message=f"The image must bring {row.package}, and it works on data-centre GPUs only.",
            fix="Upgrade the driver, or keep the nvidia/cuda base of this plan, which brings it.",
        )
        branch = catalog.branch_of(fit.have)
        if branch and branch.branch not in (row.official_base_branches or ()):
            yield Warned(
                code="compat-branch-not-listed",
                message=f"NVIDIA's current page no longer lists driver branch {branch.branch} "
                f"for {row.package}; its images still accept it.",
                fix="Upgrade the driver to a branch that is still supported.",
            )


def notes(best: Candidate, examiner: Examiner, catalog: Catalog) -> tuple[Note, ...]:
    """What is worth knowing about the hosts and the build, and asks for nothing."""
    found = [*_foreign_notes(examiner.fleet), *_code_notes(best.build, examiner, catalog)]
    return tuple(dict.fromkeys(found))


def _foreign_notes(fleet: Fleet) -> Iterable[Note]:
    for one in fleet.foreign:
        where = "" if fleet.one_host else f" on {one.label}"
        yield Note(
            code="gpu-left-out",
            message=f"{one.name}{where} is not an NVIDIA GPU ({one.vendor}) and is left out.",
        )


def _code_notes(build: Build, examiner: Examiner, catalog: Catalog) -> Iterable[Note]:
    for gpu, code in _older_code(build, examiner):
        if gpu.compute_capability in _proven(examiner, catalog):
            yield Note(
                code="older-binary-code",
                message=f"{_called(gpu)} runs code compiled for {code}: correct, not tuned for it.",
            )


def _older_code(build: Build, examiner: Examiner) -> Iterable[tuple[GpuVerdict, str]]:
    """The GPUs that run code of a lower minor, and that code."""
    for gpu in dict.fromkeys(examiner.gpus(build)):
        if gpu.ok and gpu.runs.endswith("binary"):
            yield gpu, gpu.runs.removesuffix(" binary")


def _proven(examiner: Examiner, catalog: Catalog) -> frozenset[str]:
    """The capabilities here on which code of a lower minor is known to run."""
    return frozenset(
        show_capability(device.capability)
        for device in examiner.fleet.devices
        if device.capability and is_proven(device.capability, catalog)
    )


def _called(gpu: GpuVerdict) -> str:
    return f"{gpu.name or 'A GPU'} ({gpu.compute_capability})"


def _code_warnings(build: Build, examiner: Examiner, catalog: Catalog) -> Iterable[Warned]:
    for gpu, code in _older_code(build, examiner):
        if gpu.compute_capability not in _proven(examiner, catalog):
            yield Warned(
                code="binary-unproven",
                message=f"{_called(gpu)} should run code compiled for {code}, which has the same "
                "major; nobody is known to have shown it on this generation.",
                fix="Prove it: provision verify IMAGE",
            )
    for gpu in dict.fromkeys(examiner.gpus(build)):
        if gpu.ok and gpu.runs == "PTX":
            yield Warned(
                code="ptx-jit",
                message=f"{_called(gpu)} runs PTX, which the driver compiles at first use: the "
                "first start takes minutes.",
                fix="Keep CUDA_CACHE_PATH on a volume.",
            )
        if gpu.runs == "unknown" and gpu.compute_capability:
            yield Warned(
                code="code-not-known",
                message=f"What {build.name} for {build.arch} was compiled for is not known; "
                f"{_called(gpu)} was not checked.",
                fix="Read it out of the wheel: provision catalog measure URL",
            )
    for device in examiner.fleet.devices:
        if examiner.code(build, device) == "PTX":  # said above
            continue
        if build.ptx_only and device.capability and device.capability >= build.ptx_only[0]:
            yield Warned(
                code="ptx-jit",
                message=f"Many kernels of {build.name} are there as PTX only for {device.words}; "
                "the driver compiles each at its first use.",
                fix="Keep CUDA_CACHE_PATH on a volume.",
            )
    if build.sm_doubted and build.sm:
        yield Warned(
            code="code-likely",
            message=f"The architectures of {build.name} for {build.arch} were not read from the "
            "wheel itself; they are likely.",
            fix="Read them: provision catalog measure URL",
        )


def _build_warnings(
    build: Build, examiner: Examiner, request: Request, catalog: Catalog
) -> Iterable[Warned]:
    if build.existence != "confirmed":
        yield Warned(
            code=f"build-{build.existence}",
            message=f"That {build.name} was published is {build.existence}, not confirmed.",
            fix="Ask the index: provision catalog refresh; else take an alternative.",
        )
    for device in examiner.fleet.devices:
        if device.capability is None or not is_old(device.capability, catalog):
            continue
        cudnn = examiner.cudnn(build) or ""
        lowest = min(capabilities_of_cudnn(cudnn, build.cuda, catalog), default=None)
        if lowest is not None and device.capability < lowest:
            yield Warned(
                code="cudnn-dropped-gpu",
                message=f"cuDNN {cudnn}, which {build.name} loads, lists no GPU below "
                f"{show_capability(lowest)}; convolutions may fail on {device.words}.",
                fix="Take a build with an older cuDNN (see provision plan --matrix).",
            )
    release = catalog.torch_release(build.version) if build.framework == "pytorch" else None
    names = {name_of(text) for text in request.companions}
    for name in PAIRED:
        if release and name in names and getattr(release, name) is None:
            yield Warned(
                code="companion-unpaired",
                message=f"No {name} release is paired with PyTorch {build.version}; the installer "
                "chooses one by its metadata.",
                fix=f"Name the version that you have tested: --with '{name}==...'",
            )


def _base_warnings(
    best: Candidate, request: Request, fleet: Fleet, catalog: Catalog
) -> Iterable[Warned]:
    if best.base is not None and best.base.glibc is None and request.python is None:
        yield Warned(
            code="base-python-not-known",
            message=f"Which Python {best.base.reference} has is not known; the plan takes it to be "
            f"{best.python}.",
            fix="Name the one it has, for example: --python 3.11",
        )
    if best.base is None or best.base.kind != "registry":
        return
    name = best.base.reference.partition("@")[0].rpartition("/")[2]
    if best.build.libraries == "system" and not name.startswith("cuda:"):
        yield Warned(
            code="base-must-bring-cuda",
            message=f"{best.build.name} expects CUDA {best.build.cuda} and cuDNN "
            f"{best.build.cudnn or ''} in the image; whether {best.base.reference} has them was "
            "not checked, and without them it runs on the CPU.",
            fix="Leave --base away: the plan then takes an nvidia/cuda image that has them.",
        )
    image = catalog.cuda_image(name.partition(":")[2]) if name.startswith("cuda:") else None
    if image is None:
        return
    if starts_everywhere(image, fleet.sites, catalog) is None:
        yield Warned(
            code="base-start-not-known",
            message=f"Whether nvidia/cuda:{image.tag} starts here depends on its start rule or on "
            "the brand of a GPU, which is not known.",
            fix="Name the GPU (--gpu 'RTX 3090'), or try: docker run --rm --gpus all "
            f"nvidia/cuda:{image.tag} true",
        )
    if image.status == "end-of-life":
        yield Warned(
            code="base-end-of-life",
            message=f"nvidia/cuda:{image.tag} is past its end of life; NVIDIA deletes such tags.",
            fix="Copy it into a registry of yours and name it with --base.",
        )
