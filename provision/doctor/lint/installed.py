"""Which torch each install of a file takes today, for the question whether it runs on a host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.doctor.lint.installs import Install
from provision.doctor.lint.setting import Setting
from provision.doctor.lint.torch_build import installed_build
from provision.sources.packages import Position

if TYPE_CHECKING:
    from provision.catalog.catalog import Catalog
    from provision.catalog.rows import TorchBuild


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledTorch:
    """A build of torch and the line that asks for it. `python`: the only one it may be for
    ("3.11"), None: several, or not known. `is_pinned`: the file names the release.
    """

    build: TorchBuild
    at: Position
    python: str | None
    is_pinned: bool


def installed_torches(kind: str, path: str, text: str, catalog: Catalog) -> list[InstalledTorch]:
    """Each torch that pip or uv installs by a file, once for each line and build. Installs without
    torch, or with one that cannot be known, are left out. BadInputError: the file is invalid.
    """
    found: dict[tuple[Position, str, str], InstalledTorch] = {}
    for install, setting in _installs(kind, path, text, catalog):
        build, torch = installed_build(install, setting, catalog), install.named("torch")
        if build is None or torch is None:
            continue
        found[torch.at, build.version, build.tag] = InstalledTorch(
            build=build,
            at=torch.at,
            python=setting.pythons[0] if len(setting.pythons) == 1 else None,
            is_pinned=torch.release is not None,
        )
    return list(found.values())


def _installs(
    kind: str, path: str, text: str, catalog: Catalog
) -> Iterator[tuple[Install, Setting]]:
    if kind == "requirements":
        from provision.doctor.lint.requirements import install_of

        yield install_of(path, text)
    elif kind == "environment":
        from provision.doctor.lint.conda_environment import read_environment

        environment = read_environment(path, text, catalog)
        for install in environment.installs():
            yield install, environment.setting
    elif kind == "pyproject":
        from provision.doctor.lint.pyproject import installs_of
        from provision.sources.pyproject_file import PyprojectFile

        yield from installs_of(PyprojectFile(path, text), catalog)
    elif kind == "dockerfile":
        from provision.doctor.lint.dockerfile import read_dockerfile
        from provision.doctor.lint.stage import StageView

        for stage in read_dockerfile(path, text).shipped():
            view = StageView(stage, catalog)
            for command, install in view.all_installs:
                yield install, view.setting(command, install)
