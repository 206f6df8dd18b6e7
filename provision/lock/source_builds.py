"""What a lock says of a wheel that was built from its source: enough to build the same bytes again.

In a lock, the package has its source (`sdist`, or `vcs` for a commit), as PEP 751 has it, and our
table `[packages.tool.gpu-provision]` has the wheel's name, size and sha256, the Python that built
it, and the wheels that it was built with. Other installers build the source themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from images.net.address import shown_url
from images.text.printable import printable
from images.wheels.remote_file import RemoteFile, Wheel
from provision.errors import LockFileError
from provision.model import grammar
from provision.model.planfile import TOOL

if TYPE_CHECKING:
    from packaging.pylock import Package

PLACE = "file:///gpu-provision/built/"
"""Before the sha256 and the name of a wheel that is not known to be on this machine."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_WHEEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,240}\.whl")
_PYTHON = re.compile(r"3\.[0-9]{1,2}")
_PATH = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_GIT = re.compile(r"(https?|ssh|git|file)://[^\s?#]+")
_MOST_BACKEND = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GitSource:
    """A commit of a repository. `tree` is the hash of its files, as git has it; `subdirectory` is
    where the package is, "" for the whole.
    """

    url: str
    commit: str
    tree: str
    subdirectory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBuild:
    """A wheel's file name and digest, and what it was built from. `index` lists the source;
    `python` ("3.11") built it, with the wheels `backend`.
    """

    name: str
    version: str
    wheel: str
    sha256: str
    size: int
    source: RemoteFile | GitSource
    index: str | None
    backend: tuple[Wheel, ...]
    python: str

    @property
    def unknown_place(self) -> str:
        """The address of the wheel before it is looked for on this machine."""
        return f"{PLACE}{self.sha256}/{quote(self.wheel)}"

    def to_entry(self) -> dict[str, Any]:
        """The keys of the package in a lock, and of what is kept beside the wheel."""
        ours: dict[str, Any] = {
            "wheel": self.wheel,
            "size": self.size,
            "python": self.python,
            "backend": [_file_row(one) for one in self.backend],
        }
        entry: dict[str, Any] = {"name": self.name, "version": self.version}
        if isinstance(self.source, GitSource):
            vcs = {"type": "git", "url": self.source.url}
            vcs["commit-id"] = self.source.commit
            if self.source.subdirectory:
                vcs["subdirectory"] = self.source.subdirectory
            entry["vcs"] = vcs
            ours["tree"] = self.source.tree
        else:
            size = {} if self.source.size is None else {"size": self.source.size}
            hashes = {"hashes": {"sha256": self.source.sha256}}
            entry["sdist"] = {"url": shown_url(self.source.url), **size, **hashes}
        if self.index:
            entry["index"] = shown_url(self.index)
        # the last plain key of its table: an engine's build adds the address of the wheel after it
        return {**entry, "tool": {TOOL: {**ours, "sha256": self.sha256}}}

    @classmethod
    def from_entry(cls, entry: object) -> SourceBuild | None:
        """The inverse of `to_entry`; None: it is malformed."""
        from packaging.pylock import Pylock, PylockValidationError

        data = {"lock-version": "1.0", "created-by": TOOL, "packages": [entry]}
        try:
            return build_of(Pylock.from_dict(data).packages[0])
        except (PylockValidationError, LockFileError, TypeError, AttributeError):
            return None


def build_of(package: Package) -> SourceBuild | None:
    """What a lock says of a package that was built from its source; None: it was not.
    LockFileError: it is malformed.
    """
    ours = (package.tool or {}).get(TOOL)
    if package.wheels or not isinstance(ours, Mapping):
        return None
    try:
        return _read(package, ours)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LockFileError(
            f"packages.tool.{TOOL} of {printable(str(package.name), limit=100)} does not say how "
            f"its wheel was built: {printable(str(error), limit=100)}.",
            fix="Lock again: provision lock",
        ) from error


def _read(package: Package, ours: Mapping[str, Any]) -> SourceBuild:
    name, version = str(package.name), str(package.version)
    source: RemoteFile | GitSource
    if package.vcs is not None:
        source = GitSource(
            url=_fits(_GIT, package.vcs.url, "vcs.url"),
            commit=_fits(_COMMIT, package.vcs.commit_id, "vcs.commit-id"),
            tree=_fits(_COMMIT, ours["tree"], "tree"),
            subdirectory=_directory(package.vcs.subdirectory or ""),
        )
    else:
        sdist = package.sdist
        if sdist is None or not grammar.ADDRESS.fits(sdist.url or ""):
            raise ValueError("it has no source")
        source = RemoteFile(
            name=name,
            version=version,
            url=str(sdist.url),
            size=sdist.size,
            sha256=_fits(_SHA256, sdist.hashes["sha256"], "sdist.hashes.sha256"),
        )
    rows = ours["backend"]
    if len(rows) > _MOST_BACKEND:
        raise ValueError("backend has too many rows")
    return SourceBuild(
        name=name,
        version=version,
        wheel=_fits(_WHEEL, ours["wheel"], "wheel"),
        sha256=_fits(_SHA256, ours["sha256"], "sha256"),
        size=_size(ours["size"]),
        source=source,
        index=package.index,
        backend=tuple(_wheel_of(row) for row in rows),
        python=_fits(_PYTHON, ours["python"], "python"),
    )


def _wheel_of(row: Mapping[str, Any]) -> Wheel:
    for rule, key in (
        (grammar.NAME, "name"),
        (grammar.VERSION, "version"),
        (grammar.ADDRESS, "url"),
    ):
        if not isinstance(row[key], str) or not rule.fits(row[key]):
            raise ValueError(f"backend.{key}: expected {rule.wanted}")
    return Wheel(
        name=row["name"],
        version=row["version"],
        url=row["url"],
        size=_size(row["size"]) if "size" in row else None,
        sha256=_fits(_SHA256, row["sha256"], "backend.sha256"),
    )


def _file_row(one: Wheel) -> dict[str, Any]:
    size = {} if one.size is None else {"size": one.size}
    row = {"name": one.name, "version": one.version, "url": shown_url(one.url)}
    return {**row, "sha256": one.sha256, **size}


def _fits(form: re.Pattern[str], value: object, key: str) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError(f"{key} is malformed")
    return value


def _directory(text: str) -> str:
    if text and (not _PATH.fullmatch(text) or ".." in text.split("/")):
        raise ValueError("vcs.subdirectory is malformed")
    return text


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        raise ValueError("size is malformed")
    return value
