"""Lists the files of a project that go into its image, and what stays out."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from images.inspect.tree import WHITEOUT
from images.layers.own_errors import ProjectFilesError
from images.layers.project import DiskFile, sha256_of
from images.layers.tar import TarEntry
from images.text.printable import printable
from images.text.tokens import FoundSecret
from provision.build.project.ignore import (
    CACHES,
    IgnoreRule,
    Origin,
    names_in,
    read_dockerignore,
    read_gitignore,
    tracked_by_git,
    verdict,
)
from provision.build.project.secrets import MOST_BYTES as MOST_SEARCHED
from provision.build.project.secrets import is_secret, secret_error, secrets_in
from provision.sources.files import is_file, read_text

APP = "app"
"""The directory of a project in its image."""
MOST_BYTES = 2 << 30
MOST_FILES = 100_000
_MOST_RULES = 2_000
_MOST_LISTED = 8
_MOST_INDEX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectTree:
    """The files and links of a project as they will be in the image. `secrets` and `unusable` are
    relative paths of what stays out: as a likely secret; as a link that leads out of the project, a
    device, or a name that is not UTF-8. `admitted` are secrets that .dockerignore names. `kept_out`
    are modules, and folders of them, that a .gitignore or .dockerignore excludes, and its name.
    """

    files: tuple[DiskFile, ...] = ()
    links: tuple[TarEntry, ...] = ()
    secrets: tuple[str, ...] = ()
    admitted: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()
    kept_out: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(one.size for one in self.files)

    def has(self, path: str) -> bool:
        """Whether a file of this path in the project is in the image."""
        return any(one.path == f"{APP}/{path}" for one in self.files)


@dataclass
class _Found:
    paths: list[tuple[str, Path, os.stat_result]] = field(default_factory=list)
    links: list[TarEntry] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    kept_out: list[tuple[str, str]] = field(default_factory=list)


def read_tree(
    root: Path, *, leave_out: Collection[Path] = (), most_bytes: int = MOST_BYTES
) -> ProjectTree:
    """List a project, without what `leave_out` names: absolute paths that a build writes.

    ProjectFilesError: a file cannot be read, or there are too many, or too large ones.
    ProjectSecretError: a file has a key, a token or a login in it.
    """
    docker: tuple[IgnoreRule, ...] = ()
    if is_file(path := root / ".dockerignore"):
        docker = read_dockerignore(_patterns(path, root))[:_MOST_RULES]
    found = _walk(root, docker, {str(one.parent.resolve() / one.name) for one in leave_out})
    total = sum(status.st_size for _, _, status in found.paths)
    if total > most_bytes or len(found.paths) > MOST_FILES:
        raise _too_large(found, total)
    in_files: list[tuple[str, FoundSecret]] = []
    by_name = names_in(docker)
    files = tuple(
        _file(*one, None if tuple(one[0].split("/")) in by_name else in_files)
        for one in sorted(found.paths, key=lambda one: one[0])
    )
    if in_files:
        raise secret_error(in_files)
    return ProjectTree(
        files=files,
        links=tuple(found.links),
        secrets=tuple(sorted(found.secrets)),
        admitted=tuple(sorted(found.admitted)),
        unusable=tuple(sorted(found.unusable)),
        kept_out=tuple(sorted(found.kept_out)),
    )


def _patterns(path: Path, root: Path) -> str:
    """The patterns of a file in any encoding, spelled as Python spells the names of files."""
    return read_text(path, root, errors="surrogateescape")


def _walk(root: Path, docker: tuple[IgnoreRule, ...], outputs: Collection[str]) -> _Found:
    found, named, tracked = _Found(), names_in(docker), _tracked(root)
    waiting: list[tuple[Path, tuple[str, ...], tuple[IgnoreRule, ...], Origin | None, bool]]
    waiting = [(root, (), (), None, False)]
    while waiting and len(found.paths) <= MOST_FILES:
        folder, above, rules, decided, secret_above = waiting.pop()
        if is_file(path := folder / ".gitignore") and not path.is_symlink():
            rules += read_gitignore(_patterns(path, root), above)[:_MOST_RULES]
        for entry in _entries(folder):
            parts = (*above, entry.name)
            is_directory = entry.is_dir(follow_symlinks=False)
            if any(rule.matches(parts, directory=is_directory) for rule in CACHES):
                continue
            if entry.path in outputs:
                continue
            origin = verdict(parts, (*rules, *docker), directory=is_directory, above=decided)
            if origin == "git" and parts in tracked and not is_directory:
                above_it = None if decided == "git" else decided
                origin = verdict(parts, docker, directory=False, above=above_it)
            in_part = origin == "git" and parts in tracked  # a directory with files that git tracks
            is_new = not in_part and (origin != decided or above in tracked)
            if origin and is_new and _has_modules(entry, directory=is_directory):
                found.kept_out.append(("/".join(parts), f".{origin}ignore"))
            shown = printable("/".join(parts), limit=100)
            secret = is_secret(parts, Path(entry.path), directory=is_directory)
            if (secret or secret_above) and origin is None and parts in named:
                found.admitted.append(shown)
            elif secret and origin is None and not secret_above:
                found.secrets.append(shown)
            secret = (secret or secret_above) and parts not in named
            if is_directory:
                # below it something may be kept, but only by a .dockerignore; a secret by its name
                inside = origin is None or in_part or any(rule.keeps for rule in docker)
                if secret:
                    inside = any(one[: len(parts)] == parts for one in named)
                if inside and not _is_environment(Path(entry.path)):
                    waiting.append((Path(entry.path), parts, rules, origin, secret))
            elif origin is None and not secret:
                _take(entry, parts, shown, found)
    return found


def _tracked(root: Path) -> frozenset[tuple[str, ...]]:
    """What git tracks, if the project is a repository."""
    path = root / ".git" / "index"
    with suppress(OSError):
        if is_file(path) and path.stat().st_size <= _MOST_INDEX_BYTES:
            return tracked_by_git(path.read_bytes())
    return frozenset()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder, error) from error


def _has_modules(entry: os.DirEntry[str], *, directory: bool) -> bool:
    """Whether it is a module of Python, or a folder of modules."""
    if not directory:
        return entry.name.endswith(".py")
    with suppress(OSError), os.scandir(entry.path) as entries:
        return any(one.name.endswith(".py") for one in entries)
    return False


def _is_environment(folder: Path) -> bool:
    """Whether it is a virtual environment, or one of conda."""
    return is_file(folder / "pyvenv.cfg") or is_file(folder / "conda-meta" / "history")


def _take(entry: os.DirEntry[str], parts: Sequence[str], shown: str, found: _Found) -> None:
    path = "/".join(parts)
    if any(part.startswith(WHITEOUT) for part in parts):
        raise ProjectFilesError(
            f"The name {shown} would delete files of the image: in a layer, {WHITEOUT}NAME marks "
            "NAME as deleted.",
            fix="Rename it, or name it in .dockerignore: it then stays out of the image.",
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        found.unusable.append(shown)
        return
    try:
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = str(Path(entry.path).readlink())
            if _leads_out(parts, target):
                found.unusable.append(shown)
            else:
                found.links.append(TarEntry(path=f"{APP}/{path}", kind="symlink", target=target))
            return
    except OSError as error:
        raise _unreadable(Path(entry.path), error) from error
    if stat.S_ISREG(status.st_mode):
        found.paths.append((path, Path(entry.path), status))
    else:
        found.unusable.append(shown)


def _leads_out(parts: Sequence[str], target: str) -> bool:
    """Whether a link's target is outside of the project, or cannot be in a layer."""
    if target.startswith("/") or not target.isprintable() or not target:
        return True
    depth = len(parts) - 1
    for part in target.split("/"):
        depth += -1 if part == ".." else part not in {"", "."}
        if depth < 0:
            return True
    return False


def _file(
    path: str,
    source: Path,
    status: os.stat_result,
    secrets: list[tuple[str, FoundSecret]] | None,
) -> DiskFile:
    """A file of the image. The secrets in it are added to `secrets`; None: it is not searched."""
    try:
        if secrets is None or status.st_size > MOST_SEARCHED:
            sha256, size = sha256_of(source)
        else:  # what is searched is what will be in the image
            content = source.read_bytes()
            sha256, size = hashlib.sha256(content).hexdigest(), len(content)
            shown = printable(path, limit=100)
            secrets += ((shown, one) for one in secrets_in(content, source.name))
    except OSError as error:
        raise _unreadable(source, error) from error
    return DiskFile(
        path=f"{APP}/{path}",
        source=source,
        size=size,
        sha256=sha256,
        runs=bool(status.st_mode & stat.S_IXUSR),
    )


def _unreadable(path: Path, error: OSError) -> ProjectFilesError:
    return ProjectFilesError(
        f"{printable(str(path), limit=200)} cannot be read: {error.strerror or error}.",
        fix="Make it readable, or name it in .dockerignore: it then stays out of the image.",
    )


def _too_large(found: _Found, total: int) -> ProjectFilesError:
    sizes: dict[str, int] = {}
    for path, _, status in found.paths:
        first = path.partition("/")[0]
        sizes[first] = sizes.get(first, 0) + status.st_size
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    named = ", ".join(f"{printable(one, limit=60)} ({_megabytes(sizes[one])})" for one in largest)
    return ProjectFilesError(
        f"The project has {len(found.paths):,} files of {_megabytes(total)}; an image takes "
        f"{MOST_FILES:,} files of {_megabytes(MOST_BYTES)}. The largest: {named}.",
        fix="Name data and models in .dockerignore, and mount them when the image runs: "
        f"echo {printable(largest[0], limit=60) if largest else 'data'} >> .dockerignore",
    )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def in_words(paths: Sequence[str]) -> str:
    """The first paths, and how many more there are."""
    more = len(paths) - _MOST_LISTED
    return f"{', '.join(paths[:_MOST_LISTED])}{f' and {more} more' if more > 0 else ''}"


def notes_of(tree: ProjectTree) -> Iterator[str]:
    """What stayed out although a user may expect it in the image."""
    if tree.secrets:
        yield (
            f"Not in the image, as likely secrets: {in_words(tree.secrets)} (to put one in: a "
            "line !PATH in .dockerignore, without wildcards)."
        )
    if tree.admitted:
        yield (
            "In the image although they look like secrets, because .dockerignore names them: "
            f"{in_words(tree.admitted)}."
        )
    if tree.unusable:
        yield (
            "Not in the image, as links that lead out of the project, devices or names that are "
            f"not UTF-8: {in_words(tree.unusable)}."
        )
