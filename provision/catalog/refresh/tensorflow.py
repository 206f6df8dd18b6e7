"""TensorFlow on the package index: releases, wheels, and the CUDA libraries of its extra.

What a wheel alone says (for which GPUs it is compiled) is read by `catalog measure`.
"""

from __future__ import annotations

from packaging.utils import canonicalize_name

from provision.catalog.index.wheels import (
    IndexMetadata,
    LinuxWheel,
    builds_of,
    by_release,
    cpython_tags,
    cuda_of,
    exact,
    first_upload,
    glibc_of,
    lowest,
    minor_of,
    named,
    needed,
    python_of,
    requires_python,
    sizes_of,
)
from provision.catalog.refresh.current_rows import as_version
from provision.catalog.refresh.model import Asking, SourceReading, unsaid

PROJECT = "tensorflow"
EXTRA = "and-cuda"
_BOUNDS_NOTE = "CUDA and cuDNN are the lowest that the extra and-cuda takes."


def read_tensorflow(asking: Asking) -> SourceReading:
    """The rows of `tensorflow_releases` and `tensorflow_wheels`. A new wheel is assumed to be a GPU
    build if the newest known one for that machine is.
    """
    reading = asking.of_index("page and METADATA of tensorflow")
    index, known = asking.index, asking.known
    oldest = known.oldest("tensorflow_releases")
    groups = builds_of(index.wheels(PROJECT), oldest)
    rows = {
        (version, row["arch"]): row
        for row in known.rows("tensorflow_wheels")
        if (version := as_version(row["version"])) is not None
    }
    fresh = {key: group for key, group in groups.items() if key not in rows}
    read = index.metadata(fresh, reading.troubles)
    for key, group in groups.items():
        version, arch = key
        columns: dict[str, object] = {
            "version": str(version),
            "arch": arch,
            "python_tags": list(cpython_tags(group)),
            "glibc": glibc_of(group),
        }
        if sizes := sizes_of(group):
            columns["size_max_bytes"] = max(sizes)
        if key in read:
            before = [v for v, known_arch in rows if known_arch == arch and v <= version]
            gpu = rows[max(before), arch]["gpu"] if before else None
            columns |= _wheel(read[key][1], arch, gpu=gpu)
        if key in read or key in rows:
            reading.add("tensorflow_wheels", **columns)
    for version, wheels in by_release(groups).items():
        columns = {
            "version": str(version),
            "yanked": all(wheel.file.yanked for wheel in wheels),
            "requires_python": requires_python(wheels),
        }
        if (version, "x86_64") in read:
            columns |= _release(*read[version, "x86_64"])
            columns |= {"upload_time": first_upload(wheels), "prerelease": False}
            if columns["cuda"] is None:
                reading.troubles.append(unsaid(f"tensorflow {version}"))
                continue
        reading.add("tensorflow_releases", **columns)
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


def _wheel(metadata: IndexMetadata, arch: str, *, gpu: object) -> dict[str, object]:
    if stub := stands_for(metadata, arch):
        return {"gpu": False, "stands_for": list(stub)}
    # everything that the extra adds, including TensorRT if it does
    extra = needed(metadata, arch, extra=EXTRA) if arch == "x86_64" else ()
    pins = sorted(f"{canonicalize_name(row.name)}{row.specifier}" for row in extra)
    return {"gpu": gpu, "confidence": "assumed"} | ({"pins": pins} if pins else {})


def _release(wheel: LinuxWheel, metadata: IndexMetadata) -> dict[str, object]:
    extra = needed(metadata, "x86_64", extra=EXTRA, python=python_of(wheel))
    cuda, cudnn = cuda_of(extra), named(extra, "nvidia-cudnn")
    columns: dict[str, object] = {
        "cuda": cuda or cuda_of(extra, bounds=True),
        "cudnn": minor_of(lowest(cudnn) or "") if cudnn else None,
        "libraries": "extra" if EXTRA in metadata.extras else "system",
        "sm": None,
        "ptx": None,
    }
    return columns | ({} if cuda else {"note": _BOUNDS_NOTE})
