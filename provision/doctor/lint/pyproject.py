"""A pyproject.toml: the project's dependencies with each of its groups, as one install each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from packaging.specifiers import InvalidSpecifier

from provision.catalog.catalog import Catalog
from provision.doctor.lint.findings import RuleHit
from provision.doctor.lint.installs import Install
from provision.doctor.lint.package_rules import COMPANIONS, judge_install
from provision.doctor.lint.setting import Setting, applies_on_linux, known_pythons
from provision.model.environment import MOST_CHARACTERS
from provision.sources.declaration import allowed_by
from provision.sources.packages import IndexSource, Position, RequestedPackage, read_package
from provision.sources.poetry import PoetryDependency
from provision.sources.pyproject_file import PyprojectFile


def judge_pyproject(path: str, text: str, catalog: Catalog) -> Iterator[RuleHit]:
    """What the rules find in each install that the file describes; findings in a shared part come
    twice.
    """
    project = PyprojectFile(path, text)
    for install, setting in installs_of(project, catalog):
        yield from judge_install(install, setting, catalog)
        yield from _companions_elsewhere(install, project)


def _pythons(project: PyprojectFile, catalog: Catalog) -> tuple[str, ...]:
    """The known Pythons that requires-python allows; empty if it says nothing."""
    said = project.table("project").get("requires-python")
    if not isinstance(said, str) or not said.strip() or len(said) > MOST_CHARACTERS:
        return ()
    try:
        return allowed_by(said, known_pythons(catalog))
    except InvalidSpecifier:
        return ()


def installs_of(project: PyprojectFile, catalog: Catalog) -> Iterator[tuple[Install, Setting]]:
    """The project alone, and with each extra and each group."""
    setting = Setting(pythons=_pythons(project, catalog))
    poetry = [*project.poetry, *(one for rows in project.poetry_groups.values() for one in rows)]
    base = [
        *project.dependencies,
        *(_of_poetry(one) for one in poetry if one.name.lower() != "python"),
    ]
    for packages in ((), *project.extras.values(), *project.groups.values()):
        # with an extra or a group the project's own dependencies are installed, too
        together = [one for one in (*base, *packages) if applies_on_linux(one, catalog)]
        install = Install(
            packages=tuple(map(project.placed, together)),
            at=Position(1),
            sources=tuple(project.index_sources({one.name for one in together})),
            complete=True,
        )
        yield install, setting


def _of_poetry(one: PoetryDependency) -> RequestedPackage:
    package = read_package(one.written, Position(one.line or 1))
    return replace(package, address=one.address) if one.address else package


def _companions_elsewhere(install: Install, project: PyprojectFile) -> Iterator[RuleHit]:
    """torch from an index that serves nothing else, and torchvision from the default one."""
    torch = install.named("torch")
    if torch is None or torch.address or not project.elsewhere("torch"):
        return
    if not any(one.torch_tag and not one.replaces_default for one in install.sources):
        return
    if any(not row.get("explicit") and _has_wheels(row) for row in project.indexes.values()):
        return
    for name in COMPANIONS:
        package = install.named(name)
        if package is not None and not package.address and not project.elsewhere(name):
            yield RuleHit(
                rule="torch-companion-elsewhere",
                at=package.at,
                message=f"torch comes from an index of PyTorch, and {name} from the default one: "
                "the two can be built for different CUDA.",
                fix=f"Name the same index for {name} under [tool.uv.sources].",
            )


def _has_wheels(row: Mapping[str, Any]) -> bool:
    return IndexSource(url=str(row.get("url")), at=Position(1)).torch_tag is not None
