"""TensorFlow on the default index: releases, wheels, and the CUDA libraries of its extra.

The wheel itself says more than its METADATA: `build_info.py` says whether it is a CUDA build, and
up to 2.21 which CUDA and which GPUs. In a capability list "sm_60" is binary code, "compute_90" is
binary code and PTX (github.com/tensorflow/tensorflow configure.py: "compute_" capabilities include
both, "sm_" ones the binary alone).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from provision.catalog.refresh.index import Index
from provision.catalog.refresh.known import CurrentRows, as_version
from provision.catalog.refresh.model import SourceError, SourceReading
from provision.catalog.refresh.shared import first_upload, is_mirror, note_absent, sizes_of
from provision.catalog.refresh.wheels import (
    PARSING,
    IndexMetadata,
    LinuxWheel,
    cpython_tags,
    cuda_of,
    exact,
    glibc_of,
    listed_versions,
    lowest,
    minor_of,
    named,
    needed,
    python_of,
)

PROJECT = "tensorflow"
EXTRA = "and-cuda"
BUILD_INFO = "tensorflow/python/platform/build_info.py"
_BOUNDS_NOTE = (
    "CUDA and cuDNN are the lowest that the extra and-cuda takes; the wheel does not name those "
    "that it was built with."
)
_INFO = re.compile(
    r"^build_info\s*=\s*(?:collections\.)?OrderedDict\((.{0,20000})\)\s*$", re.MULTILINE
)

Key = tuple[Version, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelBuildInfo:
    """What a wheel says of itself; None: not stated. `sm`: "sm_60", ...; `ptx`: "compute_90"."""

    is_cuda: bool
    cuda: str | None = None
    sm: tuple[str, ...] | None = None
    ptx: str | None = None


def read_tensorflow(index: Index, known: CurrentRows, *, recheck: bool) -> SourceReading:
    """The rows of `tensorflow_releases` and `tensorflow_wheels`.

    Reads METADATA and `build_info.py` of wheels that the catalog does not know; with `recheck` the
    METADATA of all.
    """
    reading = SourceReading(source="tensorflow")
    groups = _group(index.wheels(PROJECT), known.oldest("tensorflow_releases"))
    if not groups:
        raise SourceError(
            f"{index.name} lists no wheel of {PROJECT} for Linux.",
            fix="Name an index that has them: --index URL",
        )
    fresh = {key for key in groups if known.row("tensorflow_wheels", _columns(key)) is None}
    wanted = {key: group for key, group in groups.items() if recheck or key in fresh}
    read = index.metadata(wanted, reading.troubles)
    real = {
        key: wheel
        for key, (wheel, metadata) in read.items()
        if key in fresh and not stands_for(metadata, key[1])
    }
    texts = index.each(real, lambda wheel: index.peek(wheel, BUILD_INFO), reading.troubles)
    infos = {key: parse_build_info(files[BUILD_INFO]) for key, files in texts.items()}
    for key, group in groups.items():
        found = read.get(key)
        if key not in fresh or found is not None:
            _add_wheel(
                reading,
                index,
                key,
                group,
                found[1] if found else None,
                infos.get(key),
                fresh=key in fresh,
            )
    for version in dict.fromkeys(version for version, _ in groups):
        _add_release(reading, known, version, groups, read, infos)
    versions = listed_versions(index.page(PROJECT).files, PROJECT)
    rows = {v: r for r in known.rows("tensorflow_releases") if (v := as_version(r["version"]))}
    if not is_mirror(reading, rows, versions, index.name):
        for version in sorted(rows.keys() - versions):
            note_absent(
                reading,
                "tensorflow_releases",
                rows[version],
                None,
                f"{index.name} has no such file",
            )
    return reading


def stands_for(metadata: IndexMetadata, arch: str) -> tuple[str, ...]:
    """The package that a stub replaces: an empty wheel that requires another of this version."""
    return tuple(
        sorted(
            name
            for row in needed(metadata, arch)
            if (name := canonicalize_name(row.name)).startswith("tensorflow-")
            and exact(row) == str(metadata.version)
        )
    )


def parse_build_info(data: bytes) -> WheelBuildInfo | None:
    """`build_info.py`, parsed and not executed; None: it has nothing usable."""
    found = _INFO.search(data.decode("utf-8", "replace"))
    try:
        with PARSING:
            said = dict(ast.literal_eval(found[1])) if found else {}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    is_cuda, cuda = said.get("is_cuda_build"), said.get("cuda_version")
    if not isinstance(is_cuda, bool):
        return None
    sm, ptx = parse_capabilities(said.get("cuda_compute_capabilities"))
    return WheelBuildInfo(
        is_cuda=is_cuda, cuda=minor_of(cuda) if isinstance(cuda, str) else None, sm=sm, ptx=ptx
    )


def parse_capabilities(listed: object) -> tuple[tuple[str, ...] | None, str | None]:
    """["sm_60", "compute_90"] -> (("sm_60", "sm_90"), "compute_90"); None: not stated."""
    words = [word for word in listed if isinstance(word, str)] if isinstance(listed, list) else []
    found = [m for word in words if (m := re.fullmatch(r"(sm|compute)_(\d{2,3})", word))]
    numbers = sorted({int(match[2]) for match in found})
    if not numbers or len(found) < len(words):
        return None, None
    both = [int(match[2]) for match in found if match[1] == "compute"]
    return tuple(f"sm_{number}" for number in numbers), f"compute_{max(both)}" if both else None


def _group(wheels: Sequence[LinuxWheel], oldest: Version) -> dict[Key, list[LinuxWheel]]:
    groups: dict[Key, list[LinuxWheel]] = defaultdict(list)
    for wheel in wheels:
        if wheel.version >= oldest and wheel.arch and wheel.version.local is None:
            groups[wheel.version, wheel.arch].append(wheel)
    return {key: groups[key] for key in sorted(groups)}


def _columns(key: Key) -> dict[str, object]:
    return {"version": str(key[0]), "arch": key[1]}


def _add_wheel(
    reading: SourceReading,
    index: Index,
    key: Key,
    group: list[LinuxWheel],
    metadata: IndexMetadata | None,
    info: WheelBuildInfo | None,
    *,
    fresh: bool,
) -> None:
    stub = stands_for(metadata, key[1]) if metadata else ()
    columns = _columns(key)
    if stub or info is not None:
        columns["gpu"] = info is not None and info.is_cuda
    elif fresh:
        return  # whether it is a GPU build could not be read: already reported as a failure
    columns |= {"python_tags": list(cpython_tags(group)), "glibc": glibc_of(group)}
    _, largest = sizes_of(group, index, reading.troubles, ask=metadata is not None)
    if largest is not None:
        columns["size_max_bytes"] = largest
    elif fresh:
        return
    if stub:
        columns["stands_for"] = list(stub)
    elif metadata is not None and key[1] == "x86_64" and (pins := _pins(metadata, key[1])):
        columns["pins"] = list(pins)
    reading.add("tensorflow_wheels", **columns)


def _add_release(
    reading: SourceReading,
    known: CurrentRows,
    version: Version,
    groups: dict[Key, list[LinuxWheel]],
    read: dict[Key, tuple[LinuxWheel, IndexMetadata]],
    infos: dict[Key, WheelBuildInfo | None],
) -> None:
    wheels = [wheel for (v, _), group in groups.items() if v == version for wheel in group]
    requires = next((w.file.requires_python for w in wheels if w.file.requires_python), None)
    columns: dict[str, object] = {
        "version": str(version),
        "yanked": all(wheel.file.yanked for wheel in wheels),
    }
    if requires is not None:
        columns["requires_python"] = requires
    key = (version, "x86_64")
    fresh = known.row("tensorflow_releases", columns) is None
    if key in read:
        wheel, metadata = read[key]
        info = infos.get(key)
        extra = needed(metadata, "x86_64", extra=EXTRA, python=python_of(wheel))
        cuda = (info.cuda if info else None) or cuda_of(extra)
        columns |= {
            "cuda": cuda,
            "cudnn": _cudnn(extra),
            "libraries": "extra" if EXTRA in metadata.extras else "system",
            "requires_python": requires or metadata.requires_python,
            "sm": list(info.sm) if info and info.sm else None,
            "ptx": info.ptx if info else None,
        }
        if info and info.sm:
            columns["sm_source"] = f"{BUILD_INFO} inside the wheel of that release"
        if fresh and cuda is None and (bound := cuda_of(extra, bounds=True)) is not None:
            columns |= {"cuda": bound, "note": _BOUNDS_NOTE}
    if not fresh:
        reading.add("tensorflow_releases", **columns)
        return
    if key not in read:
        return
    if columns["cuda"] is None and not version.is_prerelease:
        reading.troubles.append(
            SourceError(
                f"Which CUDA tensorflow {version} is for is neither in its METADATA nor in "
                f"{BUILD_INFO}.",
                fix="No action is needed; the release is skipped.",
            )
        )
        return
    reading.add(
        "tensorflow_releases",
        **columns,
        upload_time=first_upload(wheels),
        prerelease=version.is_prerelease,
    )


def _pins(metadata: IndexMetadata, arch: str) -> tuple[str, ...]:
    """Everything that the extra adds, including TensorRT if it does."""
    return tuple(
        sorted(
            f"{canonicalize_name(r.name)}{r.specifier}" for r in needed(metadata, arch, extra=EXTRA)
        )
    )


def _cudnn(extra: Sequence[Requirement]) -> str | None:
    found = named(extra, "nvidia-cudnn")
    version = lowest(found) if found else None
    return minor_of(version) if version else None
