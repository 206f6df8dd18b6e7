"""Rules for two packages that an installer puts together and that do not work together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from provision.catalog.catalog import Catalog
from provision.catalog.pairs import cudas_beside, exact_cudas, pairs_of, versions_for
from provision.doctor.lint.build_rules import imports_torch
from provision.doctor.lint.findings import RuleHit, table
from provision.doctor.lint.installs import Install
from provision.doctor.lint.setting import CUDA_PACKAGE, PackageRule, Setting, lower_bound
from provision.doctor.lint.torch_build import installed_build, newest_of
from provision.sources.packages import RequestedPackage

_LINKS = re.compile(
    r"torch-(?P<a>\d+\.\d+)\.\d+(?:\+|%2B)(?P<tag>cu\d+|cpu)|/(?P<tag2>cu\d+|cpu)/torch-?(?P<b>\d+\.\d+)"
)


def package_pairs(install: Install, _: Setting, __: Catalog) -> Iterator[RuleHit]:
    """A package of which each release requires one torch, beside another torch."""
    torch = install.named("torch")
    asked = torch.release if torch is not None else None
    for row in table("packages.toml")["pairs"] if asked else ():
        package = install.named(row["name"])
        wanted = row["torch"].get(package.release) if package and not package.address else None
        if package is None or wanted in {None, asked}:
            continue
        mates = [name for name, one in row["torch"].items() if one == asked]
        own = f"{row['name']}=={mates[-1]}, or " if mates else ""
        yield RuleHit(
            rule="package-pair",
            at=package.at,
            level="warning" if "--no-deps" in install.options else None,
            message=f"{package.written} requires torch {wanted}, and torch {asked} is asked for.",
            fix=f"Write {own}torch=={wanted}",
        )


def unnamed_pairs(install: Install, _: Setting, __: Catalog) -> Iterator[RuleHit]:
    """A package with libraries for some releases of torch, which its metadata does not say."""
    torch = install.named("torch")
    asked = torch.release if torch is not None else None
    if asked is None:
        return
    for package in install.packages:
        release = package.release or ""
        pairs = pairs_of(package.name) if release and not package.address else ()
        pair = next((one for one in pairs if release in one.versions), None)
        if pair is None or asked in pair.torch:
            continue
        own = versions_for(package.name, asked)
        yield RuleHit(
            rule="package-pair",
            at=package.at,
            level="warning",
            message=f"{package.written} has libraries for torch{pair.torch}, and torch "
            f"{asked} is asked for: they do not load.",
            fix=f'Write "{package.name}{own}", or "torch{pair.torch}"'
            if own
            else f'Write "torch{pair.torch}"',
        )


def package_cuda(install: Install, setting: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """A package that loads the libraries of a CUDA that neither torch nor the image brings."""
    if setting.cudas is None or setting.for_cpus:
        return
    build = installed_build(install, setting, catalog)
    torch = [build.cuda] if build is not None and build.cuda else []
    cudas = [*torch, *setting.cudas]
    majors = {one.partition(".")[0] for one in cudas}
    if not cudas or (install.named("torch") is not None and build is None):
        return
    brought = {
        match["major"] for one in install.packages if (match := CUDA_PACKAGE.match(one.name))
    }
    if any(one.name.startswith(("cuda-toolkit", "nvidia-cuda-")) for one in install.packages):
        return
    for row in table("packages.toml")["needs_cuda"]:
        package = install.named(row["name"])
        major = _cuda_of(row, package) if package else None
        if package is None or major is None or major in majors | brought:
            continue
        if package.extras & set(row["extras"]) or package.address:
            continue
        who = f"torch {build.version}" if build is not None and torch else "the image"
        name = package.name if package.pin is None else f"{package.name} {package.release}"
        today = "" if package.pin else " of today"
        yield RuleHit(
            rule="package-cuda",
            at=package.at,
            message=f"{name}{today} is built for CUDA {major} ({row['library']}.{major}), and "
            f"{who} here brings CUDA {cudas[0]}: {row['fails']}.",
            fix=row["fix"].format(
                major=major,
                other=(other := cudas[0].partition(".")[0]),
                releases=_releases_for(row, other),
            ),
        )


def library_for_each_cuda(
    install: Install, setting: Setting, catalog: Catalog
) -> Iterator[RuleHit]:
    """A package that loads only a library for exactly the CUDA of torch, and has none for it."""
    torch = install.named("torch")
    build = installed_build(install, setting, catalog)
    if build is None or torch is None or build.cuda is None or setting.for_cpus:
        return
    for package in install.packages:
        release = package.release or ""
        rows = exact_cudas(package.name, release) if release and not package.address else None
        before = [first for first in rows or () if Version(first) <= Version(release)]
        if rows is None or not before or build.cuda in rows[before[-1]]:
            continue
        if not torch.pin and not (setting.is_pip and _nothing_limits(install, torch, package)):
            continue  # a lock file may hold torch, or another package
        have = rows[before[-1]]
        later = next((n for n in rows if n not in before and build.cuda in rows[n]), None)
        others = catalog.torch_builds(build.version, arch=setting.arch)
        tags = [row.tag for row in others if row.cuda in have]
        ways = [f'write "{package.name}>={later}"'] if later else []
        ways += [f"take torch from {catalog.pytorch_index(tags[-1])}"] if tags else []
        fix = ", or ".join(ways) or f"take a torch for another CUDA, or a newer {package.name}"
        yield RuleHit(
            rule="package-cuda",
            at=package.at,
            message=f"{package.name} {release} has libraries for CUDA "
            f"{cudas_beside(have, build.cuda)}, and takes only the one for torch's CUDA. That of "
            f"torch {build.version} here is {build.cuda}: its functions for GPUs fail.",
            fix=f"{fix[:1].upper()}{fix[1:]}.",
        )


def _releases_for(row: Mapping[str, Any], major: str) -> str:
    """The releases of a package for a CUDA, as a specifier: ">=1.19,<1.27"."""
    bounds = row["until"]
    number = next((n for n, (_, cuda) in enumerate(bounds) if cuda == major), None)
    if number is None:
        return ""
    least = [f">={bounds[number - 1][0]}"] if number else []
    most = [f"<{bounds[number][0]}"] if bounds[number][0] else []
    return ",".join([*least, *most])


def _cuda_of(row: Mapping[str, Any], package: RequestedPackage) -> str | None:
    """The CUDA major of the release that will be installed; None: that depends."""
    bounds = row["until"]
    if package.pin is not None:
        return str(next(c for until, c in bounds if not until or package.pin < Version(until)))
    fits = [c for newest, c in row.get("newest", []) if package.specifier.contains(newest)]
    if len(bounds) == 1:
        return str(bounds[0][1])
    return str(fits[-1]) if fits else None


def torch_too_old(install: Install, setting: Setting, _: Catalog) -> Iterator[RuleHit]:
    """A package that runs without torch, in a release that this torch is too old for: installers
    put both together, and the package then says that there is no PyTorch.
    """
    torch = install.named("torch")
    if torch is None or torch.release is None or not install.complete:
        return
    for row in table("packages.toml")["needs_torch"]:
        package = install.named(row["name"])
        if package is None or package.address:
            continue
        rows = [(first, least) for first, least in row["from"] if _takes(package, first)]
        if not rows or Version(torch.release) >= Version(rows[-1][1]):
            continue
        if package.pin is None and not (setting.is_pip and _nothing_limits(install, package)):
            continue  # a lock file may hold it, or another package
        first = next(
            first for first, least in row["from"] if Version(torch.release) < Version(least)
        )
        which = "takes" if package.pin else "takes today"
        yield RuleHit(
            rule="torch-too-old",
            at=package.at,
            level=None if package.pin else "warning",
            message=f"The {package.name} that this {which} needs torch {rows[-1][1]} or newer, and "
            f"torch {torch.release} is asked for: it runs as if there were no PyTorch.",
            fix=f'Write "{package.name}<{first}", or take torch {rows[-1][1]} or newer.',
        )


def _takes(package: RequestedPackage, first: str) -> bool:
    """Whether the release that is installed is `first` or a newer one."""
    if package.pin is not None:
        return package.pin >= Version(first)
    return package.specifier.contains(first)


def numpy_of_today(install: Install, setting: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """NumPy without a bound beside a torch that was compiled for NumPy 1: 2 is the newest."""
    torch, numpy = install.named("torch"), install.named("numpy")
    row = catalog.torch_release(torch.release) if torch and torch.release else None
    known = table("packages.toml")["numpy"]
    if row is None or row.numpy is None or numpy is None or numpy.pin or not install.complete:
        return
    if not setting.is_pip or not _nothing_limits(install, numpy):
        return  # a lock file may hold it, or another package
    if setting.pythons and set(setting.pythons) <= set(known["pythons_without"]):
        return
    taken = [one for one in known["newest"] if numpy.specifier.contains(one)]
    least = lower_bound(numpy)
    if not taken or not SpecifierSet(row.numpy).contains(least or "0", prereleases=True):
        return  # NumPy 2 is asked for: another rule says so
    yield RuleHit(
        rule="torch-numpy",
        at=numpy.at,
        level="warning",
        message=f"torch {row.version} was compiled for numpy{row.numpy}, and {numpy.written} takes "
        f"{taken[-1]} today: torch then says that NumPy is not available.",
        fix=f'Write "numpy{row.numpy}", or take a newer torch.',
    )


def _nothing_limits(install: Install, *packages: RequestedPackage) -> bool:
    """Whether no other package is held in a way that may hold one of these, too."""
    if install.files or "--constraint" in install.options:
        return False
    known = set(table("packages.toml")["unlimiting"]["names"])
    return not any(
        one not in packages
        and one.name not in known
        and (
            one.address or any(s.operator in {"==", "===", "<", "<=", "~="} for s in one.specifier)
        )
        for one in install.packages
    )


def torch_of_default_index(
    install: Install, setting: Setting, catalog: Catalog
) -> Iterator[RuleHit]:
    """An index of PyTorch beside the default one, which has a newer torch for another CUDA: pip
    takes the newest of both. uv takes the index that is named.
    """
    torch, tags = install.named("torch"), install.torch_tags
    if torch is None or torch.address or torch.pin or not setting.is_pip or len(tags) != 1:
        return
    if any(one.replaces_default or one.torch_tag is None for one in install.sources):
        return
    (tag,) = tags
    there = newest_of(torch, setting, catalog, tag=tag)
    taken = newest_of(torch, setting, catalog)
    if there is None or taken is None or Version(taken.version) <= Version(there.version):
        return
    yield RuleHit(
        rule="torch-index-passed-over",
        at=torch.at,
        message=f"pip takes the newest torch, which is {taken.version} for CUDA {taken.cuda} on "
        f"the default index; {tag} ends with {there.version}.",
        fix=f"Write torch=={there.version}+{tag}, or make it the only index: --index-url "
        f"{catalog.pytorch_index(tag)}",
    )


def index_without_release(install: Install, _: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """A pinned torch that the index of the file never got."""
    torch, tags = install.named("torch"), install.torch_tags
    if torch is None or torch.address or torch.release is None or torch.local or len(tags) != 1:
        return
    if any(one.torch_tag is None for one in install.sources):
        return
    (tag,) = tags
    builds = catalog.torch_builds(torch.release)
    versions = {row.version for row in catalog.torch if row.tag == tag and "pypi" not in row.at[:1]}
    if not builds or not versions or any(row.tag == tag for row in builds):
        return
    ordered = sorted(versions, key=Version)
    ends = Version(torch.release) > Version(ordered[-1])
    having = sorted({row.tag for row in builds if row.cuda}, key=lambda one: (len(one), one))
    only = any(one.replaces_default for one in install.sources)
    yield RuleHit(
        rule="torch-build-missing",
        at=torch.at,
        level="error" if only else "warning",
        message=f"The index of {tag} has no torch {torch.release}: "
        + (f"it ends with {ordered[-1]}." if ends else f"it begins with {ordered[0]}.")
        + ("" if only else " The one of the default index is taken, if any."),
        fix=f"Choose the index of {', '.join(having)}, or torch=={ordered[-1 if ends else 0]}.",
    )


def jax_and_torch(install: Install, setting: Setting, catalog: Catalog) -> Iterator[RuleHit]:
    """A pinned jax and a pinned torch that require different cuDNN."""
    jax, torch = install.named("jax"), install.named("torch")
    build = installed_build(install, setting, catalog)
    if jax is None or jax.release is None or torch is None or torch.release is None:
        return
    if build is None or build.cudnn is None or build.cuda is None:
        return
    for plugin in catalog.jax_plugins:
        same = str(plugin.cuda_major) == build.cuda.partition(".")[0]
        if plugin.version != jax.release or plugin.extra not in jax.extras or not same:
            continue
        if plugin.cudnn is None or SpecifierSet(plugin.cudnn).contains(build.cudnn):
            continue
        yield RuleHit(
            rule="jax-torch-cudnn",
            at=jax.at,
            message=f"jax {jax.release} requires cuDNN {plugin.cudnn}, and torch {torch.release} "
            f"cuDNN {build.cudnn}: no installer can take both.",
            fix="Use a newer torch or an earlier jax, or an environment for each.",
        )


def wheels_of_another_torch(install: Install, setting: Setting, _: Catalog) -> Iterator[RuleHit]:
    """A page of wheels that were built for another torch than the one installed."""
    torch = install.named("torch")
    release = torch.release if torch is not None else setting.torch
    if release is None:
        return
    minor = ".".join(release.split(".")[:2])
    for source in install.sources:
        found = _LINKS.search(source.url)
        theirs = (found["a"] or found["b"]) if found else None
        if found is None or theirs == minor:
            continue
        yield RuleHit(
            rule="wheels-of-another-torch",
            at=source.at,
            message=f"The wheels of {found[0].strip('/')} are built for torch {theirs}, and torch "
            f"{release} is installed: they do not load.",
            fix=f"Name the page for torch {minor}, or take torch {theirs}.",
        )


def torch_beside_its_extension(install: Install, setting: Setting, _: Catalog) -> Iterator[RuleHit]:
    """torch and a package that imports it while it is built, in one list of requirements."""
    if setting.is_command or install.named("torch") is None or not setting.is_pip:
        return
    for package in imports_torch(install):
        yield RuleHit(
            rule="torch-at-build",
            at=package.at,
            message=f"{package.written} imports torch while it is built; pip builds it before the "
            "torch of the same file is installed.",
            fix="Move it to a file of its own, and install that second, with --no-build-isolation.",
        )


RULES: tuple[PackageRule, ...] = (
    package_pairs,
    unnamed_pairs,
    package_cuda,
    library_for_each_cuda,
    torch_too_old,
    numpy_of_today,
    torch_of_default_index,
    index_without_release,
    jax_and_torch,
    wheels_of_another_torch,
    torch_beside_its_extension,
)
