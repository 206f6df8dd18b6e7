"""The packages of an image: what they say of themselves, which files are theirs, what is missing.

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
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_DEBIAN = re.compile(r"^/var/lib/dpkg/info/(?P<name>[^/:]+)(?::[^/]+)?\.list$")
_TOOLKIT = re.compile(r"^/(usr/local/cuda[^/]*|opt/cuda)(/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One installed Python package. `name` is as PEP 503 writes it; `requires` are such names.

    `recorded` maps the files that its RECORD lists to their sizes, where it tells them; None where
    there is no RECORD.
    """

    name: str
    version: str
    site: str
    requires: frozenset[str]
    recorded: Mapping[str, int | None] | None = None

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much of an image is one thing's: a Python package, Debian's packages, and so on."""

    name: str
    kind: str
    files: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePackages:
    """All packages, and whose each file is."""

    distributions: tuple[Distribution, ...]
    owners: Mapping[ImageFile, Distribution]
    debian: Mapping[ImageFile, str]
    cuda: str | None = None
    """The CUDA that torch says it was built with."""
    reached: dict[str, frozenset[str]] = field(default_factory=dict)

    def named(self, *names: str) -> Distribution | None:
        """Give the first of these that is installed."""
        for name in names:
            for found in self.distributions:
                if found.name == name:
                    return found
        return None

    def reach(self, name: str) -> frozenset[str]:
        """Give all packages that this one brings, by what they say they require, and itself."""
        if name not in self.reached:
            requires = {d.name: d.requires for d in self.distributions}
            found, waiting = {name}, [name]
            while waiting:
                more = requires.get(waiting.pop(), frozenset()) - found
                found |= more
                waiting += more
            self.reached[name] = frozenset(found)
        return self.reached[name]

    def related(self, one: Distribution, other: Distribution) -> bool:
        """Whether a third or one of them brings both, so that one may rely on the other."""
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
    return Distribution(
        name=canonical(metadata.name),
        version=metadata.version,
        site=site,
        requires=frozenset(
            canonical(match[1])
            for line in metadata.requires
            if (match := _NAME.match(line)) and "extra ==" not in line
        ),
        recorded=None if record is None else dict(_recorded(record.text or b"", site)),
    )


def canonical(name: str) -> str:
    """Write a package's name as PEP 503 does."""
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
    except csv.Error:  # what is listed after that is not known; what it holds counts as nobody's
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What is wrong with an installed package, in words."""

    package: str
    path: str
    why: str


def find_damage(contents: Contents, packages: ImagePackages) -> tuple[list[Damage], int]:
    """Name what is missing or cut off of what the packages list, and count what is missing else.

    Libraries count: a package without them does not work. Byte code, tests and headers may be
    left out to save room, and who has done so knows.
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
    """Find packages of which two versions are in one place, where one has overwritten the other."""
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
    """Say whose the bytes are, the largest first; each file counts once, whatever its names."""
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
    """Give every file once, by the first of its names."""
    seen: set[ImageFile] = set()
    for path, node in tree.walk():
        if isinstance(node, ImageFile) and node not in seen:
            seen.add(node)
            yield path, node


def toolkits(tree: ImageTree, packages: ImagePackages) -> tuple[str, ...]:
    """Name the places from which CUDA's runtime could be taken: two are one too many."""
    found = {
        "its wheels" if node in packages.owners else dirname(path)
        for path, node in distinct_files(tree)
        if re.fullmatch(r"libcudart\.so(\.\d+)*", basename(path)) and node.elf is not None
    }
    return tuple(sorted(found))
