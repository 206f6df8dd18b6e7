"""Rules over packages that are installed together, wherever they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from provision.doctor.lint.findings import Found, Level, table
from provision.doctor.lint.installs import Install, Package

if TYPE_CHECKING:
    from provision.catalog import Catalog
    from provision.catalog.later_rows import TensorflowRelease
    from provision.catalog.rows import Arch, TorchBuild

_CUDA_PACKAGE = re.compile(r"nvidia-[a-z-]+-cu(?P<major>\d\d)")
_CUDA_TAG = re.compile(r"cu\d+")
COMPANIONS = ("torchvision", "torchaudio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known beside the packages. `pythons`: those that it may be installed for ("3.12"),
    none: not known; `whole`: no other file or flag takes part, so what is missing here is missing.
    """

    for_gpus: bool = False
    for_cpus: bool = False
    whole: bool = False
    pythons: tuple[str, ...] = ()
    arch: Arch = "x86_64"


PackageRule = Callable[[Install, Setting, "Catalog"], Iterator[Found]]


def tensorflow_gpu(install: Install, setting: Setting, catalog: Catalog) -> Iterator[Found]:
    """The newest tensorflow-gpu that is admitted is the empty one that only fails."""
    package = install.named("tensorflow-gpu")
    if package is None:
        return
    admitted = [
        row
        for row in catalog.tensorflow_gpu
        if package.specifier.contains(row.version, prereleases=False)
        and not Version(row.version).is_prerelease
    ]
    newest = max(admitted, key=lambda row: Version(row.version), default=None)
    if newest is not None and newest.content == "stub":
        yield Found(
            rule="tensorflow-gpu-retired",
            at=package.at,
            message=f"{package.written} is {newest.version}, an empty package that fails on "
            "purpose when it is installed.",
            fix=_tensorflow_for(setting, catalog),
            swap=("tensorflow-gpu", "tensorflow[and-cuda]")
            if not package.specifier and _has_extra(setting, catalog)
            else None,
        )


def _admitted(setting: Setting, catalog: Catalog) -> list[TensorflowRelease]:
    """The releases of TensorFlow for one of these Pythons, the newest first."""
    return sorted(
        (
            row
            for row in catalog.tensorflow_releases
            if not (row.prerelease or row.yanked)
            and any(
                SpecifierSet(row.requires_python or "").contains(f"{python}.99")
                for python in setting.pythons
            )
        ),
        key=lambda row: Version(row.version),
        reverse=True,
    )


def _has_extra(setting: Setting, catalog: Catalog) -> bool:
    """Whether a release that brings CUDA can be installed; yes where no Python is known."""
    if not setting.pythons:
        return True
    return any(row.libraries == "extra" for row in _admitted(setting, catalog))


def _tensorflow_for(setting: Setting, catalog: Catalog) -> str:
    if _has_extra(setting, catalog):
        return "Write tensorflow[and-cuda]: tensorflow itself has the GPU code."
    pythons = ", ".join(setting.pythons)
    newest = next(iter(_admitted(setting, catalog)), None)
    if newest is None:
        return f"No TensorFlow is for Python {pythons}: build from a newer image."
    return (
        f"Write tensorflow=={newest.version} and build from an image with CUDA {newest.cuda} and "
        f"cuDNN {newest.cudnn}: tensorflow[and-cuda] is not for Python {pythons}."
    )


def retired_names(install: Install, _: Setting, __: Catalog) -> Iterator[Found]:
    """Packages whose name only stands for an error now."""
    for row in table("known.toml")["retired"]:
        package = install.named(row["name"])
        if package is None or package.address:
            continue
        instead = row.get("instead")
        yield Found(
            rule="package-retired",
            at=package.at,
            level=row.get("level"),
            message=row["says"],
            fix=row["fix"],
            swap=(package.written, instead) if instead and package.written == row["name"] else None,
        )


def torch_pairs(install: Install, _: Setting, catalog: Catalog) -> Iterator[Found]:
    """torchvision or torchaudio of another torch: each release asks for one torch exactly."""
    torch = install.named("torch")
    row = catalog.torch_release(torch.release) if torch and torch.release else None
    if torch is None or row is None or row.pairing_note:
        return
    for name in COMPANIONS:
        package = install.named(name)
        wanted = row.torchvision if name == "torchvision" else row.torchaudio
        if package is None or package.release is None or wanted is None:
            continue
        owners = [
            other
            for other in catalog.torch_releases
            if package.release == (other.torchvision if name == "torchvision" else other.torchaudio)
        ]
        if not owners or row in owners or any(other.pairing_note for other in owners):
            continue
        yield Found(
            rule="torch-pair",
            at=package.at,
            message=f"{name} {package.release} is made for torch {owners[0].version}, and torch "
            f"{row.version} is asked for.",
            fix=f"Write {name}=={wanted}{'+' + package.local if package.local else ''}.",
            swap=(f"=={package.pin}", f"=={wanted}{'+' + package.local if package.local else ''}"),
        )


def torch_tag_unknown(install: Install, _: Setting, catalog: Catalog) -> Iterator[Found]:
    """+cuXXX of a CUDA for which this release, or every release, has no wheels."""
    package = install.named("torch")
    if package is None or package.address or not package.release or not package.local:
        return
    tag, version = package.local, Version(package.release)
    builds = catalog.torch_builds(package.release)
    if not builds or not _CUDA_TAG.fullmatch(tag) or tag in {row.tag for row in builds}:
        return
    having = sorted({Version(row.version) for row in catalog.torch if row.tag == tag})
    old = tag in table("known.toml")["python"]["other_torch_tags"]
    if (not having and old) or (having and having[0] < version < having[-1]):
        return
    if not having and _is_newer_than_all(tag, catalog):
        return
    tags = sorted({row.tag for row in builds if row.cuda}, key=lambda one: (len(one), one))
    yield Found(
        rule="torch-build-missing",
        at=package.at,
        message=f"There is no wheel of torch {package.release} for {tag}.",
        fix=f"Choose one of {', '.join(tags)}.",
    )


def _is_newer_than_all(tag: str, catalog: Catalog) -> bool:
    """Whether a tag is of a newer CUDA than all that the catalog has wheels for."""
    return int(tag[2:]) > max(int(row.tag[2:]) for row in catalog.torch if row.cuda)


def torch_local_without_index(
    install: Install, setting: Setting, catalog: Catalog
) -> Iterator[Found]:
    """+cuXXX, and nothing names the index that has it: the default index has no local versions."""
    package = _tagged(install)
    if package is None or not install.default_index:
        return
    level: Level = "error" if setting.whole else "warning"
    yield Found(
        rule="torch-index-missing",
        at=package.at,
        level=level,
        message=f"{package.name} {package.pin} is not on the default index, which has no versions "
        f"with +{package.local}.",
        fix=f"Add --extra-index-url {catalog.pytorch_index(str(package.local))}",
    )


def torch_index_of_another_tag(install: Install, _: Setting, catalog: Catalog) -> Iterator[Found]:
    """+cu118, and the index of cu121."""
    package = _tagged(install)
    tags = install.torch_tags
    if package is None or not tags or package.local in tags:
        return
    if any(source.torch_tag is None for source in install.sources) or not install.complete:
        return
    source = install.sources[0]
    yield Found(
        rule="torch-index-other",
        at=source.at,
        message=f"The index of {', '.join(sorted(tags))} has no {package.name} {package.pin}.",
        fix=f"Write {catalog.pytorch_index(str(package.local))}",
        swap=(str(source.torch_tag), str(package.local)),
    )


def _tagged(install: Install) -> Package | None:
    for name in ("torch", *COMPANIONS):
        package = install.named(name)
        if (
            package is not None
            and not package.address
            and re.fullmatch(r"cu\d+|cpu", package.local or "")
        ):
            return package
    return None


def torch_for_cpus(install: Install, setting: Setting, catalog: Catalog) -> Iterator[Found]:
    """A torch without CUDA where all else is for GPUs."""
    torch = install.named("torch")
    if torch is None or setting.for_cpus or not (setting.for_gpus or _needs_gpu(install)):
        return
    index = next((one for one in install.sources if one.torch_tag == "cpu"), None)
    if torch.local == "cpu" or (index is not None and install.torch_tags == {"cpu"}):
        tag = _default_tag(catalog, torch.release, "x86_64")
        yield Found(
            rule="torch-cpu-wheel",
            at=torch.at if index is None else index.at,
            message="This torch has no CUDA, and what it is installed with is for GPUs.",
            fix=f"Take a CUDA build, for example from {catalog.pytorch_index(tag)}"
            if tag
            else "Take a CUDA build.",
        )
        return
    build = _default_build(catalog, torch.release, setting.arch)
    if setting.arch == "aarch64" and install.default_index and build and build.cuda is None:
        tags = sorted(
            {row.tag for row in catalog.torch_builds(torch.release, arch="aarch64") if row.cuda}
        )
        yield Found(
            rule="torch-cpu-wheel",
            at=torch.at,
            message=f"On ARM the default index has torch {torch.release} without CUDA.",
            fix=f"Add --index-url {catalog.pytorch_index(tags[-1])}"
            if tags
            else "Take a newer torch, or one that is built for ARM with CUDA.",
        )


def _needs_gpu(install: Install) -> bool:
    names = frozenset(table("known.toml")["python"]["gpu_only"])
    return any(
        package.name in names or _CUDA_PACKAGE.fullmatch(package.name)
        for package in install.packages
    )


def numpy_of_another_abi(install: Install, _: Setting, catalog: Catalog) -> Iterator[Found]:
    """NumPy 2 beside a torch whose wheels were compiled against NumPy 1."""
    torch, numpy = install.named("torch"), install.named("numpy")
    row = catalog.torch_release(torch.release) if torch and torch.release else None
    if row is None or row.numpy is None or numpy is None:
        return
    bound = numpy.pin or _lower_bound(numpy)
    if bound is not None and not SpecifierSet(row.numpy).contains(bound, prereleases=True):
        yield Found(
            rule="torch-numpy",
            at=numpy.at,
            message=f"torch {row.version} was compiled for numpy{row.numpy}; with {numpy.written} "
            "it says that NumPy is not available.",
            fix=f'Write "numpy{row.numpy}", or take a newer torch.',
        )


def _lower_bound(package: Package) -> Version | None:
    bounds = [
        Version(one.version.removesuffix(".*"))
        for one in package.specifier
        if one.operator in {">=", ">", "~="} or one.version.endswith(".*")
        if one.operator != "!="
    ]
    return max(bounds, default=None)


def mixed_cuda(install: Install, setting: Setting, catalog: Catalog) -> Iterator[Found]:
    """NVIDIA's libraries of another CUDA than torch's, or in versions that torch refuses."""
    torch = install.named("torch")
    build = _chosen_build(install, setting, catalog)
    if torch is None or build is None or build.cuda is None:
        return
    major = build.cuda.partition(".")[0]
    wanted = dict(pin.split("==", 1) for pin in build.pins if "==" in pin)
    for package in install.packages:
        match = _CUDA_PACKAGE.fullmatch(package.name)
        if match and match["major"] != major:
            yield Found(
                rule="cuda-mixed",
                at=package.at,
                message=f"{package.name} is of CUDA {match['major']}, and torch {torch.release} "
                f"here is of CUDA {build.cuda}.",
                fix=f"Remove {package.name}: torch brings its own.",
            )
            continue
        asked = wanted.get(package.name)
        if asked and package.release and "--no-deps" not in install.options:
            if Version(asked) == Version(package.release):
                continue
            yield Found(
                rule="cuda-pin-conflict",
                at=package.at,
                level="error" if setting.whole and install.default_index else "warning",
                message=f"torch {torch.release} asks for {package.name}=={asked}, so no installer "
                f"can also take {package.release}.",
                fix=f"Write {package.name}=={asked}, or leave the line out.",
                swap=(f"=={package.pin}", f"=={asked}"),
            )


def no_wheel_for_python(install: Install, setting: Setting, catalog: Catalog) -> Iterator[Found]:
    """A pinned framework without a wheel for the Python that it is meant for."""
    for name in ("torch", "tensorflow", "jaxlib"):
        package = install.named(name)
        if package is None or package.address or not package.release:
            continue
        tags = _python_tags(catalog, name, package.release)
        pythons = setting.pythons or _pythons_of_marker(package, catalog)
        if not tags or not pythons:
            continue
        if all(f"cp{python.replace('.', '')}" not in tags for python in pythons):
            newest = max(tags, key=lambda tag: int(tag[3:]))
            yield Found(
                rule="python-without-wheel",
                at=package.at,
                message=f"There is no wheel of {name} {package.release} for Python "
                f"{', '.join(pythons)}.",
                fix=f"Take Python {newest[2]}.{newest[3:]}, or another {name}.",
            )


def _python_tags(catalog: Catalog, name: str, version: str) -> frozenset[str]:
    """The Pythons of a release on any machine: {"cp310", "cp311"}."""
    if name == "torch":
        groups = [row.python_tags for row in catalog.torch_builds(version)]
    elif name == "tensorflow":
        groups = [row.python_tags for row in catalog.tensorflow_wheels if row.version == version]
    else:
        groups = [row.python_tags for row in catalog.jax_releases if row.version == version]
    found = {tag.partition("-")[0] for tags in groups for tag in tags}
    return frozenset(tag for tag in found if re.fullmatch(r"cp3\d+", tag))


def _pythons_of_marker(package: Package, catalog: Catalog) -> tuple[str, ...]:
    """The Pythons that the line's own marker leaves; none where it says nothing of Python."""
    marker = package.requirement.marker if package.requirement else None
    if marker is None or "python_" not in str(marker):
        return ()
    return tuple(one for one in known_pythons(catalog) if holds(package, one, "x86_64"))


def known_pythons(catalog: Catalog) -> list[str]:
    """The Pythons that a torch was ever built for: ["3.6", ..., "3.14"]."""
    tags = {tag.partition("-")[0] for row in catalog.torch for tag in row.python_tags}
    minors = sorted(int(tag[3:]) for tag in tags if re.fullmatch(r"cp3\d+", tag))
    return [f"3.{minor}" for minor in minors]


def holds(package: Package, python: str, machine: str) -> bool:
    """Whether a line applies on Linux with this Python."""
    marker = package.requirement.marker if package.requirement else None
    if marker is None:
        return True
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    return marker.evaluate(environment)


def applies_on_linux(package: Package, catalog: Catalog) -> bool:
    """Whether a line applies on x86_64 Linux with any Python that is known."""
    if package.requirement is None or package.requirement.marker is None:
        return True
    return any(holds(package, python, "x86_64") for python in known_pythons(catalog))


def jax_extra_retired(install: Install, _: Setting, catalog: Catalog) -> Iterator[Found]:
    """An extra that newer releases do not have: the installer warns, and takes jax for CPUs."""
    known = table("known.toml")["python"]
    package = install.named("jax")
    if package is None:
        return
    retired = [
        extra for extra in package.extras if re.fullmatch(known["jax_extras_retired"], extra)
    ]
    last = Version(known["jax_extras_until"])
    if not retired or (package.pin is not None and package.pin <= last):
        return
    if package.pin is None and _capped(package, last):
        return
    newest = max(row.cuda_major for row in catalog.jax_plugins)
    majors = sorted({row.extra for row in catalog.jax_plugins})
    yield Found(
        rule="jax-extra-retired",
        at=package.at,
        message=f"jax has no extra {', '.join(retired)} any more: the installer passes over it, "
        "and what it installs has no CUDA.",
        fix=f"Write one of {', '.join(f'jax[{extra}]' for extra in majors)}; the newest CUDA is "
        f"{newest}.",
        swap=(retired[0], majors[-1]) if package.pin is None else None,
    )


def _capped(package: Package, last: Version) -> bool:
    """Whether nothing newer than `last` is admitted: a later release of any number is not."""
    next_releases = (f"{last.major}.{last.minor}.{last.micro + 1}", f"{last.major + 1}.0")
    return not any(package.specifier.contains(version) for version in next_releases)


def jax_for_cpus(install: Install, setting: Setting, _: Catalog) -> Iterator[Found]:
    """jax without an extra where all else is for GPUs."""
    package = install.named("jax")
    if package is None or package.extras or setting.for_cpus or not setting.for_gpus:
        return
    if not setting.whole or install.sources or not install.complete:
        return
    if any("cuda" in other.name for other in install.packages) or "--no-deps" in install.options:
        return
    yield Found(
        rule="jax-cpu",
        at=package.at,
        message=f"{package.written} alone installs jax without CUDA.",
        fix="Write jax[cuda12] or jax[cuda13].",
    )


def jax_old_index(install: Install, _: Setting, __: Catalog) -> Iterator[Found]:
    """The page of links of old releases beside the jax of today."""
    pattern = table("known.toml")["python"]["jax_index"]
    source = next((one for one in install.sources if re.search(pattern, one.url)), None)
    package, jaxlib = install.named("jax"), install.named("jaxlib")
    if source is None or package is None:
        return
    if package.specifier or (jaxlib is not None and jaxlib.specifier):
        return  # releases of their time are on that page and nowhere else
    yield Found(
        rule="jax-old-index",
        at=source.at,
        message="That page has the CUDA builds of old releases only; those of today are on the "
        "default index.",
        fix="Leave the page out, and write jax[cuda12] or jax[cuda13].",
    )


def onnxruntime_twice(install: Install, _: Setting, __: Catalog) -> Iterator[Found]:
    """Two packages that write the same files: which of them is imported is chance."""
    plain, gpu = install.named("onnxruntime"), install.named("onnxruntime-gpu")
    if plain is not None and gpu is not None:
        yield Found(
            rule="onnxruntime-twice",
            at=plain.at,
            message="onnxruntime and onnxruntime-gpu write the same files; the one for CPUs may "
            "be the one that stays.",
            fix="Leave onnxruntime out.",
        )


RULES: tuple[PackageRule, ...] = (
    tensorflow_gpu,
    retired_names,
    torch_pairs,
    torch_tag_unknown,
    torch_local_without_index,
    torch_index_of_another_tag,
    torch_for_cpus,
    numpy_of_another_abi,
    mixed_cuda,
    no_wheel_for_python,
    jax_extra_retired,
    jax_for_cpus,
    jax_old_index,
    onnxruntime_twice,
)


def judge_install(install: Install, setting: Setting, catalog: Catalog) -> Iterator[Found]:
    """What every rule finds in packages that are installed together."""
    kept = tuple(one for one in install.packages if applies_on_linux(one, catalog))
    install = Install(
        packages=_unambiguous(kept),
        sources=install.sources,
        at=install.at,
        complete=install.complete,
        options=install.options,
        files=install.files,
    )
    for rule in RULES:
        yield from rule(install, setting, catalog)


def _unambiguous(packages: Iterable[Package]) -> tuple[Package, ...]:
    """Without names that come with two different pins: which one counts, markers decide."""
    packages = tuple(packages)
    pins: dict[str, set[str]] = {}
    for package in packages:
        pins.setdefault(package.name, set()).add(str(package.specifier) + package.address)
    return tuple(one for one in packages if len(pins[one.name]) == 1)


def chosen_tag(install: Install, setting: Setting, catalog: Catalog) -> str | None:
    """The tag of the torch that will be installed: "cu118", "cpu"; None: not known, or none."""
    torch = install.named("torch")
    if torch is None:
        return None
    if torch.local:
        return torch.local
    if len(install.torch_tags) == 1 and len(install.sources) == 1:
        return next(iter(install.torch_tags))
    if install.default_index and not torch.address:
        return _default_tag(catalog, torch.release, setting.arch)
    return None


def _chosen_build(install: Install, setting: Setting, catalog: Catalog) -> TorchBuild | None:
    torch, tag = install.named("torch"), chosen_tag(install, setting, catalog)
    if torch is None or tag is None or torch.release is None:
        return None
    builds = catalog.torch_builds(torch.release, arch=setting.arch)
    return next((row for row in builds if row.tag == tag), None)


def _default_build(catalog: Catalog, version: str | None, arch: Arch) -> TorchBuild | None:
    if version is None:
        return None
    builds = catalog.torch_builds(version, arch=arch)
    return next((row for row in builds if "pypi" in row.at), None)


def _default_tag(catalog: Catalog, version: str | None, arch: Arch) -> str | None:
    build = _default_build(catalog, version, arch)
    return build.tag if build else None
