"""The PyTorch index: one page per wheel tag, which lists the builds.

A tag's page also lists the wheels in the directory above the tags, which have no tag of their own;
the page above the tags lists everything, and so names tags that the catalog lacks.

Source of the pages' shape: github.com/pytorch/test-infra s3_management/manage.py at 027dd1349934
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from packaging.version import Version

from provision.catalog.refresh.fetch import PageFetcher
from provision.catalog.refresh.index import Index
from provision.catalog.refresh.known import CurrentRows, as_version
from provision.catalog.refresh.model import SourceError, SourceReading
from provision.catalog.refresh.pages import Page
from provision.catalog.refresh.pytorch import judge_build
from provision.catalog.refresh.shared import is_mirror, note_absent
from provision.catalog.refresh.threads import Threads
from provision.catalog.refresh.wheels import (
    IndexMetadata,
    LinuxWheel,
    cpython_tags,
    glibc_of,
    linux_wheels,
    python_of,
)

_TAG = re.compile(r"cu(\d{1,2})(\d)")
_PLACEHOLDER = "{tag}"
_PROJECT = "torch"

Key = tuple[str, str, str]
"""(release, tag, machine): identifies a build."""


def address_template(shipped: str, override: str | None) -> str:
    """The URL of a tag's index, with {tag} in it; an override is such a URL, or its parent."""
    if override is None:
        return shipped
    return override if _PLACEHOLDER in override else f"{override.rstrip('/')}/{_PLACEHOLDER}"


def read_pytorch_index(
    template: str,
    name: str,
    known: CurrentRows,
    fetcher: PageFetcher,
    threads: Threads,
    *,
    is_own: bool,
) -> SourceReading:
    """The rows of `builds` that the tags' pages list. `is_own`: PyTorch's own index, not a
    mirror.
    """
    reading = SourceReading(source="pytorch-index")
    template = fetcher.add_login(template.rstrip("/"))
    known_tags = list(dict.fromkeys(str(row["tag"]) for row in known.rows("builds")))
    listed = _listed_tags(template, name, fetcher, threads, known)
    indexes = {
        tag: Index(template.replace(_PLACEHOLDER, tag), name, fetcher, threads)
        for tag in sorted({*known_tags, *newer_tags(known), *listed}, key=_rank)
    }
    for index in indexes.values():
        index.prefetch([_PROJECT])
    pages = _read_pages(reading, indexes, known_tags, is_own=is_own)
    groups = {
        (str(version), tag, arch): group
        for tag, page in pages.items()
        for (version, arch), group in builds_on(page, tag, known.oldest("releases")).items()
    }
    fresh = {
        key: group
        for key, group in groups.items()
        if known.row("builds", _columns(key)) is None and any(w.file.metadata for w in group)
    }
    any_index = next(iter(indexes.values()))
    metadata = any_index.metadata(fresh, reading.troubles) if fresh else {}
    for key, group in groups.items():
        reading.add("builds", **_row(key, group, metadata.get(key)))
    _note_gone(reading, known, pages, groups, name)
    return reading


def builds_on(page: Page, tag: str, oldest: Version) -> dict[tuple[Version, str], list[LinuxWheel]]:
    """The builds of one tag on its page, by release and machine; other files are ignored.

    A wheel without a local version says nothing about CUDA: those on the CPU page are CPU builds.
    """
    groups: dict[tuple[Version, str], list[LinuxWheel]] = defaultdict(list)
    for wheel in linux_wheels(page.files, _PROJECT):
        local = wheel.version.local
        of_tag = local == tag or (local is None and tag == "cpu")
        version = Version(wheel.version.public)
        if of_tag and wheel.arch and not version.is_prerelease and version >= oldest:
            groups[version, wheel.arch].append(wheel)
    return {key: groups[key] for key in sorted(groups)}


def newer_tags(known: CurrentRows) -> tuple[str, ...]:
    """The tags that CUDAs newer than every known tag's would have."""
    cudas = [v for row in known.rows("builds") if (v := as_version(row["cuda"] or "")) is not None]
    newest = max(cudas, default=Version("0"))
    versions = known.catalog.cuda_versions()
    return tuple(f"cu{text.replace('.', '')}" for text in versions if Version(text) > newest)


def tags_among(links: Iterable[str]) -> tuple[str, ...]:
    """The wheel tags in URLs: as a directory, or as the local part of a version."""
    found = set()
    for link in links:
        path = urlsplit(link).path
        found |= {part for part in path.split("/") if _TAG.fullmatch(part)}
        if match := re.search(r"(?:\+|%2[Bb])(cu\d{2,4})-", path):
            found.add(match[1])
    return tuple(sorted(found, key=_rank))


def cuda_of_tag(tag: str) -> str | None:
    """ "cu117" -> "11.7"; None: no CUDA."""
    found = _TAG.fullmatch(tag)
    return f"{found[1]}.{found[2]}" if found else None


def _listed_tags(
    template: str, name: str, fetcher: PageFetcher, threads: Threads, known: CurrentRows
) -> tuple[str, ...]:
    """What the page above the tags says of them, if it exists: it only adds to the known tags."""
    root, _, rest = template.partition(f"/{_PLACEHOLDER}")
    if rest:
        return ()
    index = Index(root, name, fetcher, threads)
    above = index.pages(("", _PROJECT), [])
    links = [link for page in above.values() for link in page.links]
    oldest = known.oldest_cuda
    return tuple(tag for tag in tags_among(links) if Version(cuda_of_tag(tag) or "0") >= oldest)


def _read_pages(
    reading: SourceReading, indexes: Mapping[str, Index], known_tags: list[str], *, is_own: bool
) -> dict[str, Page]:
    """The page of each tag. A tag that existed and no longer does has an empty page."""
    pages: dict[str, Page] = {}
    for tag, index in indexes.items():
        troubles: list[SourceError] = []
        page = index.page_or_none(_PROJECT, troubles)
        if page is not None:
            pages[tag] = page
        elif tag in known_tags and troubles:
            reading.troubles += troubles
        elif tag in known_tags and is_own:
            pages[tag] = Page(())
    if not any(page.files for page in pages.values()):
        raise (
            reading.troubles[0]
            if reading.troubles
            else SourceError(
                f"{next(iter(indexes.values())).name} has no page of {_PROJECT} for any wheel tag.",
                fix="Name the address above the tags: --pytorch-index URL",
            )
        )
    return pages


def _row(
    key: Key, group: list[LinuxWheel], read: tuple[LinuxWheel, IndexMetadata] | None
) -> dict[str, object]:
    version, tag, arch = key
    build = judge_build(read[1], arch, python_of(read[0])) if read else None
    agrees = build is not None and build.tag == tag
    columns: dict[str, object] = {
        "version": version,
        "tag": tag,
        "cuda": cuda_of_tag(tag),
        "arch": arch,
        "python_tags": list(cpython_tags(group)),
        "sm": None,
        "ptx": None,
        "cudnn": build.cudnn if build and agrees else None,
        "nccl": build.nccl if build and agrees else None,
        "glibc": glibc_of(group),
        "existence": "confirmed",
        "at": ["pytorch"],
    }
    if build and agrees and build.pins:
        columns["pins"] = list(build.pins)
    return columns


def _note_gone(
    reading: SourceReading,
    known: CurrentRows,
    pages: Mapping[str, Page],
    groups: Mapping[Key, list[LinuxWheel]],
    name: str,
) -> None:
    said = {
        (str(row["version"]), str(row["tag"]), str(row["arch"])): row
        for row in known.rows("builds")
        if row["tag"] in pages and "pytorch" in (row["at"] if isinstance(row["at"], list) else ())
    }
    sure = {key for key, row in said.items() if row["existence"] == "confirmed"}
    if is_mirror(reading, sure, groups, name):
        return
    for key, row in said.items():
        if key in groups or row["existence"] == "doubtful":
            continue
        places = row["at"] if isinstance(row["at"], list) else []
        others = [place for place in places if place != "pytorch"]
        patch = {"at": others} if others else {"existence": "doubtful"}
        note_absent(reading, "builds", row, patch, f"{name} does not list it")


def _columns(key: Key) -> dict[str, object]:
    return dict(zip(("version", "tag", "arch"), key, strict=True))


def _rank(tag: str) -> tuple[Version, str]:
    return Version(cuda_of_tag(tag) or "0"), tag
