"""Parsed options -> the project that is named, what is installed of it, and its code."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from provision.cli.paths import absolute_file
from provision.errors import BadInputError

if TYPE_CHECKING:
    from provision.build.project.code import ProjectCode
    from provision.sources.find import Project


def read_project_option(args: argparse.Namespace) -> Project | None:
    """The project that is named on the command line, with the extras and groups that are named and
    without the packages that it may lack; None: none is.
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
    return project.selected(extras=args.extras, groups=args.groups, without=args.without)


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
