"""JAX on the package index: jaxlib, and the plugins that bring CUDA to it."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.requirements import Requirement

from provision.catalog.index.wheels import (
    ARCHS,
    builds_of,
    by_release,
    cpython_tags,
    first_upload,
    glibc_of,
    named,
    needed,
    python_of,
)
from provision.catalog.refresh.model import Asking, SourceReading

LIBRARY = "jaxlib"
_EXTRA = "with-cuda"


def read_jax(asking: Asking) -> SourceReading:
    """The rows of `jax_releases` and `jax_plugins`. No index says which GPUs and which driver a
    plugin supports: a new one is assumed to support those of the plugin before it.
    """
    reading = asking.of_index("pages of jaxlib and its CUDA plugins, METADATA of the plugins")
    index, known = asking.index, asking.known
    oldest = known.oldest("jax_releases")
    for version, wheels in by_release(builds_of(index.wheels(LIBRARY), oldest)).items():
        reading.add(
            "jax_releases",
            version=str(version),
            python_tags=list(cpython_tags(wheels)),
            archs=[arch for arch in ARCHS if any(wheel.arch == arch for wheel in wheels)],
            glibc=glibc_of(wheels),
            upload_time=first_upload(wheels),
        )
    first = min((row.cuda_major for row in known.catalog.jax_plugins), default=0)
    majors = [major for major in known.cuda_majors if major >= first]
    projects = {f"jax-cuda{major}-plugin": major for major in majors}
    plugins = {
        (version, projects[project]): wheels
        for project, releases in index.releases(projects, reading.troubles, oldest).items()
        for version, wheels in releases.items()
    }
    wanted = {
        (version, major): wheels
        for (version, major), wheels in plugins.items()
        if known.row("jax_plugins", {"version": str(version), "cuda_major": major}) is None
    }
    for (version, major), (wheel, metadata) in index.metadata(wanted, reading.troubles).items():
        extra = needed(metadata, wheel.arch or ARCHS[0], extra=_EXTRA, python=python_of(wheel))
        columns: dict[str, object] = {
            "version": str(version),
            "cuda_major": major,
            "package": wheel.project,
            "extra": f"cuda{major}",
            "cuda_runtime": _asked(extra, "nvidia-cuda-runtime"),
            "cudnn": _asked(extra, "nvidia-cudnn"),
            "nccl": _asked(extra, "nvidia-nccl"),
        }
        if _EXTRA in metadata.extras:
            columns["plugin_extra"] = metadata.extras[_EXTRA]
        carried = known.carried_over("jax_plugins", version, major, ("min_driver", "sm_min"))
        reading.add("jax_plugins", **columns, **carried)
    return reading


def _asked(extra: Sequence[Requirement], prefix: str) -> str | None:
    found = named(extra, prefix)
    return str(found.specifier) or None if found else None
