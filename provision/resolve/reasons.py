"""The reasons for a plan, each with its stable code (docs/codes.md) and its source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provision.catalog.catalog import Catalog
from provision.model.plan import IndexCandidate, Reason, Request
from provision.resolve.builds import builds_of
from provision.resolve.candidates import BuildAnswers, Candidate, Examiner
from provision.resolve.fleet import DEFAULT_ARCH
from provision.resolve.packages import PYTORCH_INDEXES
from provision.resolve.rules.base import python_tags_of
from provision.resolve.rules.driver import DriverFit
from provision.resolve.specifiers import version
from provision.resolve.trial import is_asked_for


def driver_sentence(fit: DriverFit, catalog: Catalog) -> str:
    """How a driver runs a CUDA version, in one sentence."""
    have = f"Driver {fit.have}"
    if fit.verdict == "unverified":
        return "No NVIDIA driver was found, so it was not checked."
    if fit.verdict == "direct":
        return f"{have} natively supports CUDA up to {fit.native_up_to}, including {fit.cuda}."
    native = f"{have} natively supports CUDA {fit.native_up_to}"
    if fit.verdict == "minor-version":
        return f"{native}; CUDA {fit.cuda} runs on it by minor-version compatibility."
    if fit.verdict == "forward":
        row = catalog.forward_compat(fit.cuda)
        package = row.package if row else "cuda-compat"
        return (
            f"{native}; CUDA {fit.cuda} needs the package {package}, which works on these "
            "data-centre GPUs."
        )
    return f"CUDA {fit.cuda} needs driver {fit.need} or newer; found {fit.have}."


def reasons(
    best: Candidate,
    answers: BuildAnswers,
    indexes: Sequence[IndexCandidate],
    request: Request,
    examiner: Examiner,
) -> tuple[Reason, ...]:
    """Why this build, this driver verdict, this code, this Python, this base, this index."""
    build, catalog = best.build, examiner.catalog
    exact = of_all(best, request, examiner)
    found = [
        Reason(
            code="build-chosen",
            message=f"{build.name} for {build.arch} is {exact}; it was built for CUDA {build.cuda}."
            if not build.compiled_on_host
            else f"{build.name} for {build.arch} is {exact}; it loads any installed CUDA of this "
            f"major version, and {build.cuda} was chosen.",
            source=build.source,
        )
    ]
    found += [
        Reason(
            code=f"driver-{fit.verdict}", message=driver_sentence(fit, catalog), source=fit.source
        )
        for fit in answers.drivers
    ]
    found += [
        Reason(
            code="gpu-code",
            message=f"{gpu.name or 'A GPU'} ({gpu.compute_capability}) runs {gpu.runs} of this "
            "build" + (", compiled at run time." if build.compiled_on_host else "."),
            source=build.sm_source or build.source,
        )
        for gpu in dict.fromkeys(answers.gpus)
        if gpu.ok
    ]
    found.append(_python_reason(best, request, catalog))
    found += _base_reasons(best, request, catalog)
    release = catalog.torch_release(build.version) if build.framework == "pytorch" else None
    if release is not None and release.numpy:
        found.append(
            Reason(
                code="numpy-abi",
                message=f"numpy{release.numpy}: the NumPy ABI that this wheel was compiled for.",
                source=release.numpy_source or release.source,
            )
        )
    cudnn = answers.cudnn
    if build.cudnn_spec and cudnn and build.cudnn is None:
        found.append(
            Reason(
                code="cudnn-chosen",
                message=f"cuDNN {cudnn}: the newest version allowed by the wheel "
                f"({build.cudnn_spec}) that supports every GPU.",
                source=build.source,
            )
        )
    if build.framework == "pytorch" and build.arch != DEFAULT_ARCH and "pypi" not in build.at:
        found.append(
            Reason(
                code="pypi-wheel-is-cpu",
                message=f"PyPI's torch {build.version} for {build.arch} is a CPU build, although "
                "its metadata lists CUDA; the CUDA build is only on the PyTorch index.",
                source=build.source,
            )
        )
    first = indexes[0]
    found.append(
        Reason(
            code="index-order",
            message=f"{first.name} is tried first: {first.why}.",
            source=PYTORCH_INDEXES if build.framework == "pytorch" else build.source,
        )
    )
    return tuple(found)


def of_all(best: Candidate, request: Request, examiner: Examiner) -> str:
    """What the chosen build is among those that fit; of newer ones, why they were passed over."""
    if request.framework_version and not request.led_by:
        return "the requested release"
    works = f" and works with {request.led_by}" if request.led_by else ""
    chosen = version(best.build.version)
    builds = builds_of(request.framework, best.build.arch, examiner.catalog)
    for one in examiner.fitting(builds, request, is_asked_for):
        if version(one.build.version) <= chosen:
            continue
        if not examiner.examine(one.build, request, whole=True).fits:
            continue
        newer = one.build.version
        if best.has_cudnn and not one.has_cudnn:
            words = "and whose cuDNN supports every GPU"
            return f"the newest that fits{works} {words} (that of {newer} does not)"
        if one.driver.verdict == "forward" != best.driver.verdict:
            return f"the newest that fits{works} without cuda-compat ({newer} needs it)"
    return f"the newest that fits{works}"


def _python_reason(best: Candidate, request: Request, catalog: Catalog) -> Reason:
    pythons = python_tags_of(best.build)
    choice, source = "", best.build.source
    if request.python is None and len(pythons) > 1:
        choice = f" The wheels are for {pythons[0]} to {pythons[-1]} (--python)."
        source = f"{source}; {catalog.pythons[0].source}"
    why = best.python_why
    if request.led_by and request.python:
        why = f"{request.led_by} was chosen for it"
    return Reason(
        code="python-chosen",
        message=f"Python {best.python}: {why}.{choice}",
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
            message=f"{base.reference} contains {row.package if row else 'cuda-compat'}.",
            source=row.source if row else build.source,
        )
    elif build.libraries == "system":
        yield Reason(
            code="base-chosen",
            message=f"{build.name} needs CUDA and cuDNN from the system; {base.reference} "
            "contains them.",
            source=build.source,
        )
    elif request.flavour != "devel" and not request.apt:
        yield Reason(
            code="base-chosen",
            message="The wheels contain CUDA, so the base has none: never two in one image.",
            source=build.source,
        )
