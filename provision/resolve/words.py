"""A plan's reasons and warnings: each with its stable code (docs/codes.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provision.catalog import Catalog
from provision.model import HostFacts, IndexCandidate, Reason, Request, Warned
from provision.resolve.candidates import Candidate, capability_of
from provision.resolve.packages import name_of

DEFAULT_ARCH = "x86_64"


def reasons(
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


def warnings(
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
                message=f"The CPU architecture{where} is not known; {DEFAULT_ARCH} is assumed.",
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
    names = {name_of(text) for text in request.companions}
    for name in ("torchvision", "torchaudio"):
        if release and name in names and getattr(release, name) is None:
            yield Warned(
                code="companion-unpaired",
                message=f"No {name} release is paired with PyTorch {build.version}; the installer "
                "chooses one by its metadata.",
                fix=f"Name the version that you have tested: --with '{name}==...'",
            )
