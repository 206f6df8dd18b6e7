"""The project that a command is about: what is installed of it, and its code."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING

from provision.cli.option import option
from provision.cli.paths import absolute_file
from provision.errors import BadInputError
from provision.model.request import quoted

if TYPE_CHECKING:
    from provision.build.project.code import ProjectCode
    from provision.sources.find import Project


def project_argument(verb: argparse.ArgumentParser) -> None:
    """The project that packages are read from."""
    verb.add_argument(
        "project",
        metavar="DIR",
        nargs="?",
        help="take the packages that this project or file declares (uv.lock, requirements.txt, "
        "...); build adds its code to the image",
    )
    group = verb.add_argument_group("project")
    for name, dest, locked, says in (
        ("--extra", "extras", True, "install this extra of the project, too (repeatable)"),
        (
            "--group",
            "groups",
            True,
            "install this dependency group of the project, too (repeatable)",
        ),
        (
            "--without",
            "without",
            False,
            "leave out a package that the project requires (repeatable)",
        ),
    ):
        option(
            group,
            name,
            "NAME",
            says,
            decides="packages",
            dest=dest,
            several=True,
            rare=True,
            locked=locked,
        )


def read_project_option(
    args: argparse.Namespace, imports: Callable[[], Collection[str]] = frozenset
) -> Project | None:
    """The project that is named on the command line, with the extras and groups that are named and
    without the packages that it may lack; None: none is. `imports`: the names that its code
    imports, where that is built, too.
    """
    if args.project is None:
        for option, given in (
            ("--extra", args.extras), ("--group", args.groups), ("--without", args.without)
        ):  # fmt: skip
            if given:
                raise BadInputError(
                    f"{option} is about a project, and no project is named.",
                    fix=f"Name its directory, or remove {option}.",
                )
        return None
    from provision.sources.find import project_path, read_project

    project = read_project(*project_path(args.project))
    chosen = {"extras": args.extras, "groups": args.groups, "without": args.without}
    return project.selected(**chosen, imports=imports)


def read_code_option(args: argparse.Namespace, project: Project | None) -> ProjectCode | None:
    """The code of the project, without what this build writes."""
    if args.project is None:
        return None
    from provision.attestation.provenance.documents import beside
    from provision.build.project.code import read_code
    from provision.sources.find import project_path

    written = [
        absolute_file("--output", name)
        for name in (args.output, args.sbom, args.provenance)
        if name
    ]
    if args.output:
        written += beside(absolute_file("--output", args.output))
    return read_code(
        project_path(args.project).root,
        members=project.declared.members if project else (),
        source=project.declared.source if project else None,
        leave_out=written,
    )


def read_project_with_code(
    args: argparse.Namespace,
) -> tuple[Project | None, ProjectCode | None]:
    """The project and its code; with a lock, which decides the packages, the code alone."""

    from packaging.utils import canonicalize_name

    @cache
    def imports() -> frozenset[str]:
        code = read_code_option(args, None)
        return code.imported if code else frozenset()

    project = None if args.lock else read_project_option(args, imports)
    for name in args.without if args.lock else ():
        if canonicalize_name(name) not in imports():
            raise BadInputError(
                f"The project imports no {quoted(name)}.", fix=f"Remove --without {quoted(name)}."
            )
    return project, read_code_option(args, project)
