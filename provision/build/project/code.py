"""A project's code: the last layer of its image, and what the image runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from images.layers.own import key_of
from images.layers.project import ProjectLayer
from provision.build.project.imports import (
    MOST_BYTES,
    MOST_FILES,
    MOST_IN_ALL,
    FileImports,
    imports_of,
    is_aside,
)
from provision.build.project.program import Program, read_program
from provision.build.project.tree import APP, ProjectTree, notes_of, read_tree


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
    def roots(self) -> frozenset[str]:
        """The folders of the project where Python looks for modules; "" is its top."""
        own = (one.removeprefix(f"/{APP}").strip("/") for one in self.program.roots)
        return frozenset({"", *own})

    @property
    def called(self) -> tuple[str, ...]:
        """The modules of its commands, as paths: "pkg/cli"."""
        return tuple(call.module.replace(".", "/") for call in self.program.calls.values())

    def imports(self) -> tuple[dict[str, FileImports], list[str]]:
        """What each source file imports, and the paths of all files, relative to the project. Of
        more than is read, what a program may need comes first.
        """
        paths = [one.path.removeprefix(f"{APP}/") for one in self.tree.files]
        sources = [
            (path, file)
            for path, file in zip(paths, self.tree.files, strict=True)
            if path.endswith(".py")
        ]
        found: dict[str, FileImports] = {}
        left = MOST_IN_ALL
        for path, file in sorted(sources, key=lambda one: (is_aside(one[0]), one[0].count("/"))):
            if file.size > MOST_BYTES or file.size > left or len(found) == MOST_FILES:
                continue
            left -= file.size
            with suppress(OSError):  # it changed since it was listed, which the layer will report
                found[path] = imports_of(path, file.source.read_bytes())
        return found, paths

    @property
    def imported(self) -> frozenset[str]:
        """The names that it imports anywhere, as those of packages are compared."""
        files, _ = self.imports()
        return frozenset(canonicalize_name(i.name) for one in files.values() for i in one.imports)

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
