"""All installable builds of the frameworks in one format, so that the rules see no difference
between PyTorch, TensorFlow and JAX.

A PyTorch build is a row of the catalog. A TensorFlow build is a release and its wheel. A JAX build
is a release, its plugin, and one of the toolkits that the plugin can load: JAX leaves the toolkit's
version open, so we choose it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from provision.catalog.catalog import Catalog
from provision.model.plan import TITLES, ComputeCapability, Framework, Plan
from provision.resolve.specifiers import within

# What jax-cudaNN-plugin[with-cuda] loads of the toolkit, as the cuda-toolkit package calls it.
_JAX_LOADS = "cublas,cudart,cufft,cupti,cusolver,cusparse,nvcc,nvjitlink,nvrtc"


class Build(NamedTuple):
    """One build of one framework for one CUDA and one CPU architecture.

    `tag` is the PyTorch wheel tag ("cu117"), None elsewhere. `sm` has the capabilities with binary
    code (`compiled_on_host`: those that the framework compiles for when it runs); () is not read.
    `libraries`: "wheels" bring CUDA with them, "system" expects it in the image. `cudnn` is the
    version, `cudnn_spec` the range if the wheel leaves it open. `lines` are the requirements
    beside the framework's own that make it this build. `published` is the day of the release, or
    that of the catalog where it was not recorded.

    Some kernels may exist as PTX only: `ptx_only` is its target and whether no other GPU
    compiles it, `ptx_only_cuda` the CUDA whose drivers are the first to do so.
    """

    framework: Framework
    version: str
    cuda: str
    arch: str
    python_tags: tuple[str, ...]
    sm: tuple[ComputeCapability, ...]
    ptx: ComputeCapability | None
    glibc: str | None
    existence: Literal["confirmed", "likely", "doubtful"]
    at: tuple[str, ...]
    source: str
    sm_source: str | None
    requirement: str
    tag: str | None = None
    cudnn: str | None = None
    cudnn_spec: str | None = None
    nccl: str | None = None
    libraries: Literal["wheels", "system"] = "wheels"
    lines: tuple[str, ...] = ()
    yanked: bool = False
    prerelease: bool = False
    ptx_only: tuple[ComputeCapability, bool] | None = None
    ptx_only_cuda: str | None = None
    ptx_only_source: str | None = None
    sm_doubted: bool = False
    compiled_on_host: bool = False
    published: str = ""

    @property
    def name(self) -> str:
        """ "PyTorch 2.0.1+cu117", "TensorFlow 2.18.1 (CUDA 12.5)"."""
        title = f"{TITLES[self.framework]} {self.version}"
        return f"{title}+{self.tag}" if self.tag else f"{title} (CUDA {self.cuda})"


@lru_cache(maxsize=16)
def builds_of(framework: Framework, arch: str, catalog: Catalog) -> tuple[Build, ...]:
    """Every build with GPU code of a framework for one CPU architecture."""
    makers = {"pytorch": _pytorch, "tensorflow": _tensorflow, "jax": _jax}
    return tuple(makers[framework](arch, catalog))


def build_of(plan: Plan, catalog: Catalog) -> Build:
    """The build that a plan, which fits, has chosen."""
    chosen = (plan.framework_version, plan.cuda, plan.wheel_tag)
    builds = builds_of(plan.framework, plan.arch or "", catalog)
    return next(build for build in builds if (build.version, build.cuda, build.tag) == chosen)


def _pytorch(arch: str, catalog: Catalog) -> Iterator[Build]:
    releases = {row.version: row for row in catalog.torch_releases}
    today = catalog.files["torch.json"].text("date")
    for row in catalog.torch:
        if row.arch != arch or row.cuda is None:
            continue
        release = releases.get(row.version)
        yield Build(
            framework="pytorch",
            version=row.version,
            tag=row.tag,
            cuda=row.cuda,
            arch=arch,
            python_tags=row.python_tags,
            sm=row.sm,
            ptx=row.ptx,
            cudnn=row.cudnn,
            nccl=row.nccl,
            glibc=row.glibc,
            existence=row.existence,
            at=row.at,
            source=row.source,
            sm_source=row.sm_source,
            sm_doubted=row.sm_confidence != "confirmed",
            requirement=f"torch=={row.version}",
            yanked=release is not None and release.yanked,
            published=(release.upload_time if release else None) or today,
        )


def _tensorflow(arch: str, catalog: Catalog) -> Iterator[Build]:
    releases = {row.version: row for row in catalog.tensorflow_releases}
    today = catalog.files["tensorflow.json"].text("date")
    for wheel in catalog.tensorflow_wheels:
        row = releases[wheel.version]
        if wheel.arch != arch or not wheel.gpu or row.cuda is None:
            continue
        pins = dict(_split(pin) for pin in wheel.pins)
        cudnn = next((spec for name, spec in pins.items() if "-cudnn-" in name), "")
        nccl = next((spec for name, spec in pins.items() if "-nccl-" in name), "")
        extra = row.libraries == "extra"
        pythons = wheel.python_tags
        if extra and wheel.extra_python_tags is not None:
            pythons = wheel.extra_python_tags
        yield Build(
            framework="tensorflow",
            version=row.version,
            cuda=row.cuda,
            arch=arch,
            python_tags=pythons,
            sm=row.sm,
            ptx=row.ptx,
            cudnn=_exactly(cudnn) or (None if extra else row.cudnn),
            cudnn_spec=cudnn or None,
            nccl=_exactly(nccl),
            glibc=wheel.glibc,
            existence="confirmed",
            at=("pypi",),
            source=row.source,
            sm_source=row.sm_source,
            ptx_only=_target(row.ptx_only) if row.ptx_only else None,
            ptx_only_cuda=row.ptx_only_cuda,
            ptx_only_source=row.ptx_only_source,
            libraries="wheels" if extra else "system",
            requirement=f"tensorflow{'[and-cuda]' if extra else ''}=={row.version}",
            yanked=row.yanked,
            prerelease=row.prerelease,
            published=row.upload_time or today,
        )


def _jax(arch: str, catalog: Catalog) -> Iterator[Build]:
    releases = {row.version: row for row in catalog.jax_releases if arch in row.archs}
    today = catalog.files["jax.json"].text("date")
    toolkits: dict[str, list[ComputeCapability]] = {}
    for toolkit in catalog.toolkits:
        if toolkit.on_pypi:
            toolkits.setdefault(toolkit.cuda, []).extend(toolkit.sm_targets)
    for plugin in catalog.jax_plugins:
        release = releases.get(plugin.version)
        if release is None or plugin.broken:
            continue
        for cuda, targets in toolkits.items():
            if cuda.partition(".")[0] != str(plugin.cuda_major):
                continue
            # "X.Y.*" gives the newest update
            newest = f"{cuda}.999"
            if not within(cuda, plugin.toolkits) or not within(newest, plugin.cuda_runtime or ""):
                continue
            yield Build(
                framework="jax",
                version=release.version,
                cuda=cuda,
                arch=arch,
                python_tags=release.python_tags,
                sm=tuple(sorted({sm for sm in targets if sm >= plugin.sm_min})),
                ptx=None,
                cudnn_spec=plugin.cudnn,
                glibc=release.glibc,
                existence="confirmed",
                at=("pypi",),
                source=plugin.source,
                sm_source=plugin.driver_source,
                requirement=f"jax[{plugin.extra}]=={release.version}",
                lines=(f"cuda-toolkit[{_JAX_LOADS}]=={cuda}.*",),
                compiled_on_host=True,
                published=release.upload_time or today,
            )


def _target(text: str) -> tuple[ComputeCapability, bool]:
    """ "sm_90a" -> ((9, 0), True), "sm_80" -> ((8, 0), False)."""
    number = text.removeprefix("sm_").removesuffix("a")
    return (int(number[:-1]), int(number[-1])), text.endswith("a")


def _split(pin: str) -> tuple[str, str]:
    """ "nvidia-cudnn-cu12<10.0,>=9.3" -> ("nvidia-cudnn-cu12", "<10.0,>=9.3")."""
    end = next((i for i, c in enumerate(pin) if c in "<>=!~ "), len(pin))
    return pin[:end], pin[end:].strip()


def _exactly(spec: str) -> str | None:
    return spec[2:] if spec.startswith("==") and "," not in spec and "*" not in spec else None
