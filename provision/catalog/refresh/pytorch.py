"""PyTorch: releases, default builds and companions of the package index, and the PyTorch index,
which has a page for each wheel tag.

A tag's page also lists the wheels in the directory above the tags, which have no tag of their own.

Source of the pages' shape: github.com/pytorch/test-infra s3_management/manage.py at 027dd1349934
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from images.net.address import host_of
from provision.catalog.index.client import Index, each
from provision.catalog.index.fetch import SourceError
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
    gpu_pins,
    is_gpu_library,
    linux_wheels,
    named,
    needed,
    python_of,
    requires_python,
    sizes_of,
)
from provision.catalog.refresh.current_rows import CurrentRows, as_version
from provision.catalog.refresh.model import Asking, SourceReading, template_of, unsaid

COMPANIONS = ("torchvision", "torchaudio")
_PROJECT = "torch"
_TAG = re.compile(r"cu(\d{1,2})(\d)")
_PLACEHOLDER = "{tag}"

Read = tuple[LinuxWheel, IndexMetadata]


def read_torch(asking: Asking) -> SourceReading:
    """The rows of `releases` and `builds` that the package index has data for; METADATA of builds
    that the catalog does not know, as an uploaded file never changes.
    """
    reading = asking.of_index("pages and METADATA of torch, torchvision and torchaudio")
    index, known = asking.index, asking.known
    groups = builds_of(index.wheels(_PROJECT), known.oldest("releases"))
    there = {
        (row.version, str(row.arch)): row.tag for row in known.catalog.torch if "pypi" in row.at
    }
    unread = {key: group for key, group in groups.items() if (str(key[0]), key[1]) not in there}
    read = index.metadata(unread, reading.troubles)
    for key, group in groups.items():
        tag = there.get((str(key[0]), key[1]))
        build = judge_build(read[key], key[1]) if key in read else None
        if build is not None:
            tag = tag_of(build["cuda"])
        elif key in read:
            reading.troubles.append(unsaid(read[key][0].file.name))
        if tag is not None:
            row = _row(key, tag, group, "pypi", build)
            if sizes := sizes_of(group):
                row |= {"size_min_bytes": min(sizes), "size_max_bytes": max(sizes)}
            reading.add("builds", **row)
    _add_releases(reading, asking, groups, read)
    return reading


def read_pytorch_index(asking: Asking) -> SourceReading:
    """The rows of `builds` that the tags' pages list."""
    known, override = asking.known, asking.pytorch_index
    template = template_of(known.catalog.pytorch_index_template, override, _PLACEHOLDER)
    name = "the PyTorch index" if override is None else host_of(template)
    place = name if override is None else f"the PyTorch index at {name}"
    reading = asking.reading(name, place, "the pages of torch, one a wheel tag")
    template = asking.fetcher.add_login(template.rstrip("/"))
    tags = dict.fromkeys(row.tag for row in known.catalog.torch)
    troubles: dict[str, list[SourceError]] = defaultdict(list)

    def wheels_of(tag: str) -> list[LinuxWheel]:
        index = Index(template.replace(_PLACEHOLDER, tag), name, asking.fetcher)
        pages = index.pages([_PROJECT], troubles[tag])
        return [one for page in pages.values() for one in linux_wheels(page.files, _PROJECT)]

    wanted = sorted({*tags, *newer_tags(known)}, key=_rank)
    wheels = each({tag: tag for tag in wanted}, wheels_of, [])
    reading.troubles += [error for tag in tags for error in troubles[tag]]
    if not any(wheels.values()):
        nothing = f"{name} has no page of {_PROJECT} for any wheel tag."
        fix = "Name the address above the tags: --pytorch-index URL"
        raise next(iter(reading.troubles), SourceError(nothing, fix=fix))
    groups = {
        (tag, version, arch): group
        for tag in wanted
        for (version, arch), group in builds_of(wheels[tag], known.oldest("releases"), tag).items()
    }
    fresh = {
        (tag, version, arch): group
        for (tag, version, arch), group in groups.items()
        if known.row("builds", {"version": str(version), "tag": tag, "arch": arch}) is None
        and any(wheel.file.metadata for wheel in group)
    }
    read = Index(template, name, asking.fetcher).metadata(fresh, reading.troubles)
    for key, group in groups.items():
        tag, version, arch = key
        build = judge_build(read[key], arch) if key in read else None
        if build is None or tag_of(build["cuda"]) != tag:
            build = {"cuda": cuda_of_tag(tag)}
        reading.add("builds", **_row((version, arch), tag, group, "pytorch", build))
    return reading


def judge_build(read: Read, arch: str) -> dict[str, object] | None:
    """What METADATA says about the build, as columns; None: it does not say.

    If NVIDIA's packages are required: CUDA X.Y from the pin of the toolkit or its runtime. If they
    are required on another machine only: a CPU build. If they are not named at all: unknown, since
    PyTorch before 1.13 bundled CUDA.
    """
    wheel, metadata = read
    requirements = needed(metadata, arch, python=python_of(wheel))
    if not any(is_gpu_library(row) for row in requirements):
        return {"cuda": None} if any(is_gpu_library(row) for row in metadata.requires) else None
    cuda = cuda_of(requirements)
    if cuda is None:
        return None
    return {
        "cuda": cuda,
        "cudnn": _pinned(requirements, "nvidia-cudnn"),
        "nccl": _pinned(requirements, "nvidia-nccl"),
        "pins": list(gpu_pins(requirements)),
    }


def judge_companions(
    read: Mapping[Version, IndexMetadata], yanked: Iterable[Version] = ()
) -> dict[str, str]:
    """Metadata of a companion, by release -> which of them goes with which torch.

    Only an exact pin pairs; of several the newest counts, and yanked ones never do.
    """
    by_torch: dict[str, str] = {}
    for version in sorted(read.keys() - set(yanked)):
        for asks in read[version].requires:
            if canonicalize_name(asks.name) == _PROJECT and (pinned := exact(asks)) is not None:
                by_torch[str(Version(pinned))] = str(version)
    return by_torch


def newer_tags(known: CurrentRows) -> tuple[str, ...]:
    """The tags that CUDAs newer than every known tag's would have."""
    cudas = (Version(row.cuda) for row in known.catalog.torch if row.cuda)
    newest = max(cudas, default=Version("0"))
    return tuple(tag_of(text) for text in known.catalog.cuda_versions() if Version(text) > newest)


def cuda_of_tag(tag: str) -> str | None:
    """ "cu117" -> "11.7"; None: no CUDA."""
    found = _TAG.fullmatch(tag)
    return f"{found[1]}.{found[2]}" if found else None


def tag_of(cuda: object) -> str:
    """ "11.7" -> "cu117"; None -> "cpu"."""
    return "cpu" if cuda is None else f"cu{str(cuda).replace('.', '')}"


def _rank(tag: str) -> tuple[Version, str]:
    return Version(cuda_of_tag(tag) or "0"), tag


def _pinned(requirements: Sequence[Requirement], prefix: str) -> str | None:
    found = named(requirements, prefix)
    return exact(found) if found else None


def _row(
    key: tuple[Version, str],
    tag: str,
    group: Sequence[LinuxWheel],
    place: str,
    build: Mapping[str, object] | None,
) -> dict[str, object]:
    """A row of `builds`; `build` None: a known one, of which METADATA was not read."""
    return {
        "version": str(key[0]),
        "tag": tag,
        "arch": key[1],
        "python_tags": list(cpython_tags(group)),
        **dict.fromkeys(("cuda", "sm", "ptx", "cudnn", "nccl")),
        "glibc": glibc_of(group),
        "existence": "confirmed",
        "at": [place],
        **(build or {}),
    }


def _add_releases(
    reading: SourceReading,
    asking: Asking,
    groups: Mapping[tuple[Version, str], list[LinuxWheel]],
    read: Mapping[tuple[Version, str], Read],
) -> None:
    by_version = by_release(groups)
    fresh = {v for v in by_version if asking.known.row("releases", {"version": str(v)}) is None}
    paired = {p: _companions(reading, asking, p, any_new=bool(fresh)) for p in COMPANIONS}
    for version, wheels in by_version.items():
        found = {project: by_torch.get(str(version)) for project, by_torch in paired.items()}
        columns: dict[str, object] = {
            "version": str(version),
            "requires_python": requires_python(wheels),
            "yanked": all(wheel.file.yanked for wheel in wheels),
            **found,
        }
        if version in fresh:
            columns |= {"upload_time": first_upload(wheels), "numpy": None}
            if lacks := [project for project, one in found.items() if one is None]:
                columns["pairing_note"] = f"No {' or '.join(lacks)} asks for torch {version} alone."
        if version not in fresh or any(v == version for v, _ in read):
            reading.add("releases", **columns)


def _companions(
    reading: SourceReading, asking: Asking, project: str, *, any_new: bool
) -> dict[str, str]:
    """Which release of a companion goes with which torch. Reads those newer than any that the
    catalog has paired; if there is a new torch (which may be of an older series), those not paired.
    """
    groups = asking.index.releases([project], reading.troubles).get(project, {})
    rows = asking.known.rows("releases")
    paired = [v for row in rows if (v := as_version(row[project])) is not None]
    oldest, newest = min(paired, default=Version("0")), max(paired, default=Version("0"))
    wanted = {
        version: group
        for version, group in groups.items()
        if version > newest or (any_new and version >= oldest and version not in paired)
    }
    read = asking.index.metadata(wanted, reading.troubles)
    yanked = [v for v, group in groups.items() if all(wheel.file.yanked for wheel in group)]
    return judge_companions({v: metadata for v, (_, metadata) in read.items()}, yanked)
