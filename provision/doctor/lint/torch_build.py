"""Which torch an installer takes today, pinned or not, and from which index."""

from __future__ import annotations

from packaging.version import Version

from provision.catalog.catalog import Catalog
from provision.catalog.rows import Arch
from provision.catalog.rows.frameworks import TorchBuild
from provision.doctor.lint.installs import Install
from provision.doctor.lint.setting import Setting
from provision.sources.packages import RequestedPackage


def installed_build(install: Install, setting: Setting, catalog: Catalog) -> TorchBuild | None:
    """The build of torch that is installed; None: no torch, or not known."""
    torch = install.named("torch")
    if torch is None or torch.address or _is_elsewhere(torch, install):
        return None
    tag = chosen_tag(install, setting, catalog)
    if torch.release is not None:
        builds = catalog.torch_builds(torch.release, arch=setting.arch)
        return next((row for row in builds if row.tag == tag), None)
    tags = install.torch_tags
    if len(tags) == 1 and len(install.sources) == 1:
        (only,) = tags
        there = newest_of(torch, setting, catalog, tag=only)
        if install.sources[0].replaces_default or not setting.is_pip:
            return there
        default = newest_of(torch, setting, catalog)
        newer = default and there and Version(default.version) > Version(there.version)
        return default if newer else there
    return newest_of(torch, setting, catalog) if install.default_index else None


def _is_elsewhere(torch: RequestedPackage, install: Install) -> bool:
    """Whether its local version, such as +cu118, is on none of the indexes, so that nothing is
    installed.
    """
    tags = [source.torch_tag for source in install.sources]
    return bool(torch.local and tags) and install.complete and not {None, torch.local} & {*tags}


def newest_of(
    torch: RequestedPackage, setting: Setting, catalog: Catalog, *, tag: str | None = None
) -> TorchBuild | None:
    """The newest build that the requirement allows, of the index of a tag or of the default one."""
    wanted = {f"cp{python.replace('.', '')}" for python in setting.pythons}
    for release in reversed(catalog.torch_releases):  # the newest first
        if release.yanked or not torch.specifier.contains(release.version):
            continue
        for row in catalog.torch_builds(release.version, arch=setting.arch):
            pythons = {one.partition("-")[0] for one in row.python_tags}
            if (row.tag == tag if tag else "pypi" in row.at) and (
                not wanted or not wanted.isdisjoint(pythons)
            ):
                return row
    return None


def chosen_tag(install: Install, setting: Setting, catalog: Catalog) -> str | None:
    """The tag of the torch that will be installed: "cu118", "cpu"; None: unknown, or no torch."""
    torch = install.named("torch")
    if torch is None:
        return None
    if torch.local:
        return torch.local
    if len(install.torch_tags) == 1 and len(install.sources) == 1:
        return next(iter(install.torch_tags))
    if install.default_index and not torch.address:
        return default_tag(catalog, torch.release, setting.arch)
    return None


def default_build(catalog: Catalog, version: str | None, arch: Arch) -> TorchBuild | None:
    """The build of a release that the default index has."""
    if version is None:
        return None
    builds = catalog.torch_builds(version, arch=arch)
    return next((row for row in builds if "pypi" in row.at), None)


def default_tag(catalog: Catalog, version: str | None, arch: Arch) -> str | None:
    """The tag of `default_build`."""
    build = default_build(catalog, version, arch)
    return build.tag if build else None
