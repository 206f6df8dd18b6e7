"""Image tags of a registry -> rows of `images` and `python_images`."""

from __future__ import annotations

import re

from packaging.version import Version

from images.registry.errors import ImageNotFoundError, RegistryAnswerError, RegistryUnreachableError
from images.registry.tags import list_tags
from provision.catalog.index.fetch import SourceError
from provision.catalog.refresh.model import Asking, SourceReading

_CUDA_TAG = re.compile(
    r"(\d+\.\d+)(?:\.\d+)?(?:-cudnn\d*)?(?:-tensorrt\d*)?-(?:base|runtime|devel)-[a-z]+[\d.]+",
    re.ASCII,
)
_PYTHON_TAG = re.compile(r"(3\.\d+)-slim-([a-z]+)", re.ASCII)
_FIX = "Check that this machine can reach it, or name a mirror: --registry HOST"


def read_cuda_images(asking: Asking, registry: str | None) -> SourceReading:
    """NVIDIA's images, of the CUDAs that the catalog goes back to."""
    known = asking.known
    reading, tags = _tags(asking, known.catalog.images[0].reference, registry)
    oldest = min(v for row in known.catalog.images if (v := cuda_of_image(row.tag)) is not None)
    listed = [(cuda, tag) for tag in tags if (cuda := cuda_of_image(tag)) is not None]
    for cuda, tag in sorted(listed):
        row = known.row("images", {"tag": tag})
        if row is None and cuda >= oldest:
            reading.add("images", tag=tag, archs=None, status="seen")
        elif row is not None:
            status = "seen" if row["status"] == "inferred" else row["status"]
            reading.add("images", tag=tag, status=status, confidence="confirmed")
    return reading


def read_python_images(asking: Asking, registry: str | None) -> SourceReading:
    """The official Python images of the Debian releases that the catalog knows."""
    known = asking.known
    reading, tags = _tags(asking, known.catalog.python_images[0].reference, registry)
    suites = [row.suite for row in known.catalog.debian_suites]
    pythons = [Version(row.python) for row in known.catalog.python_images]
    listed = {(m[2], Version(m[1])) for tag in tags if (m := _PYTHON_TAG.fullmatch(tag))}
    for suite, python in sorted(listed):
        if suite in suites and python >= min(pythons):
            key = {"python": str(python), "suite": suite}
            sure = {} if known.row("python_images", key) is None else {"confidence": "confirmed"}
            reading.add("python_images", **key, **sure)
        elif suite not in suites and python >= max(pythons):
            what = f"has python {python} for {suite}, a release of Debian that the catalog lacks"
            reading.notes.append(f"{reading.name} {what}.")
    return reading


def cuda_of_image(tag: str) -> Version | None:
    """The CUDA X.Y of an image's tag; None: not one of NVIDIA's finished images."""
    found = _CUDA_TAG.fullmatch(tag)
    return Version(found[1]) if found else None


def _tags(
    asking: Asking, reference: str, registry: str | None
) -> tuple[SourceReading, tuple[str, ...]]:
    """The tags of an image's repository, or of the same one below another registry."""
    repository = reference.rpartition(":")[0]
    if registry:
        repository = f"{registry.rstrip('/')}/{repository.partition('/')[2]}"
    limits = asking.fetcher.limits
    try:
        tags = list_tags(repository, timeout_s=limits.request_s, client=asking.fetcher.client)
    except (RegistryUnreachableError, RegistryAnswerError, ImageNotFoundError) as error:
        raise SourceError(error.message, fix=_FIX) from error
    return asking.reading(repository.partition("/")[0], repository, "its list of tags"), tags
