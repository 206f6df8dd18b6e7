"""Rules for packages that are installed together, in any kind of file: torch, CUDA, and others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from provision.catalog.catalog import Catalog
from provision.doctor.lint.findings import Level, RuleHit, table
from provision.doctor.lint.installs import Install
from provision.doctor.lint.pair_rules import RULES as PAIR_RULES
from provision.doctor.lint.setting import (
    CUDA_PACKAGE,
    PackageRule,
    Setting,
    applies_on_linux,
    lower_bound,
    needs_gpu,
    python_tags,
    pythons_of_marker,
)
from provision.doctor.lint.tensorflow_rules import (
    jax_extra_retired,
    jax_for_cpus,
    jax_old_index,
    tensorflow_gpu,
)
from provision.doctor.lint.torch_build import default_build, default_tag, installed_build
from provision.sources.packages import RequestedPackage

_CUDA_TAG = re.compile(r"cu\d+")
COMPANIONS = ("torchvision", "torchaudio")


def retired_names(install: Install, _: Setting, __: Catalog) -> Iterator[RuleHit]:
    """Packages whose name is now only a stub that fails."""
    for row in table("known.toml")["retired"]:
        package = install.named(row["name"])
        if package is None or package.address:
            continue
        instead = row.get("instead")
        yield RuleHit(
            rule="package-retired",
            at=package.at,
            level=row.get("level"),
            message=row["says"],
            fix=row["fix"],
            swap=(package.written, instead) if instead and package.written == row["name"] else None,
        )


def torch_pairs(install: Install, _: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """torchvision or torchaudio for another torch: each release requires exactly one torch."""
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
        yield RuleHit(
            rule="torch-pair",
            at=package.at,
            message=f"{name} {package.release} is made for torch {owners[0].version}, and torch "
            f"{row.version} is asked for.",
            fix=f"Write {name}=={wanted}{'+' + package.local if package.local else ''}.",
            swap=(f"=={package.pin}", f"=={wanted}{'+' + package.local if package.local else ''}"),
        )


def torch_tag_unknown(install: Install, _: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """+cuXXX for a CUDA for which this release, or every release, has no wheels."""
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
    if not having and int(tag[2:]) > max(int(row.tag[2:]) for row in catalog.torch if row.cuda):
        return  # for a newer CUDA than all that is known
    tags = sorted({row.tag for row in builds if row.cuda}, key=lambda one: (len(one), one))
    yield RuleHit(
        rule="torch-build-missing",
        at=package.at,
        message=f"There is no wheel of torch {package.release} for {tag}.",
        fix=f"Choose one of {', '.join(tags)}.",
    )


def torch_local_without_index(
    install: Install, setting: Setting, catalog: Catalog
) -> Iterator[RuleHit]:
    """+cuXXX without the index that has it: the default index has no local versions."""
    package = _tagged(install)
    if package is None or not install.default_index:
        return
    level: Level = "error" if setting.whole else "warning"
    yield RuleHit(
        rule="torch-index-missing",
        at=package.at,
        level=level,
        message=f"{package.name} {package.pin} is not on the default index, which has no versions "
        f"with +{package.local}.",
        fix=f"Add --extra-index-url {catalog.pytorch_index(str(package.local))}",
    )


def torch_index_of_another_tag(install: Install, _: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """+cu118 with the index of cu121."""
    package = _tagged(install)
    tags = install.torch_tags
    if package is None or not tags or package.local in tags:
        return
    if any(source.torch_tag is None for source in install.sources) or not install.complete:
        return
    source = install.sources[0]
    yield RuleHit(
        rule="torch-index-other",
        at=source.at,
        message=f"PyTorch's index {', '.join(sorted(tags))} has no {package.name} {package.pin}.",
        fix=f"Write {catalog.pytorch_index(str(package.local))}",
        swap=(str(source.torch_tag), str(package.local)),
    )


def _tagged(install: Install) -> RequestedPackage | None:
    for name in ("torch", *COMPANIONS):
        package = install.named(name)
        if (
            package is not None
            and not package.address
            and re.fullmatch(r"cu\d+|cpu", package.local or "")
        ):
            return package
    return None


def torch_for_cpus(install: Install, setting: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """A torch without CUDA: a warning if anything else is for GPUs, a note if nothing says for
    what it is.
    """
    torch = install.named("torch")
    if torch is None or setting.for_cpus:
        return
    for_gpus = setting.for_gpus or needs_gpu(install)
    index = next((one for one in install.sources if one.torch_tag == "cpu"), None)
    build = installed_build(install, setting, catalog)
    if torch.local == "cpu" or (
        torch.local is None
        and index is not None
        and install.torch_tags == {"cpu"}
        and (build is None or build.cuda is None)
    ):
        of_cpus = table("known.toml")["python"]["cpu_only"]
        if not for_gpus and (setting.for_tests or any(map(install.named, of_cpus))):
            return
        tag = default_tag(catalog, build.version if build else torch.release, "x86_64")
        example = f", for example from {catalog.pytorch_index(tag)}" if tag else "."
        yield RuleHit(
            rule="torch-cpu-wheel",
            level="warning" if for_gpus else "note",
            at=torch.at if index is None else index.at,
            message="This torch has no CUDA, and what it is installed with is for GPUs."
            if for_gpus
            else "This torch is a build for the CPU: it uses no GPU.",
            fix=f"{'Take' if for_gpus else 'If it is meant for a GPU, take'} a CUDA build{example}",
        )
        return
    if not for_gpus:
        return
    build = default_build(catalog, torch.release, setting.arch)
    if setting.arch == "aarch64" and install.default_index and build and build.cuda is None:
        tags = sorted(
            {row.tag for row in catalog.torch_builds(torch.release, arch="aarch64") if row.cuda}
        )
        yield RuleHit(
            rule="torch-cpu-wheel",
            at=torch.at,
            message=f"On ARM the default index has torch {torch.release} without CUDA.",
            fix=f"Add --index-url {catalog.pytorch_index(tags[-1])}"
            if tags
            else "Take a newer torch, or one that is built for ARM with CUDA.",
        )


def numpy_of_another_abi(install: Install, _: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """NumPy 2 beside a torch whose wheels were compiled against NumPy 1."""
    torch, numpy = install.named("torch"), install.named("numpy")
    row = catalog.torch_release(torch.release) if torch and torch.release else None
    if row is None or row.numpy is None or numpy is None:
        return
    bound = numpy.pin or lower_bound(numpy)
    if bound is not None and not SpecifierSet(row.numpy).contains(bound, prereleases=True):
        yield RuleHit(
            rule="torch-numpy",
            at=numpy.at,
            message=f"torch {row.version} was compiled for numpy{row.numpy}; with {numpy.written} "
            "it says that NumPy is not available.",
            fix=f'Write "numpy{row.numpy}", or take a newer torch.',
        )


def mixed_cuda(install: Install, setting: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """NVIDIA's libraries for another CUDA than torch's, or in versions that torch does not
    allow.
    """
    torch = install.named("torch")
    build = installed_build(install, setting, catalog)
    if torch is None or build is None or build.cuda is None:
        return
    major = build.cuda.partition(".")[0]
    wanted = dict(pin.split("==", 1) for pin in build.pins if "==" in pin)
    for package in install.packages:
        match = CUDA_PACKAGE.fullmatch(package.name)
        if match and match["major"] != major:
            yield RuleHit(
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
            yield RuleHit(
                rule="cuda-pin-conflict",
                at=package.at,
                level="error" if setting.whole and install.default_index else "warning",
                message=f"torch {torch.release} asks for {package.name}=={asked}, so no installer "
                f"can also take {package.release}.",
                fix=f"Write {package.name}=={asked}, or leave the line out.",
                swap=(f"=={package.pin}", f"=={asked}"),
            )


def no_wheel_for_python(install: Install, setting: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """A pinned framework without a wheel for the target Python."""
    for name in ("torch", "tensorflow", "jaxlib"):
        package = install.named(name)
        if package is None or package.address or not package.release:
            continue
        tags = python_tags(catalog, name, package.release)
        pythons = setting.pythons or pythons_of_marker(package, catalog)
        if not tags or not pythons:
            continue
        if all(f"cp{python.replace('.', '')}" not in tags for python in pythons):
            newest = max(tags, key=lambda tag: int(tag[3:]))
            yield RuleHit(
                rule="python-without-wheel",
                at=package.at,
                message=f"There is no wheel of {name} {package.release} for Python "
                f"{', '.join(pythons)}.",
                fix=f"Take Python {newest[2]}.{newest[3:]}, or another {name}.",
            )


def onnxruntime_twice(install: Install, _: Setting, __: Catalog) -> Iterator[RuleHit]:
    """Two packages that write the same files: which of them gets imported is undefined."""
    plain, gpu = install.named("onnxruntime"), install.named("onnxruntime-gpu")
    if plain is not None and gpu is not None:
        yield RuleHit(
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
    *PAIR_RULES,
)


def judge_install(install: Install, setting: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """Applies every rule to packages that are installed together."""
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


def _unambiguous(packages: Iterable[RequestedPackage]) -> tuple[RequestedPackage, ...]:
    """Without names that have two different pins: markers decide which one counts."""
    packages = tuple(packages)
    pins: dict[str, set[str]] = {}
    for package in packages:
        pins.setdefault(package.name, set()).add(str(package.specifier) + package.address)
    return tuple(one for one in packages if len(pins[one.name]) == 1)
