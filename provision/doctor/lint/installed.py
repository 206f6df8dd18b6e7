"""Which framework each install of a file takes today: does it run on a host?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from provision.catalog.catalog import Catalog
from provision.catalog.rows import Arch
from provision.doctor.lint.installs import Install
from provision.doctor.lint.setting import Setting
from provision.doctor.lint.torch_build import installed_build
from provision.model.plan import PACKAGES, Framework
from provision.sources.packages import Position, RequestedPackage

_EXTRA = re.compile(r"cuda(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledFramework:
    """A release of a framework and the line that asks for it. `cudas`: the CUDA of its build, or
    those that it may be for, the newest first; (None,): the release decides; (): a build for the
    CPU. `python`: the only one that it may be for ("3.11"), None: several, or not known.
    `is_pinned`: the file names the release. `for_cpus`: so the file says; `compat`: the CUDA of the
    cuda-compat in the image that the file builds, "": it has none, None: not known.
    """

    framework: Framework
    release: str
    cudas: tuple[str | None, ...]
    arch: Arch
    at: Position
    python: str | None
    is_pinned: bool
    for_cpus: bool
    compat: str | None


def installed_frameworks(
    kind: str, path: str, text: str, catalog: Catalog
) -> list[InstalledFramework]:
    """Each framework that pip or uv installs by a file, once for each line and build. Installs
    without one, or with one that cannot be known, are left out. BadInputError: the file is invalid.
    """
    found: dict[tuple[Position, str, tuple[str | None, ...]], InstalledFramework] = {}
    for install, setting, compat in _installs(kind, path, text, catalog):
        for framework, package in PACKAGES.items():
            asked = install.named(package)
            build = asked and _BUILDS[framework](install, asked, setting, catalog)
            if asked is None or not build:
                continue
            release, cudas = build
            found[asked.at, release, cudas] = InstalledFramework(
                framework=framework,
                release=release,
                cudas=cudas,
                arch=setting.arch,
                at=asked.at,
                python=setting.pythons[0] if len(setting.pythons) == 1 else None,
                is_pinned=asked.release is not None,
                for_cpus=setting.for_cpus,
                compat=compat,
            )
    return list(found.values())


_Build = tuple[str, tuple["str | None", ...]]


def _torch(
    install: Install, _: RequestedPackage, setting: Setting, catalog: Catalog
) -> _Build | None:
    build = installed_build(install, setting, catalog)
    return (build.version, (build.cuda,) if build.cuda else ()) if build else None


def _tensorflow(
    install: Install, asked: RequestedPackage, setting: Setting, catalog: Catalog
) -> _Build | None:
    """PyPI's releases are for CUDA; another index may have any."""
    if not install.default_index:
        return None
    for row in reversed(catalog.tensorflow_releases):
        if (
            row.cuda is not None
            and _is_taken(row.version, asked)
            and _is_for(setting, row.requires_python)
        ):
            return row.version, (None,)
    return None


def _jax(
    install: Install, asked: RequestedPackage, setting: Setting, catalog: Catalog
) -> _Build | None:
    """Its extras name the major version of CUDA; without one it is for the CPU."""
    if not install.default_index:
        return None
    everything = [one for one in install.packages if one.name == asked.name]
    extras = {extra for one in everything for extra in one.extras}
    majors = {found[1] for extra in extras if (found := _EXTRA.match(extra))}
    wanted = {f"cp{python.replace('.', '')}" for python in setting.pythons}
    cudas = [cuda for cuda in catalog.cuda_versions() if cuda.partition(".")[0] in majors]
    for row in reversed(catalog.jax_releases):
        pythons = {one.partition("-")[0] for one in row.python_tags}
        if _is_taken(row.version, asked) and (not wanted or not wanted.isdisjoint(pythons)):
            return row.version, tuple(reversed(cudas))
    return None


_BUILDS = {"pytorch": _torch, "tensorflow": _tensorflow, "jax": _jax}


def _is_taken(release: str, asked: RequestedPackage) -> bool:
    """Whether an installer takes this release; pre-releases only if one is named."""
    if Version(release).is_prerelease and asked.release != release:
        return False
    return asked.specifier.contains(release, prereleases=True)


def _is_for(setting: Setting, pythons: str | None) -> bool:
    allowed = SpecifierSet(pythons or "")
    return not setting.pythons or any(allowed.contains(f"{one}.99") for one in setting.pythons)


def _installs(
    kind: str, path: str, text: str, catalog: Catalog
) -> Iterator[tuple[Install, Setting, str | None]]:
    """With what an image brings of cuda-compat."""
    if kind == "requirements":
        from provision.doctor.lint.requirements import install_of

        yield (*install_of(path, text), None)
    elif kind == "environment":
        from provision.doctor.lint.conda_environment import read_environment

        environment = read_environment(path, text, catalog)
        for install in environment.installs():
            yield install, environment.setting, None
    elif kind == "pyproject":
        from provision.doctor.lint.pyproject import installs_of
        from provision.sources.pyproject_file import PyprojectFile

        for install, setting in installs_of(PyprojectFile(path, text), catalog):
            yield install, setting, None
    elif kind == "dockerfile":
        from provision.doctor.lint.dockerfile import read_dockerfile
        from provision.doctor.lint.stage import StageView

        for stage in read_dockerfile(path, text).shipped():
            view = StageView(stage, catalog, path)
            for command, install in view.all_installs:
                yield install, view.setting(command, install), view.compat
