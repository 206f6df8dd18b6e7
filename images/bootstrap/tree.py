"""The file tree of a base while it is built: its packages' files, and the added ones.

Paths are as in a layer, "usr/bin/python3". /usr is merged: what a package installs in /bin, /lib or
/sbin goes into /usr, and those are links to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from images.layers.tar import TarEntry, parents

_ALIASED = re.compile(r"(bin|sbin|lib|lib32|lib64|libo32|libx32)(?=/|$)")
_DROPPED = re.compile(
    r"""
      usr/share/doc/(?!.*/copyright$)[^/]+/.*
    | usr/share/(man|info|lintian|linda|groff)/.*
    | usr/share/locale/(?!locale\.alias$).*
    | var/cache/man/.*
    """,
    re.VERBOSE,
)


def plain_path(path: str) -> str:
    """Normalize a path as in a layer: "./bin/sh" and "/bin/sh" are "bin/sh"; "" is the root."""
    return path.removeprefix(".").strip("/")


def merged_path(path: str) -> str:
    """Return the path after merging /usr: "bin/sh" is "usr/bin/sh"."""
    return f"usr/{path}" if _ALIASED.match(path) else path


def is_kept(path: str) -> bool:
    """Whether a path belongs in the image: documentation does not, licences do."""
    return not _DROPPED.fullmatch(path)


@dataclass(slots=True)
class PackageTree:
    """A tree without the contents of its files, except those in `texts`.

    `epoch` is the latest time of a file, in seconds since 1970.
    """

    epoch: int
    arch: str
    """Debian's name of the architecture: "amd64"."""
    suite: str
    directories: dict[str, TarEntry] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    """Symbolic links, and their targets."""
    files: set[str] = field(default_factory=set)
    texts: dict[str, bytes] = field(default_factory=dict)
    """The contents of the files that others are generated from."""
    sonames: dict[str, str | None] = field(default_factory=dict)
    """Shared libraries, and their sonames."""
    added: dict[str, TarEntry] = field(default_factory=dict)
    """Files and links that are in no package."""

    @property
    def triplet(self) -> str:
        """The directory name for the architecture's libraries: "x86_64-linux-gnu"."""
        return {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[self.arch]

    def has(self, path: str) -> bool:
        """Whether a path exists; does not follow links in parent directories."""
        path = merged_path(plain_path(path))
        return (
            path in self.files
            or path in self.links
            or path in self.directories
            or path in self.added
        )

    def has_program(self, name: str) -> bool:
        """Whether a program of this name is in a directory of PATH."""
        return any(self.has(f"usr/{place}/{name}") for place in ("bin", "sbin"))

    def all_links(self) -> dict[str, str]:
        """Return the symbolic links of the packages and the added ones, with their targets."""
        added = (entry for entry in self.added.values() if entry.kind == "symlink")
        return {**self.links, **{entry.path: entry.target for entry in added}}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file that was added or is in `texts`."""
        path = merged_path(plain_path(path))
        entry = self.added.get(path)
        return entry.content if entry is not None else self.texts.get(path)

    def add_file(
        self, path: str, content: bytes, *, mode: int = 0o644, owner: tuple[int, int] = (0, 0)
    ) -> None:
        """Add a file, or replace one that was added."""
        self._add(TarEntry(
            path=merged_path(plain_path(path)),
            mode=mode,
            owner=owner,
            content=content,
            mtime=self.epoch,
        ))  # fmt: skip

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link; replaces a directory at its path."""
        plain = plain_path(path)
        # only the links that merge /usr are at the paths that they merge
        place = plain if _ALIASED.fullmatch(plain) else merged_path(plain)
        self.directories.pop(place, None)
        self._add(TarEntry(path=place, kind="symlink", target=target, mtime=self.epoch))

    def add_directory(
        self, path: str, *, mode: int = 0o755, owner: tuple[int, int] = (0, 0)
    ) -> None:
        """Add a directory, or change one from a package."""
        path = merged_path(plain_path(path))
        self._need_parents(path)
        self.directories[path] = TarEntry(
            path=path, kind="dir", mode=mode, owner=owner, mtime=self.epoch
        )

    def _add(self, entry: TarEntry) -> None:
        self._need_parents(entry.path)
        self.added[entry.path] = entry

    def _need_parents(self, path: str) -> None:
        for parent in parents(path):
            if parent not in self.directories:
                self.directories[parent] = TarEntry(path=parent, kind="dir", mtime=self.epoch)


def file_names(names: Mapping[str, object], directory: str) -> list[str]:
    """Return the paths directly in a directory, sorted."""
    start = f"{directory}/"
    return sorted(
        path for path in names if path.startswith(start) and "/" not in path[len(start) :]
    )
