"""cuDNN and NCCL on the package index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from provision.catalog.index.fetch import SourceError
from provision.catalog.index.wheels import (
    ARCHS,
    first_upload,
)
from provision.catalog.refresh.model import Asking, SourceReading


def _read_library(asking: Asking, library: str, unread: Sequence[str]) -> SourceReading:
    """The rows of a library. No index says which GPUs and which driver a version supports: a new
    one is assumed to support those of the version before it.
    """
    reading = asking.of_index(f"pages of nvidia-{library}-cu*")
    index, known = asking.index, asking.known
    projects = {f"nvidia-{library}-cu{major}": major for major in known.cuda_majors}
    found = index.releases(projects, reading.troubles)
    if not found:
        nothing = SourceError(
            f"{index.name} has none of {', '.join(projects)}.",
            fix="Name an index that has them: --index URL",
        )
        raise next(iter(reading.troubles), nothing)
    for project, releases in found.items():
        for version, wheels in releases.items():
            columns: dict[str, object] = {
                "version": str(version),
                "cuda_major": projects[project],
                "archs": [arch for arch in ARCHS if any(wheel.arch == arch for wheel in wheels)],
                "upload_date": (first_upload(wheels) or "")[:10] or None,
            }
            if library == "cudnn":
                columns["yanked"] = all(wheel.file.yanked for wheel in wheels)
            if known.row(library, columns) is None:
                columns |= known.carried_over(library, version, projects[project], unread)
            reading.add(library, **columns)
    return reading


read_cudnn = partial(_read_library, library="cudnn", unread=("capabilities", "min_driver"))
read_nccl = partial(_read_library, library="nccl", unread=("sm_min",))
