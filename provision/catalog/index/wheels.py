"""Names of wheels and their METADATA -> what they say about CUDA. Pure.

Sources: https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/ (which
glibc a manylinux tag stands for) and .../core-metadata/ (Requires-Dist).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.markers import InvalidMarker, UndefinedComparison, UndefinedEnvironmentName
from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from provision.catalog.index.pages import PageFile
from provision.model.environment import environment_of, requirement_of

_PLATFORM = re.compile(r"(manylinux1|manylinux2010|manylinux2014|manylinux_2_(\d{1,3})|linux)_(.+)")
_GLIBC = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
_CPYTHON = re.compile(r"cp3(\d{1,3})-cp3\1(m|t)?")
_RUNTIME = re.compile(r"nvidia-cuda-runtime(-cu\d+)?")
ARCHS = ("x86_64", "aarch64")
"""The machines that the catalog knows."""

PARSING = threading.Lock()
"""Held while Python syntax is parsed (a marker's strings are): until 3.11.5 the interpreter counts
the parser's depth for all threads together and fails (python/cpython issue 106905).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinuxWheel:
    """A wheel that installs on Linux. `arch` None: on any machine.

    `python_tags`: "cp312-cp312", "py3-none". `glibc`: the lowest that it supports; None: not
    stated.
    """

    project: str
    version: Version
    arch: str | None
    python_tags: tuple[str, ...]
    glibc: str | None
    file: PageFile


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexMetadata:
    """A wheel's METADATA, as far as it matters here; requirements that cannot be parsed are left
    out.

    `extras`: their names, normalized, and as they are written.
    """

    name: str
    version: Version
    requires: tuple[Requirement, ...]
    extras: Mapping[str, str]


def linux_wheels(files: Iterable[PageFile], project: str) -> list[LinuxWheel]:
    """The wheels of a project for Linux; other names on the page are ignored."""
    wheels = (read_wheel_name(file) for file in files)
    return [wheel for wheel in wheels if wheel is not None and wheel.project == project]


def read_wheel_name(file: PageFile) -> LinuxWheel | None:
    """None: not a wheel, or not for Linux with glibc on a machine that the catalog knows."""
    try:
        name, version, _, tags = parse_wheel_filename(file.name)
    except (InvalidWheelFilename, InvalidVersion):
        return None
    platforms = {tag.platform for tag in tags}
    readings = [reading for text in platforms if (reading := _read_platform(text)) is not None]
    archs = {arch for arch, _ in readings}
    if len(archs) > 1 or not (archs or platforms == {"any"}):
        return None
    floors = [glibc for _, glibc in readings if glibc is not None]
    return LinuxWheel(
        project=str(name),
        version=version,
        arch=archs.pop() if archs else None,
        python_tags=sort_tags({f"{tag.interpreter}-{tag.abi}" for tag in tags}),
        glibc=min(floors, key=Version) if floors else None,
        file=file,
    )


def _read_platform(text: str) -> tuple[str, str | None] | None:
    """ "manylinux_2_28_x86_64" -> ("x86_64", "2.28"); "linux_x86_64" names no glibc."""
    found = _PLATFORM.fullmatch(text)
    if found is None or found[3] not in ARCHS:
        return None
    return found[3], f"2.{int(found[2])}" if found[2] else _GLIBC.get(found[1])


def cpython_tags(wheels: Iterable[LinuxWheel]) -> tuple[str, ...]:
    """The CPythons that these wheels are for, oldest first."""
    tags = {tag for wheel in wheels for tag in wheel.python_tags}
    return sort_tags(tag for tag in tags if _CPYTHON.fullmatch(tag))


def sort_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """cp39 before cp310, cp313-cp313 before cp313-cp313t."""

    def rank(tag: str) -> tuple[int, str]:
        found = _CPYTHON.fullmatch(tag)
        return (int(found[1]) if found else -1, tag)

    return tuple(sorted(set(tags), key=rank))


def glibc_of(wheels: Iterable[LinuxWheel]) -> str | None:
    """The lowest glibc that suffices for all of these wheels; None if one does not name it."""
    floors = [wheel.glibc for wheel in wheels]
    known = [glibc for glibc in floors if glibc is not None]
    return max(known, key=Version) if known and len(known) == len(floors) else None


def best_first(wheels: Iterable[LinuxWheel]) -> list[LinuxWheel]:
    """The wheels of a build, the best one to read first: METADATA available, the usual Pythons."""

    def rank(wheel: LinuxWheel) -> tuple[bool, bool, str]:
        plain = any(_CPYTHON.fullmatch(tag) and tag[-1].isdigit() for tag in wheel.python_tags)
        return (not wheel.file.metadata, not plain, wheel.file.name)

    return sorted(wheels, key=rank)


def parse_metadata(data: bytes) -> IndexMetadata:
    """The file METADATA. ValueError: it names no project or no version."""
    raw, _ = parse_email(data)
    name = raw.get("name")
    if not name:
        raise ValueError("it names no project")
    try:
        version = Version(raw.get("version") or "")
    except InvalidVersion:
        raise ValueError("it names no version") from None
    return IndexMetadata(
        name=canonicalize_name(name),
        version=version,
        requires=tuple(
            found
            for text in raw.get("requires_dist", [])
            if (found := _read_requirement(text)) is not None
        ),
        extras={canonicalize_name(extra): extra for extra in raw.get("provides_extra", [])},
    )


def _read_requirement(text: str) -> Requirement | None:
    try:
        with PARSING:
            return requirement_of(text)
    except InvalidRequirement:
        return None


def needed(
    metadata: IndexMetadata, arch: str, *, extra: str = "", python: str = "3.12"
) -> tuple[Requirement, ...]:
    """What an installer adds on Linux on that machine; with an extra: only what the extra adds."""
    environment = environment_of(python, arch)

    def holds(requirement: Requirement, name: str) -> bool:
        if requirement.marker is None:
            return True
        try:
            return requirement.marker.evaluate({**environment, "extra": name})
        except (InvalidMarker, InvalidVersion, UndefinedComparison, UndefinedEnvironmentName):
            return False

    chosen = [row for row in metadata.requires if holds(row, extra)]
    if extra:
        chosen = [row for row in chosen if not holds(row, "")]
    return tuple(chosen)


def python_of(wheel: LinuxWheel) -> str:
    """A Python that the wheel is for, to evaluate its markers with: "3.12"."""
    found = next((m for tag in wheel.python_tags if (m := _CPYTHON.fullmatch(tag))), None)
    return f"3.{found[1]}" if found else "3.12"


def exact(requirement: Requirement) -> str | None:
    """ "==9.1.0.70" -> "9.1.0.70"; None if several versions would match."""
    clauses = list(requirement.specifier)
    if len(clauses) == 1 and clauses[0].operator in {"==", "==="}:
        return None if clauses[0].version.endswith("*") else clauses[0].version
    return None


def lowest(requirement: Requirement) -> str | None:
    """The exact version, or the only lower bound that it names; None: it has none, or several."""
    bounds = [clause.version for clause in requirement.specifier if clause.operator == ">="]
    return exact(requirement) or (bounds[0] if len(bounds) == 1 else None)


def named(requirements: Iterable[Requirement], prefix: str) -> Requirement | None:
    """The requirement of "nvidia-cudnn", under that name or with the suffix "-cu12"."""
    pattern = re.compile(rf"{re.escape(prefix)}(-cu\d+)?")
    return next((r for r in requirements if pattern.fullmatch(canonicalize_name(r.name))), None)


def is_gpu_library(requirement: Requirement) -> bool:
    """Whether it is one of NVIDIA's own packages."""
    return canonicalize_name(requirement.name).startswith(("nvidia-", "cuda-"))


def gpu_pins(requirements: Iterable[Requirement]) -> tuple[str, ...]:
    """NVIDIA's packages and the Triton of a build, as requirement strings without their extras."""
    names = {"triton", "pytorch-triton"}
    return tuple(
        sorted(
            f"{canonicalize_name(r.name)}{r.specifier}"
            for r in requirements
            if is_gpu_library(r) or canonicalize_name(r.name) in names
        )
    )


def cuda_of(requirements: Sequence[Requirement], *, bounds: bool = False) -> str | None:
    """CUDA X.Y from the pin of the toolkit or of its runtime; None: not stated, or two are.

    `bounds`: a lower bound counts as well, for frameworks that name their build CUDA that way.
    """
    read = lowest if bounds else exact
    said = [text for row in requirements if _is_cuda(row) and (text := read(row)) is not None]
    versions = {minor_of(text) for text in said}
    return versions.pop() if len(versions) == 1 else None


def minor_of(text: str) -> str | None:
    """ "12.6.77" -> "12.6"; None: it has no such part."""
    found = re.match(r"(\d+\.\d+)(?!\d)", text)
    return found[1] if found else None


def _is_cuda(requirement: Requirement) -> bool:
    name = canonicalize_name(requirement.name)
    return name == "cuda-toolkit" or _RUNTIME.fullmatch(name) is not None


def sizes_of(wheels: Sequence[LinuxWheel]) -> list[int]:
    """The sizes of some wheels, in bytes; []: the page does not say that of each."""
    sizes = [wheel.file.size for wheel in wheels if wheel.file.size is not None]
    return sizes if len(sizes) == len(wheels) else []


def first_upload(wheels: Iterable[LinuxWheel]) -> str | None:
    """When the first of them was uploaded to the index; None: it does not say."""
    return min((w.file.uploaded for w in wheels if w.file.uploaded is not None), default=None)


def requires_python(wheels: Iterable[LinuxWheel]) -> str | None:
    """The Pythons that a release supports; None: the index does not say."""
    return next((w.file.requires_python for w in wheels if w.file.requires_python), None)


def builds_of(
    wheels: Iterable[LinuxWheel], oldest: Version, tag: str | None = None
) -> dict[tuple[Version, str], list[LinuxWheel]]:
    """Wheels by (release, machine), the oldest release first, without candidates; those with the
    local version `tag`, None: without one.

    A wheel without one says nothing about CUDA: those on PyTorch's CPU page are CPU builds.
    """
    groups: dict[tuple[Version, str], list[LinuxWheel]] = {}
    for wheel in wheels:
        local, version = wheel.version.local, Version(wheel.version.public)
        of_tag = local == tag or (local is None and tag == "cpu")
        if of_tag and wheel.arch and not version.is_prerelease and version >= oldest:
            groups.setdefault((version, wheel.arch), []).append(wheel)
    return {key: groups[key] for key in sorted(groups)}


def by_release(
    groups: Mapping[tuple[Version, str], Sequence[LinuxWheel]],
) -> dict[Version, list[LinuxWheel]]:
    """The wheels of each release, for all machines."""
    found: dict[Version, list[LinuxWheel]] = {}
    for (version, _), wheels in groups.items():
        found.setdefault(version, []).extend(wheels)
    return found
