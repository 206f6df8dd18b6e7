"""A project's code: the last layer of its image, and what the image runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.layers.own import key_of
from images.layers.project import ProjectLayer
from provision.build.project.program import Program, read_program
from provision.build.project.tree import ProjectTree, notes_of, read_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectCode:
    """The files of a project, and what is run of them. `source`: the file that declares the
    packages; None if a lock does.
    """

    tree: ProjectTree
    program: Program
    source: str | None = None

    def layer(self, python: str) -> ProjectLayer:
        """The layer for an image with this Python ("3.11")."""
        return ProjectLayer(
            title=f"project {self.program.name}",
            created_by=f"gpu-provision: the project in {self.program.directory}",
            files=self.tree.files,
            entries=(*self.tree.links, *self.program.entries(python)),
        )

    @property
    def digest(self) -> str:
        """The sha256 in hex of all that is taken from the project."""
        return key_of(
            tuple((one.path, one.runs, one.sha256) for one in self.tree.files),
            tuple((one.path, one.target) for one in self.tree.links),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the image runs, and what is not in it."""
        return (*self.program.notes, *notes_of(self.tree))

    def to_json(self) -> dict[str, Any]:
        """The member "project" of a build's account."""
        return {
            "name": self.program.name,
            "declared_in": self.source,
            "directory": self.program.directory,
            "command": list(self.program.command),
            "files": len(self.tree.files),
            "bytes": self.tree.size,
            "notes": list(self.notes),
        }


def read_code(
    root: Path,
    *,
    members: Sequence[str] = (),
    source: str | None = None,
    leave_out: Collection[Path] = (),
) -> ProjectCode:
    """Read a project's files. `members` are directories of packages in it; `leave_out` what the
    build itself writes, as absolute paths. ProjectError, ProjectFilesError: it cannot be read.
    """
    tree = read_tree(root, leave_out=leave_out)
    return ProjectCode(tree=tree, program=read_program(root, tree, members), source=source)
