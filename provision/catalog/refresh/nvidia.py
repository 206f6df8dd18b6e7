"""NVIDIA's libraries on the default index: cuDNN, NCCL, and the toolkits that are packages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from packaging.version import Version

from provision.catalog.refresh.index import Index
from provision.catalog.refresh.known import CurrentRows, as_version, key_of
from provision.catalog.refresh.model import Part, Sighting, SourceError, SourceReading
from provision.catalog.refresh.shared import (
    carried_over,
    first_upload,
    is_mirror,
    note_absent,
)
from provision.catalog.refresh.wheels import ARCHS, LinuxWheel, linux_wheels, listed_versions

TOOLKIT = "cuda-toolkit"


def library_projects(library: str, known: CurrentRows) -> dict[int, str]:
    """ "cudnn" -> its package for each CUDA major, and for the next, which may have one."""
    newest = max(known.cuda_majors, default=0)
    return {major: f"nvidia-{library}-cu{major}" for major in (*known.cuda_majors, newest + 1)}


def read_cudnn(index: Index, known: CurrentRows) -> SourceReading:
    """The rows of `cudnn`. No index says which GPUs and which driver a version supports: a new one
    is assumed to support those of the version before it.
    """
    return _read_library(index, known, "cudnn", unread=("capabilities", "min_driver"))


def read_nccl(index: Index, known: CurrentRows) -> SourceReading:
    """The rows of `nccl`; which GPUs a new version takes is assumed likewise."""
    return _read_library(index, known, "nccl", unread=("sm_min",))


def read_toolkits(index: Index, known: CurrentRows) -> SourceReading:
    """`on_pypi` of the toolkits. A toolkit that the catalog lacks is reported, unless NVIDIA's
    manifests give the rest of its row: the GPUs that it compiles for cannot be read here.
    """
    reading = SourceReading(source="toolkits")
    versions = [
        version
        for version in sorted({wheel.version for wheel in index.wheels(TOOLKIT)})
        if not version.is_prerelease
    ]
    if not versions:
        raise SourceError(
            f"{index.name} lists no wheel of {TOOLKIT}.",
            fix="Name an index that has them: --index URL",
        )
    listed = {full_version(version): version for version in versions}
    for full in listed:
        if known.row("toolkits", {"full": full}) is not None:
            reading.add("toolkits", full=full, on_pypi=True)
        else:
            words = (
                f"{index.name} has {TOOLKIT} {full}, which the catalog does not know; what it "
                "compiles for and its driver are not read there"
            )
            columns = {"full": full, "on_pypi": True}
            reading.parts.append(Part(table="toolkits", columns=columns, words=words))
    there = [row for row in known.rows("toolkits") if row["on_pypi"] is True]
    rows = {v: row for row in there if (v := as_version(row["full"])) is not None}
    here = [Version(full) for full in listed]
    if not is_mirror(reading, rows, here, index.name):
        for version in sorted(rows.keys() - set(here)):
            words = f"{index.name} does not list it"
            note_absent(reading, "toolkits", rows[version], {"on_pypi": False}, words)
    return reading


def full_version(version: Version) -> str:
    """The toolkit version of a release of its package: 13.0.3.0 is 13.0.3."""
    release = version.release
    if len(release) == 4 and release[3] == 0:
        return ".".join(str(part) for part in release[:3])
    return str(version)


def _read_library(
    index: Index, known: CurrentRows, library: str, *, unread: Sequence[str]
) -> SourceReading:
    reading = SourceReading(source=library)
    projects = library_projects(library, known)
    pages = index.pages(projects.values(), reading.troubles)
    if not pages and reading.troubles:
        raise reading.troubles[0]
    if not pages:
        raise SourceError(
            f"{index.name} has none of {', '.join(projects.values())}.",
            fix="Name an index that has them: --index URL",
        )
    for major, project in projects.items():
        if project not in pages:
            continue
        files = pages[project].files
        for version, wheels in _by_version(linux_wheels(files, project)).items():
            uploaded = first_upload(wheels)
            columns: dict[str, object] = {
                "version": str(version),
                "cuda_major": major,
                "archs": [arch for arch in ARCHS if any(wheel.arch == arch for wheel in wheels)],
                "upload_date": uploaded[:10] if uploaded else None,
            }
            if library == "cudnn":
                columns["yanked"] = all(wheel.file.yanked for wheel in wheels)
            if known.row(library, columns) is None:
                carried = carried_over(known, library, version, major, unread)
                if carried is None:
                    words = (
                        f"{index.name} has it, and the catalog nothing of CUDA {major} before it"
                    )
                    key = key_of(library, columns)
                    reading.seen.append(Sighting(table=library, key=key, kind="new", words=words))
                    continue
                columns |= carried
            reading.add(library, **columns)
        rows = {
            v: row
            for row in known.rows(library)
            if row["cuda_major"] == major and (v := as_version(row["version"])) is not None
        }
        listed = listed_versions(files, project)
        if not is_mirror(reading, rows, listed, index.name):
            for version in sorted(rows.keys() - listed):
                note_absent(reading, library, rows[version], None, f"{index.name} has no such file")
    return reading


def _by_version(wheels: Sequence[LinuxWheel]) -> dict[Version, list[LinuxWheel]]:
    groups: dict[Version, list[LinuxWheel]] = defaultdict(list)
    for wheel in wheels:
        if not wheel.version.is_prerelease:
            groups[wheel.version].append(wheel)
    return {version: groups[version] for version in sorted(groups)}
