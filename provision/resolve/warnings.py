"""Warnings and notes of a plan: each with its stable code (docs/codes.md)."""

from __future__ import annotations

from collections.abc import Iterable

from provision.catalog.catalog import Catalog
from provision.model.plan import TITLES, ComputeCapability, GpuVerdict, Note, Request, Warned
from provision.resolve.bases import starts_everywhere
from provision.resolve.builds import Build, builds_of
from provision.resolve.candidates import BuildAnswers, Candidate, Examiner
from provision.resolve.fleet import Fleet, show_capability, show_sm
from provision.resolve.host_warnings import driver_warnings, fleet_warnings, partly_ptx
from provision.resolve.packages import PAIRED, in_few, leading, name_of, pair_for
from provision.resolve.rules.driven_gpus import is_old
from provision.resolve.rules.gpu_code import is_proven, lowest_of_cudnn
from provision.resolve.specifiers import version
from provision.resolve.trial import Trial


def warnings(
    best: Candidate, answers: BuildAnswers, request: Request, examiner: Examiner
) -> tuple[Warned, ...]:
    """Warnings about the hosts, the build, the base and the request."""
    catalog = examiner.catalog
    fleet, build = answers.fleet, best.build
    found = [
        *_name_warnings(best, request, catalog),
        *fleet_warnings(fleet, catalog),
        *driver_warnings(best, answers, catalog),
        *_code_warnings(build, answers, catalog),
        *_build_warnings(build, answers, request, examiner),
        *_base_warnings(best, request, fleet, examiner),
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
        f"{last.rpartition('.')[0]} the package of that name has the same files, {stubs} is an "
        "empty stub that fails to install, and there are no later releases.",
        fix=f"Use --framework {request.framework}; this plan installs {best.build.requirement}.",
    )


def notes(answers: BuildAnswers, request: Request, catalog: Catalog) -> tuple[Note, ...]:
    """Remarks about the hosts, the build and the request that need no action."""
    found = [*_foreign_notes(answers.fleet), *_code_notes(answers, catalog)]
    return tuple(dict.fromkeys([*found, *_package_notes(request), *request.notes]))


def _package_notes(request: Request) -> Iterable[Note]:
    """Only an index knows which releases of the framework a package works with."""
    if request.led_by is None and (names := leading(request)):
        title = TITLES[request.framework]
        yield Note(
            code="packages-decide",
            message=f"{in_few(list(names))} may need another {title}. Locking asks the index, and "
            "takes the newest releases that work together here.",
        )


def _foreign_notes(fleet: Fleet) -> Iterable[Note]:
    for one in fleet.foreign:
        where = "" if fleet.one_host else f" on {one.label}"
        yield Note(
            code="gpu-left-out",
            message=f"{one.name}{where} is not an NVIDIA GPU ({one.vendor}) and is ignored.",
        )


def _code_notes(answers: BuildAnswers, catalog: Catalog) -> Iterable[Note]:
    for gpu, code in _older_code(answers):
        if gpu.compute_capability in _proven(answers, catalog):
            yield Note(
                code="older-binary-code",
                message=f"{_called(gpu)} runs code compiled for {code}: correct, but not tuned "
                "for it.",
            )


def _older_code(answers: BuildAnswers) -> Iterable[tuple[GpuVerdict, str]]:
    """The GPUs that run code of a lower minor, and that code."""
    for gpu in dict.fromkeys(answers.gpus):
        if gpu.ok and gpu.runs.endswith("binary"):
            yield gpu, gpu.runs.removesuffix(" binary")


def _proven(answers: BuildAnswers, catalog: Catalog) -> frozenset[str]:
    """The capabilities here on which code of a lower minor is known to run."""
    return frozenset(
        show_capability(device.capability)
        for device in answers.fleet.devices
        if device.capability and is_proven(device.capability, catalog)
    )


def _called(gpu: GpuVerdict) -> str:
    return f"{gpu.name or 'A GPU'} ({gpu.compute_capability})"


def _code_warnings(build: Build, answers: BuildAnswers, catalog: Catalog) -> Iterable[Warned]:
    for gpu, code in _older_code(answers):
        if gpu.compute_capability not in _proven(answers, catalog):
            yield Warned(
                code="binary-unproven",
                message=f"{_called(gpu)} should run code compiled for {code}, which has the same "
                "major version, but no source confirms that for this generation.",
                fix="Test it: provision verify IMAGE",
            )
    for gpu in dict.fromkeys(answers.gpus):
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
                message=f"The architectures of {build.name} for {build.arch} are unknown, so "
                f"{_called(gpu)} was not checked.",
                fix="Test it: provision verify IMAGE",
            )
    by_minor = any(fit.verdict == "minor-version" for fit in answers.drivers)
    for device in () if by_minor else partly_ptx(build, answers):  # then said with its limits
        yield Warned(
            code="ptx-jit",
            message=f"For {device.words}, {build.name} has many kernels only as PTX; "
            "the driver compiles each at its first use.",
            fix="Keep CUDA_CACHE_PATH on a volume.",
        )
    yield from _xla_warnings(build, answers, catalog)
    if build.sm_doubted and build.sm:
        yield Warned(
            code="code-likely",
            message=f"The architectures of {build.name} for {build.arch} were not read from the "
            "wheel itself, but assumed.",
            fix="Test it: provision verify IMAGE",
        )


def _xla_warnings(build: Build, answers: BuildAnswers, catalog: Catalog) -> Iterable[Warned]:
    """XLA generates the PTX of the CUDA that TensorFlow was built with, and aborts on a GPU that
    this CUDA does not know (https://github.com/tensorflow/tensorflow/issues/111958).
    """
    toolkit = catalog.toolkit(build.cuda)
    if build.framework != "tensorflow" or toolkit is None:
        return
    for device in answers.fleet.devices:
        if device.capability and device.capability > max(toolkit.sm_targets):
            yield Warned(
                code="xla-older-than-gpu",
                message=f"{build.name} runs on {device.words}, but what its XLA compiles (with "
                f"jit_compile) aborts there: CUDA {build.cuda} has no PTX for "
                f"{show_sm(device.capability)}.",
                fix="Use NVIDIA's own container, nvcr.io/nvidia/tensorflow, or switch XLA off "
                "(jit_compile).",
            )


def _older_cudnn(
    build: Build, needed: ComputeCapability, request: Request, examiner: Examiner
) -> str:
    """What to type for the best build whose cuDNN supports a compute capability."""
    trial = Trial(examiner, builds_of(build.framework, build.arch, examiner.catalog))
    for candidate in trial.candidates(request._replace(cuda=None, framework_version=None)):
        other = candidate.build
        lowest = lowest_of_cudnn(examiner.cudnn(other), other.cuda, examiner.catalog)
        if lowest is not None and lowest <= needed:
            return f"Use --cuda {other.cuda} --framework-version {other.version}."
    return "Test it: provision verify IMAGE"


def _build_warnings(
    build: Build, answers: BuildAnswers, request: Request, examiner: Examiner
) -> Iterable[Warned]:
    catalog = examiner.catalog
    if build.existence != "confirmed":
        yield Warned(
            code=f"build-{build.existence}",
            message=f"The existence of {build.name} is {build.existence}, not confirmed.",
            fix="Check the index: provision catalog refresh",
        )
    for device in answers.fleet.devices:
        if device.capability is None or not is_old(device.capability, catalog):
            continue
        lowest = lowest_of_cudnn(examiner.cudnn(build), build.cuda, catalog)
        if lowest is not None and device.capability < lowest:
            cudnn = answers.cudnn
            yield Warned(
                code="cudnn-dropped-gpu",
                message=f"cuDNN {cudnn}, which {build.name} loads, supports no GPU below "
                f"{show_capability(lowest)}; convolutions may fail on {device.words}.",
                fix=_older_cudnn(build, device.capability, request, examiner),
            )
    release = catalog.torch_release(build.version) if build.framework == "pytorch" else None
    names = {name_of(text) for text in request.companions}
    for name in PAIRED:
        if release and name in names and getattr(release, name) is None:
            yield Warned(
                code="companion-unpaired",
                message=f"No {name} release is paired with PyTorch {build.version}; the installer "
                "chooses one by its metadata.",
                fix=f"Pin its last version: --with {name}=={last}"
                if (last := pair_for(build, name, catalog))
                else "Test it: provision verify IMAGE",
            )


def _base_warnings(
    best: Candidate, request: Request, fleet: Fleet, examiner: Examiner
) -> Iterable[Warned]:
    catalog = examiner.catalog
    if best.base is not None and best.base.glibc is None and request.python is None:
        yield Warned(
            code="base-python-not-known",
            message=f"The Python version of {best.base.reference} is unknown; the plan assumes "
            f"{best.python}.",
            fix=f"Specify it: --python {best.python}, or the one that it has.",
        )
    if best.base is None or best.base.kind != "registry":
        return
    name = best.base.reference.partition("@")[0].rpartition("/")[2]
    if best.build.libraries == "system" and not name.startswith("cuda:"):
        yield Warned(
            code="base-must-bring-cuda",
            message=f"{best.build.name} needs CUDA {best.build.cuda} and cuDNN "
            f"{best.build.cudnn or ''} in the image, else it runs on the CPU; whether "
            f"{best.base.reference} has them was not checked.",
            fix="Remove --base: the plan then uses an nvidia/cuda image that has them."
            if examiner.examine(best.build, request._replace(base=None), whole=True).fits
            else "Use a base that has them.",
        )
    image = catalog.cuda_image(name.partition(":")[2]) if name.startswith("cuda:") else None
    if image is None:
        return
    if starts_everywhere(image, fleet.sites, catalog) is None:
        yield Warned(
            code="base-start-not-known",
            message=f"Whether nvidia/cuda:{image.tag} starts depends on its start rule or "
            "the brand of a GPU, which is unknown.",
            fix="Specify the GPU (--gpu NAME), or try: docker run --rm --gpus all "
            f"nvidia/cuda:{image.tag} true",
        )
    if image.status == "end-of-life":
        yield Warned(
            code="base-end-of-life",
            message=f"nvidia/cuda:{image.tag} is past its end of life; NVIDIA deletes such tags.",
            fix="Copy it to your own registry and pass it with --base.",
        )
