"""The packages of an image: their metadata, which files belong to them, what is missing.

https://packaging.python.org/en/latest/specifications/recording-installed-packages/
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from posixpath import basename, dirname, join, normpath

from images.inspect.contents import Contents
from images.inspect.texts import assigned, parse_metadata
from images.inspect.tree import ImageFile, ImageTree

_MOST_ROWS = 2_000_000
_INFO = re.compile(r"^(?P<site>.*)/[^/]+\.dist-info/METADATA$")
_REQUIREMENT = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[(?P<extras>[^\]]*)\])?\s*\(?(?P<versions>[^;)]*)"
)
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")
_DEBIAN = re.compile(r"^/var/lib/dpkg/info/(?P<name>[^/:]+)(?::[^/]+)?\.list$")
_TOOLKIT = re.compile(r"^/(usr/local/cuda[^/]*|opt/cuda)(/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One installed Python package. `name` and those it requires are normalized (PEP 503).

    `requires` has the versions that it requires, as written ("==2.0.1"); "" for any. `extras` are
    the pairs of a package and an extra of it that it requires; `by_extra` what its own extras
    require. `recorded` maps the files in its RECORD to their sizes, if listed; None if there is no
    RECORD.
    """

    name: str
    version: str
    site: str
    requires: Mapping[str, str]
    extras: frozenset[tuple[str, str]] = frozenset()
    by_extra: Mapping[str, frozenset[str]] = field(default_factory=dict)
    recorded: Mapping[str, int | None] | None = None

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much of an image belongs to one owner: a Python package, a Debian package, and so on."""

    name: str
    kind: str
    files: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePackages:
    """All packages, and the owner of each file."""

    distributions: tuple[Distribution, ...]
    owners: Mapping[ImageFile, Distribution]
    debian: Mapping[ImageFile, str]
    cuda: str | None = None
    """The CUDA version that torch was built with, according to its version.py."""
    reached: dict[str, frozenset[str]] = field(default_factory=dict)

    def named(self, *names: str) -> Distribution | None:
        """The first of these that is installed."""
        for name in names:
            for found in self.distributions:
                if found.name == name:
                    return found
        return None

    def reach(self, name: str) -> frozenset[str]:
        """This package and all its direct and indirect requirements."""
        if name not in self.reached:
            asked = frozenset(pair for d in self.distributions for pair in d.extras)
            requires = {
                d.name: frozenset(d.requires).union(
                    *(names for extra, names in d.by_extra.items() if (d.name, extra) in asked)
                )
                for d in self.distributions
            }
            found, waiting = {name}, [name]
            while waiting:
                more = requires.get(waiting.pop(), frozenset()) - found
                found |= more
                waiting += more
            self.reached[name] = frozenset(found)
        return self.reached[name]

    def related(self, one: Distribution, other: Distribution) -> bool:
        """Whether any package (also one of these) requires both, so one may rely on the other."""
        pair = {one.name, other.name}
        return any(pair <= self.reach(found.name) for found in self.distributions)


def read_packages(contents: Contents) -> ImagePackages:
    """Find the packages that are installed."""
    tree = contents.tree
    found: list[Distribution] = []
    debian: dict[ImageFile, str] = {}
    cuda: str | None = None
    for path, node in tree.walk():
        if not isinstance(node, ImageFile) or node.text is None:
            continue
        if match := _INFO.match(path):
            if distribution := _distribution(tree, path, match["site"] or "/", node.text):
                found.append(distribution)
        elif match := _DEBIAN.match(path):
            for line in node.text.decode("utf-8", "surrogateescape").splitlines():
                if (file := tree.file(line)) is not None:
                    debian[file] = match["name"]
        elif path.endswith("/torch/version.py"):
            cuda = assigned(node.text).get("cuda") or cuda
    owners: dict[ImageFile, Distribution] = {}
    for distribution in found:
        for path in distribution.recorded or ():
            if (file := tree.file(path)) is not None:
                owners.setdefault(file, distribution)
    return ImagePackages(distributions=tuple(found), owners=owners, debian=debian, cuda=cuda)


def _distribution(tree: ImageTree, path: str, site: str, text: bytes) -> Distribution | None:
    metadata = parse_metadata(text)
    if metadata is None:
        return None
    record = tree.file(join(dirname(path), "RECORD"))
    by_extra: dict[str, set[str]] = {}
    extras: set[tuple[str, str]] = set()
    for line in metadata.requires:
        if match := _REQUIREMENT.match(line):
            name = canonical(match["name"])
            for extra in _EXTRA.findall(line):
                by_extra.setdefault(canonical(extra), set()).add(name)
            asked = "" if _EXTRA.search(line) else match["extras"] or ""
            extras |= {(name, canonical(one.strip())) for one in asked.split(",") if one.strip()}
    return Distribution(
        name=canonical(metadata.name),
        version=metadata.version,
        site=site,
        requires={
            canonical(match["name"]): match["versions"].strip()
            for line in metadata.requires
            if (match := _REQUIREMENT.match(line)) and not _EXTRA.search(line)
        },
        extras=frozenset(extras),
        by_extra={extra: frozenset(names) for extra, names in by_extra.items()},
        recorded=None if record is None else dict(_recorded(record.text or b"", site)),
    )


def canonical(name: str) -> str:
    """Normalize a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _recorded(text: bytes, site: str) -> Iterator[tuple[str, int | None]]:
    lines = text.decode("utf-8", "surrogateescape").splitlines()[:_MOST_ROWS]
    try:
        for row in csv.reader(lines):
            if row and row[0]:
                size = row[2] if len(row) > 2 else ""
                data = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", row[0])
                yield (
                    normpath(join(site, data)),
                    int(size) if re.fullmatch(r"[0-9]{1,18}", size) else None,
                )
    except csv.Error:  # the rest of the list is unknown; its files count as in no package
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What is wrong with an installed package, in words."""

    package: str
    path: str
    why: str


def find_damage(contents: Contents, packages: ImagePackages) -> tuple[list[Damage], int]:
    """List libraries that packages record and that are missing or truncated; count other files.

    A package without its libraries does not work. Tests and headers may be omitted on purpose to
    save space; missing byte code is not counted.
    """
    found: list[Damage] = []
    left_out = 0
    for package in packages.distributions:
        for path, size in (package.recorded or {}).items():
            file = contents.tree.file(path)
            if file is None:
                if _is_library(path):
                    found.append(Damage(package=package.title, path=path, why="is missing"))
                elif not path.endswith((".pyc", "/RECORD.jws", "/RECORD.p7s")):
                    left_out += 1
            elif _is_library(path) and size is not None and file.size < size:
                why = f"has {file.size} bytes of the {size} that it was installed with"
                found.append(Damage(package=package.title, path=path, why=why))
    return found, left_out


def find_twins(packages: ImagePackages) -> list[tuple[Distribution, Distribution]]:
    """Find packages with two versions in one site directory: one has overwritten the other."""
    seen: dict[tuple[str, str], Distribution] = {}
    twins = []
    for package in packages.distributions:
        first = seen.setdefault((package.site, package.name), package)
        if first is not package:
            twins.append((first, package))
    return twins


def _is_library(path: str) -> bool:
    return re.search(r"\.so(\.\d+)*$", path) is not None


def shares(contents: Contents, packages: ImagePackages) -> list[Share]:
    """The size of each owner's files, largest first; each file counts once, whatever its names."""
    files: dict[tuple[str, str], int] = {}
    sizes: dict[tuple[str, str], int] = {}
    for path, file in distinct_files(contents.tree):
        owner = packages.owners.get(file)
        if owner is not None:
            whose = owner.title, "Python package"
        elif path.endswith(".pyc"):
            whose = "byte code", "made of the packages"
        elif _TOOLKIT.match(path):
            whose = "CUDA toolkit", "in the image itself"
        elif file in packages.debian:
            whose = packages.debian[file], "Debian package"
        else:
            whose = f"other files in /{path.split('/')[1]}", "in no package"
        files[whose] = files.get(whose, 0) + 1
        sizes[whose] = sizes.get(whose, 0) + file.size
    found = [
        Share(name=name, kind=kind, files=count, size=sizes[name, kind])
        for (name, kind), count in files.items()
    ]
    return sorted(found, key=lambda share: (-share.size, share.name))


def distinct_files(tree: ImageTree) -> Iterator[tuple[str, ImageFile]]:
    """Yield every file once, with the first of its paths."""
    seen: set[ImageFile] = set()
    for path, node in tree.walk():
        if isinstance(node, ImageFile) and node not in seen:
            seen.add(node)
            yield path, node


def toolkits(tree: ImageTree, packages: ImagePackages) -> tuple[str, ...]:
    """The places that have CUDA's runtime: more than one is a problem."""
    found = {
        "its wheels" if node in packages.owners else dirname(path)
        for path, node in distinct_files(tree)
        if re.fullmatch(r"libcudart\.so(\.\d+)*", basename(path)) and node.elf is not None
    }
    return tuple(sorted(found))
