"""JAX on the default index: jaxlib, and the plugins that bring CUDA to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from packaging.requirements import Requirement
from packaging.version import Version

from provision.catalog.refresh.index import Index
from provision.catalog.refresh.known import CurrentRows, as_version, key_of
from provision.catalog.refresh.model import Sighting, SourceError, SourceReading
from provision.catalog.refresh.shared import carried_over, first_upload, is_mirror, note_absent
from provision.catalog.refresh.wheels import (
    ARCHS,
    LinuxWheel,
    cpython_tags,
    glibc_of,
    linux_wheels,
    listed_versions,
    named,
    needed,
    python_of,
)

LIBRARY = "jaxlib"
_EXTRA = "with-cuda"


def plugin_projects(known: CurrentRows) -> dict[int, str]:
    """The plugin of each known CUDA major, and of the next one, which may have one."""
    majors = {row["cuda_major"] for row in known.rows("jax_plugins")}
    newest = max(known.cuda_majors, default=0)
    wanted = {major for major in majors if isinstance(major, int)} | {newest, newest + 1}
    return {major: f"jax-cuda{major}-plugin" for major in sorted(wanted) if major > 0}


def read_jax(index: Index, known: CurrentRows, *, recheck: bool) -> SourceReading:
    """The rows of `jax_releases` and `jax_plugins`."""
    reading = SourceReading(source="jax")
    projects = plugin_projects(known)
    index.prefetch([LIBRARY, *projects.values()])
    oldest = known.oldest("jax_releases")
    libraries = _by_version(index.wheels(LIBRARY), oldest)
    if not libraries:
        raise SourceError(
            f"{index.name} lists no wheel of {LIBRARY} for Linux.",
            fix="Name an index that has them: --index URL",
        )
    for version, wheels in libraries.items():
        reading.add(
            "jax_releases",
            version=str(version),
            python_tags=list(cpython_tags(wheels)),
            archs=[arch for arch in ARCHS if any(wheel.arch == arch for wheel in wheels)],
            glibc=glibc_of(wheels),
            upload_time=first_upload(wheels),
        )
    pages = index.pages(projects.values(), reading.troubles)
    for major, project in projects.items():
        if project in pages:
            wheels = linux_wheels(pages[project].files, project)
            plugins = _by_version(wheels, oldest)
            _add_plugins(reading, index, known, major, project, plugins, recheck=recheck)
    listed = listed_versions(index.page(LIBRARY).files, LIBRARY)
    rows = {v: row for row in known.rows("jax_releases") if (v := as_version(row["version"]))}
    if not is_mirror(reading, rows, listed, index.name):
        for version in sorted(rows.keys() - listed):
            note_absent(
                reading, "jax_releases", rows[version], None, f"{index.name} has no such file"
            )
    return reading


def _add_plugins(
    reading: SourceReading,
    index: Index,
    known: CurrentRows,
    major: int,
    project: str,
    plugins: dict[Version, list[LinuxWheel]],
    *,
    recheck: bool,
) -> None:
    def is_fresh(version: Version) -> bool:
        key = {"version": str(version), "cuda_major": major}
        return known.row("jax_plugins", key) is None

    wanted = {v: wheels for v, wheels in plugins.items() if recheck or is_fresh(v)}
    for version, (wheel, metadata) in index.metadata(wanted, reading.troubles).items():
        extra = needed(metadata, wheel.arch or ARCHS[0], extra=_EXTRA, python=python_of(wheel))
        columns: dict[str, object] = {
            "version": str(version),
            "cuda_major": major,
            "package": project,
            "extra": f"cuda{major}",
            "cuda_runtime": _asked(extra, "nvidia-cuda-runtime"),
            "cudnn": _asked(extra, "nvidia-cudnn"),
            "nccl": _asked(extra, "nvidia-nccl"),
        }
        if _EXTRA in metadata.extras:
            columns["plugin_extra"] = metadata.extras[_EXTRA]
        if is_fresh(version):
            carried = carried_over(known, "jax_plugins", version, major, ("min_driver", "sm_min"))
            if carried is None:
                words = f"{index.name} has it, and the catalog nothing of CUDA {major} before it"
                key = key_of("jax_plugins", columns)
                reading.seen.append(Sighting(table="jax_plugins", key=key, kind="new", words=words))
                continue
            columns |= carried
        reading.add("jax_plugins", **columns)


def _by_version(wheels: Sequence[LinuxWheel], oldest: Version) -> dict[Version, list[LinuxWheel]]:
    groups: dict[Version, list[LinuxWheel]] = defaultdict(list)
    for wheel in wheels:
        version = wheel.version
        if version >= oldest and version.local is None and not version.is_prerelease:
            groups[version].append(wheel)
    return {version: groups[version] for version in sorted(groups)}


def _asked(extra: Sequence[Requirement], prefix: str) -> str | None:
    found = named(extra, prefix)
    return str(found.specifier) or None if found else None
